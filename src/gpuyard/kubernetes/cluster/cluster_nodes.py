"""Nodes: GPUs, capacity, labels and taints, and which nodes a pod's selector, affinity and tolerations allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuyard.errors import UserError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.cluster.quantity import amount, memory

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
class NodeConstraints:
    text: str = "[{}, null, []]"

    def refusal(self, name: str, labels: Labels, taints: Sequence[Taint]) -> str:
        """Why a node does not match; empty if it does."""
        selector, required, tolerations = _parsed(self.text)
        if any(labels.get(key) != value for key, value in selector.items()):
            return "did not match the node selector"
        if required is not None and not any(_term(term, name, labels) for term in required):
            return "did not match the node affinity"
        for taint in taints:
            if taint.effect in _EFFECTS and not any(_tolerates(one, taint) for one in tolerations):
                return f"had the taint {taint}"
        return ""


ANYWHERE = NodeConstraints()


def node_constraints_of(spec: Mapping[str, Any]) -> NodeConstraints:
    selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or []
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None if required is None else required.get("nodeSelectorTerms") or []
    if not selector and terms is None:
        if not tolerations:
            return ANYWHERE
        if {(one.get("key"), one.get("operator"), one.get("effect")) for one in tolerations} == _EVERYBODYS:
            return _USUAL
    return NodeConstraints(json.dumps([selector, terms, tolerations], sort_keys=True))


_EVERYBODYS = {(f"node.kubernetes.io/{key}", "Exists", "NoExecute") for key in ("not-ready", "unreachable")}
"""What every pod is made to tolerate: nodes that are away for a moment."""
_USUAL = NodeConstraints(
    json.dumps(
        [{}, None, [{"key": key, "operator": how, "effect": effect} for key, how, effect in sorted(_EVERYBODYS)]]
    )
)


def unsupported(spec: Mapping[str, Any]) -> str:
    """Constraints on other pods that gpuyard does not support; empty without any."""
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
    """Whether a node matches one term; an empty term matches none."""
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


MIB, GIB = float(2**20), float(2**30)


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    gpus: int = 0
    gpu_memory: float = 0.0  # bytes of each GPU; 0: the node does not say
    model: str = ""
    cpus: float = 0.0
    memory: float = 0.0
    pods: int = 110
    ready: bool = True
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    addresses: frozenset[str] = frozenset()  # IP addresses and host names
    trouble: str = ""  # an invalid label or annotation

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.gpus, self.gpu_memory, self.model, self.cpus, self.memory, self.taints, dict(self.labels)

    def refusal(self, constraints: NodeConstraints) -> str:
        """Why the node does not meet a pod's constraints, whatever is free on it; empty if it does."""
        return constraints.refusal(self.name, self.labels, self.taints)


def node_of(object: Mapping[str, Any]) -> Node:
    meta, spec, status = object["metadata"], object.get("spec") or {}, object.get("status") or {}
    labels, has = meta.get("labels") or {}, status.get("allocatable") or status.get("capacity") or {}
    trouble = ""
    try:
        size, gpus = _gpu_memory(meta, has), _gpus(meta, has)
    except UserError as error:
        size, gpus, trouble = 0.0, 0, str(error)
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or []}
    taints = tuple(
        Taint(one.get("key", ""), one.get("value") or "", one.get("effect", ""))
        for one in spec.get("taints") or []
        if one.get("key") != CORDONED
    )
    return Node(
        meta["name"], gpus, size, labels.get(names.NODE_GPU_MODEL, ""),
        amount(has.get("cpu", 0)), amount(has.get("memory", 0)), int(amount(has.get("pods", 110))),
        conditions.get("Ready", "True") == "True", bool(spec.get("unschedulable")), labels, taints,
        frozenset(one["address"] for one in status.get("addresses") or [] if one.get("address")), trouble,
    )  # fmt: skip


def declared(meta: Mapping[str, Any], name: str) -> str | None:
    """The value of an annotation, or else of a label."""
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    found = annotations.get(name)
    return labels.get(name) if found is None else found


def _gpus(meta: Mapping[str, Any], has: Mapping[str, Any]) -> int:
    """Number of GPUs; each counts once, also where the device plugin lists it several times for sharing."""
    labels = meta.get("labels") or {}
    if (text := declared(meta, names.GPU_COUNT)) is not None:
        return int(amount(text))
    if names.GPU in has:
        replicas = int(amount(labels.get("nvidia.com/gpu.replicas", 1))) or 1
        return int(amount(has[names.GPU])) // replicas
    return int(amount(has.get("aliyun.com/gpu-count", 0)))


def _gpu_memory(meta: Mapping[str, Any], has: Mapping[str, Any]) -> float:
    if (text := declared(meta, names.GPU_MEMORY)) is not None:
        return memory(text, MIB)
    if (text := (meta.get("labels") or {}).get(names.NODE_GPU_MEMORY)) is not None:
        return memory(text, MIB)
    gpus = _gpus(meta, has)
    if names.ALIYUN_MEMORY in has and gpus:
        return amount(has[names.ALIYUN_MEMORY]) * GIB / gpus
    return 0.0
