"""A node, as far as a scheduler of GPUs has to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard.errors import UserError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.matching import CORDONED, Taint
from gpuyard.kubernetes.quantity import amount, memory

MIB, GIB = float(2**20), float(2**30)


@dataclass(frozen=True, slots=True)
class Node:
    """What a node has, and whom it lets in."""

    name: str
    gpus: int = 0
    gpu_memory: float = 0.0
    """Bytes of each GPU; 0: the node does not say."""
    model: str = ""
    cpus: float = 0.0
    memory: float = 0.0
    pods: int = 110
    ready: bool = True
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    addresses: frozenset[str] = frozenset()
    """By what else it is known: IP addresses and host names."""
    trouble: str = ""
    """What it says of itself that makes no sense."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What a cluster is made of; if it changes, so does the cluster."""
        return self.gpus, self.gpu_memory, self.model, self.cpus, self.memory, self.taints, dict(self.labels)


def node_of(object: Mapping[str, Any]) -> Node:
    """A node, as the API describes it."""
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


def said(meta: Mapping[str, Any], name: str) -> str | None:
    """What an annotation says, or else a label."""
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    found = annotations.get(name)
    return labels.get(name) if found is None else found


def _gpus(meta: Mapping[str, Any], has: Mapping[str, Any]) -> int:
    """How many GPUs there are; each counts once, also where the device plugin has it several times, to share it."""
    labels = meta.get("labels") or {}
    if (told := said(meta, names.GPU_COUNT)) is not None:
        return int(amount(told))
    if names.GPU in has:
        replicas = int(amount(labels.get("nvidia.com/gpu.replicas", 1))) or 1
        return int(amount(has[names.GPU])) // replicas
    return int(amount(has.get("aliyun.com/gpu-count", 0)))


def _gpu_memory(meta: Mapping[str, Any], has: Mapping[str, Any]) -> float:
    if (told := said(meta, names.GPU_MEMORY)) is not None:
        return memory(told, MIB)
    if (told := (meta.get("labels") or {}).get(names.NODE_GPU_MEMORY)) is not None:
        return memory(told, MIB)
    gpus = _gpus(meta, has)
    if names.ALIYUN_MEMORY in has and gpus:
        return amount(has[names.ALIYUN_MEMORY]) * GIB / gpus
    return 0.0
