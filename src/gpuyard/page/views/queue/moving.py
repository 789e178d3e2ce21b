"""Which priority brings a job between two others.

The policies `priority` and `multifactor` rank a job by its priority, by how long it has waited and, the latter, by what
its user has had. All of that but the first is known of each, so the priority that puts a job in a place follows.
Whether it came there is looked at afterwards: what users had goes on changing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.policytext import LEARNED

_HOUR = 3600.0
_LEAST = 1e-9  # what two ranks must differ by, so that something comes between them


@dataclass(frozen=True, slots=True)
class Order:
    """What the policy in force makes of priorities."""

    name: str
    doc: str
    counts: bool
    """Whether it looks at priorities at all."""
    known: bool
    """Whether it is one of those whose arithmetic is known here."""
    ageing: float = 0.0
    fairness: float = 0.0

    def others(self, job: Standing) -> float:
        """What a job's rank is made of beside its priority; the smallest rank goes first."""
        return job.submitted * self.ageing / _HOUR + job.usage * self.fairness

    def rank(self, job: Standing) -> float:
        """The number by which jobs are ordered."""
        return self.others(job) - job.priority


@dataclass(frozen=True, slots=True)
class Standing:
    """What a job's rank depends on."""

    priority: float
    submitted: float
    usage: float = 0.0
    """GPU-hours that count against its user."""


def order_of(policy: Mapping[str, Any], known: Mapping[str, Any]) -> Order:
    """What the API's answers say of the policy in force."""
    if str(policy["name"]).startswith(LEARNED):
        return Order(str(policy["name"]), "A trained policy.", counts=False, known=False)
    name, _, given = str(policy["name"]).partition(":")
    found = next((one for one in known["policies"] if one["name"] == name), None)
    if found is None:
        return Order(str(policy["name"]), "", counts=True, known=False)
    said = dict(part.partition("=")[::2] for part in given.split(",") if part)
    settings = {key: float(said.get(key, found["settings"].get(key, 0.0))) for key in ("ageing", "fairness")}
    usual = name in ("priority", "multifactor")
    doc = str(found["doc"])
    for key, value in settings.items():
        doc = doc.replace(f"`{key}`", f"{value:g}")
    return Order(name, doc.replace("`", ""), "priority" in found["columns"], usual, **settings)


def priority_between(order: Order, job: Standing, above: Standing | None, below: Standing | None) -> float | None:
    """The simplest priority that brings a job behind one and before the other; None if there is none."""
    if above is None and below is None:
        return job.priority
    own = order.others(job)
    most = own - order.rank(above) if above is not None else math.inf
    least = own - order.rank(below) if below is not None else -math.inf
    if below is None:
        least = most - 1.0
    elif above is None:
        most = least + 1.0
    if most - least < _LEAST:
        return None
    return job.priority if least < job.priority < most else simplest(least, most)


def simplest(least: float, most: float) -> float:
    """The number strictly between two with the fewest digits, the one in the middle of those."""
    for digits in range(13):
        scale = 10.0**digits
        first, last = math.floor(least * scale) + 1, math.ceil(most * scale) - 1
        if first <= last:
            return (first + last) // 2 / scale
    return (least + most) / 2
