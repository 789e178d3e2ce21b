"""Which nodes a pod may be on: its node selector, its affinity to labels of nodes, and the taints it tolerates.

What is asked for is kept as one object for all pods that ask for the same, so that nodes are looked at once for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Labels = Mapping[str, str]
CORDONED = "node.kubernetes.io/unschedulable"
_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps pods away that do not tolerate it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks of its node, as the API writes it."""

    text: str = "[{}, null, []]"

    def refusal(self, name: str, labels: Labels, taints: Sequence[Taint]) -> str:
        """Why a node will not do; empty if it will."""
        selector, required, tolerations = _parsed(self.text)
        if any(labels.get(key) != value for key, value in selector.items()):
            return "did not match the node selector"
        if required is not None and not any(_term(term, name, labels) for term in required):
            return "did not match the node affinity"
        for taint in taints:
            if taint.effect in _EFFECTS and not any(_tolerates(one, taint) for one in tolerations):
                return f"had the taint {taint}"
        return ""


ANYWHERE = Wish()


def wish_of(spec: Mapping[str, Any]) -> Wish:
    """What a pod's spec asks of its node."""
    selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or []
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None if required is None else required.get("nodeSelectorTerms") or []
    if not selector and terms is None:
        if not tolerations:
            return ANYWHERE
        if {(one.get("key"), one.get("operator"), one.get("effect")) for one in tolerations} == _EVERYBODYS:
            return _USUAL
    return Wish(json.dumps([selector, terms, tolerations], sort_keys=True))


_EVERYBODYS = {(f"node.kubernetes.io/{key}", "Exists", "NoExecute") for key in ("not-ready", "unreachable")}
"""What every pod is made to tolerate: nodes that are away for a moment."""
_USUAL = Wish(
    json.dumps(
        [{}, None, [{"key": key, "operator": how, "effect": effect} for key, how, effect in sorted(_EVERYBODYS)]]
    )
)


def unsupported(spec: Mapping[str, Any]) -> str:
    """What a pod demands of where others are, which is not looked at here; empty if it demands nothing of the kind."""
    affinity = spec.get("affinity") or {}
    for kind, name in (("podAffinity", "pod affinity"), ("podAntiAffinity", "pod anti-affinity")):
        if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"required {name}"
    spread = spec.get("topologySpreadConstraints") or []
    if any(one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for one in spread):
        return "a topology spread constraint that must hold"
    return ""


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[dict[str, str], list[dict[str, Any]] | None, list[dict[str, Any]]]:
    selector, terms, tolerations = json.loads(text)
    return selector, terms, tolerations


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator", "Equal") == "Exists":
        return not key or key == taint.key
    return key == taint.key and (toleration.get("value") or "") == taint.value


def _term(term: Mapping[str, Any], name: str, labels: Labels) -> bool:
    """Whether a node is what one term asks for; an empty term asks for none."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_expression(one, labels) for one in expressions) and all(
        _expression(one, {"metadata.name": name}) for one in fields
    )


def _expression(one: Mapping[str, Any], labels: Labels) -> bool:
    known, values = labels.get(one["key"]), one.get("values") or []
    return _OPERATORS[one["operator"]](known, values) if one.get("operator") in _OPERATORS else False


def _compared(known: str | None, values: Sequence[str], right: Callable[[int, int], bool]) -> bool:
    try:
        return known is not None and right(int(known), int(values[0]))
    except (ValueError, IndexError):
        return False


_OPERATORS: dict[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda known, values: known in values,
    "NotIn": lambda known, values: known not in values,
    "Exists": lambda known, values: known is not None,
    "DoesNotExist": lambda known, values: known is None,
    "Gt": lambda known, values: _compared(known, values, lambda a, b: a > b),
    "Lt": lambda known, values: _compared(known, values, lambda a, b: a < b),
}
