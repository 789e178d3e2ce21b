"""Recent use by users: GPU time that fades with a half-life, for fair shares, and by the hour, for quotas.

Kept only where there are rules to share by (`Rules`); a simulation has none, and counts GPU-seconds as they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuyard.core.loops.pool import Floats, Ints
from gpuyard.core.model import Quota, Rules

HOUR = 3600.0
WEEK = 168  # hours for which a quota of GPU-hours counts


class Ledger:
    """GPU time of each user, by number: faded up to some instant, and in each of the latest hours."""

    __slots__ = ("at", "faded", "hours")

    def __init__(self) -> None:
        self.at = 0.0  # the instant up to which `faded` has faded
        self.faded: list[float] = []  # GPU-seconds
        self.hours: list[dict[int, float]] = []  # GPU-seconds by the hour since the epoch

    def grow(self, users: int) -> None:
        while len(self.faded) < users:
            self.faded.append(0.0)
            self.hours.append({})

    def fade(self, half_life: float, now: float) -> None:
        factor = faded_to(half_life, now - self.at)
        self.faded = [had * factor for had in self.faded]
        self.at = max(self.at, now)

    def book(self, user: int, gpus: float, started: float, ended: float, half_life: float) -> None:
        self.fade(half_life, ended)
        self.faded[user] += gpus * _worth(half_life, ended - started)
        hours = self.hours[user]
        for hour, seconds in _by_hour(started, ended):
            hours[hour] = hours.get(hour, 0.0) + gpus * seconds
        oldest = int(ended // HOUR) - WEEK
        if min(hours, default=oldest) < oldest:
            self.hours[user] = {hour: had for hour, had in hours.items() if hour >= oldest}

    def facts(self) -> dict[str, Any]:
        return {"at": self.at, "faded": list(self.faded), "hours": [sorted(hours.items()) for hours in self.hours]}

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Ledger:
        ledger = cls()
        ledger.at, ledger.faded = float(facts["at"]), [float(had) for had in facts["faded"]]
        ledger.hours = [{int(hour): float(had) for hour, had in hours} for hours in facts["hours"]]
        return ledger


def faded_to(half_life: float, seconds: float) -> float:
    """What is left of a GPU-second after `seconds`."""
    return 1.0 if half_life == math.inf else float(2.0 ** (-max(seconds, 0.0) / half_life))


def _worth(half_life: float, seconds: float) -> float:
    if half_life == math.inf:
        return max(seconds, 0.0)
    return half_life / math.log(2.0) * (1.0 - faded_to(half_life, seconds))


def _worth_now(half_life: float, seconds: Floats) -> Floats:
    return seconds if half_life == math.inf else half_life / math.log(2.0) * (1.0 - 2.0 ** (-seconds / half_life))


def _by_hour(started: float, ended: float) -> list[tuple[int, float]]:
    """Seconds of a span in each hour; of the latest week only."""
    started = max(started, ended - (WEEK + 1) * HOUR)
    first, last = int(started // HOUR), int(ended // HOUR)
    return [
        (hour, min(ended, (hour + 1) * HOUR) - max(started, hour * HOUR))
        for hour in range(first, last + 1)
        if min(ended, (hour + 1) * HOUR) > max(started, hour * HOUR)
    ]


def weight_of(rules: Rules, name: str) -> float:
    weights = dict(rules.weights)
    return weights.get(name, 1.0 if name.startswith("@") else weights.get("*", 1.0))


def quota_of(rules: Rules, name: str) -> Quota:
    """What a user, or a group with an @ before it, may have; `*` fills what a user's own quota leaves open."""
    quotas = dict(rules.quotas)
    own = quotas.get(name, Quota())
    others = Quota() if name.startswith("@") or not name else quotas.get("*", Quota())
    return Quota(own.gpus or others.gpus, own.gpu_hours or others.gpu_hours, own.queued or others.queued)


def fair_usage(
    ledger: Ledger, rules: Rules, names: list[str], groups: list[str], user: Ints, gpus: Ints, held: Floats, now: float
) -> Floats:
    """GPU-seconds that each user has had, faded, for the share they deserve: half their own, half their group's.

    `names` and `groups` are by user; `user`, `gpus` and `held` (seconds so far) are of the running jobs.
    """
    had = np.array(ledger.faded) * faded_to(rules.half_life, now - ledger.at)
    had += np.bincount(user, weights=_worth_now(rules.half_life, held) * gpus, minlength=len(had))
    own: Floats = had / np.array([weight_of(rules, name) for name in names] or [1.0])[: len(had)]
    if not any(groups):
        return own
    of_group: dict[str, float] = {}
    for n, group in enumerate(groups):
        of_group[group] = of_group.get(group, 0.0) + float(had[n])
    shared = [
        of_group[group] / weight_of(rules, f"@{group}") if group else float(own[n]) for n, group in enumerate(groups)
    ]
    both: Floats = (own + np.array(shared)) / 2.0
    return both
