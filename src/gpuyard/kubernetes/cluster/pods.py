"""Pods: what they ask for, their status, and the annotations that the scheduler wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuyard.errors import UserError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.cluster.cluster_nodes import (
    ANYWHERE,
    GIB,
    MIB,
    NodeConstraints,
    declared,
    node_constraints_of,
    unsupported,
)
from gpuyard.kubernetes.cluster.quantity import amount, memory, moment
from gpuyard.predict.signatures import sign
from gpuyard.units import parse_duration

_DEFAULT_GANG_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that start together, or not at all."""

    name: str
    size: int
    timeout: float = _DEFAULT_GANG_TIMEOUT


@dataclass(slots=True)
class Pod:
    uid: str
    namespace: str
    name: str
    scheduler: str
    node: str = ""
    phase: str = "Pending"
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    deleting: bool = False
    gated: bool = False
    gpus: int = 0
    gpu_memory: float = 0.0  # bytes of each GPU; 0: not said
    whole: bool = False  # whether it wants whole GPUs, with as much memory as it asks for
    cpus: float = 0.0
    memory: float = 0.0
    priority: float = 0.0
    patient: bool = False  # no pod is evicted for it
    preemptible: bool | None = None  # as declared
    wish: NodeConstraints = field(default=ANYWHERE)
    gang: Gang | None = None
    duration: float | None = None  # expected seconds, as declared
    limit: float = math.inf  # seconds after which Kubernetes ends it
    usage: bool = True  # whether it may be admitted by usage; else its request counts
    signature: str = ""
    indices: tuple[int, ...] = ()
    charged: float | None = None
    admitted_by: str = ""
    restarts: int = 0
    controlled: bool = False  # whether a controller replaces it when it is gone
    nominated: str = ""  # the node that others are being evicted from for it
    ip: str = ""
    version: str = ""
    trouble: str = ""  # a wrong or unsupported request: the pod does not start until it is corrected

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def shares(self) -> bool:
        return self.gpus > 0 and not self.whole

    @property
    def waits(self) -> bool:
        return not self.node and not self.over and not self.deleting


def pod_of(object: Mapping[str, Any]) -> Pod:
    meta, spec, status = object["metadata"], object["spec"], object.get("status") or {}
    pod = Pod(
        meta["uid"], meta["namespace"], meta["name"], spec.get("schedulerName") or "default-scheduler",
        spec.get("nodeName") or "", status.get("phase") or "Pending", moment(meta.get("creationTimestamp")) or 0.0,
        deleting=meta.get("deletionTimestamp") is not None,
        gated=bool(spec.get("schedulingGates")),
        priority=float(spec.get("priority") or 0),
        patient=spec.get("preemptionPolicy") == "Never",
        limit=float(spec.get("activeDeadlineSeconds") or math.inf),
        controlled=any(one.get("controller") for one in meta.get("ownerReferences") or []),
        nominated=status.get("nominatedNodeName") or "", ip=status.get("podIP") or "",
        version=str(meta.get("resourceVersion", "")),
    )  # fmt: skip
    pod.started, pod.ended, pod.restarts = _times(status)
    pod.cpus, pod.memory = _requests(spec, "cpu"), _requests(spec, "memory")
    try:
        _read_gpus(pod, meta, spec)
        _read_scheduling(pod, meta, spec)
    except (UserError, ValueError) as error:
        pod.trouble = str(error)
    _read_placement(pod, meta.get("annotations") or {})
    return pod


def _read_gpus(pod: Pod, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    whole = int(_requests(spec, names.GPU))
    text = declared(meta, names.GPU_MEMORY)
    if text is not None:
        pod.gpu_memory = memory(text)
    elif (seed := declared(meta, names.SEED_MEMORY)) is not None:
        pod.gpu_memory = memory(seed, MIB)
    elif shared := _requests(spec, names.ALIYUN_MEMORY):
        pod.gpu_memory = shared * GIB
    if whole:  # the device plugin gives whole GPUs; they must have this much memory
        pod.gpus, pod.whole = whole, True
    elif pod.gpu_memory:
        count = declared(meta, names.GPU_COUNT)
        pod.gpus = _number(count, f"{names.GPU_COUNT} is a number of GPUs") if count is not None else 1


def _read_scheduling(pod: Pod, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    pod.wish = node_constraints_of(spec)
    pod.trouble = unsupported(spec)
    if pod.trouble:
        pod.trouble += " is not supported by gpuyard"
    if (gang := declared(meta, names.GANG)) is not None:
        size = _number(declared(meta, names.GANG_SIZE) or "1", f"{names.GANG_SIZE} is a number of members")
        timeout = declared(meta, names.GANG_TIMEOUT)
        pod.gang = Gang(gang, size, parse_duration(timeout) if timeout else _DEFAULT_GANG_TIMEOUT)
    if (duration := declared(meta, names.DURATION)) is not None:
        pod.duration = parse_duration(duration)
        if not 0 < pod.duration < math.inf:
            raise UserError(f"{names.DURATION} is a time above 0, not {duration}")
    if (admission := declared(meta, names.ADMISSION)) is not None:
        if admission not in ("requests", "usage"):
            raise UserError(f"{names.ADMISSION} is requests or usage, not {admission}")
        pod.usage = admission == "usage"
    if (text := declared(meta, names.PREEMPTIBLE)) is not None:
        if text not in ("true", "false"):
            raise UserError(f"{names.PREEMPTIBLE} is true or false, not {text}")
        pod.preemptible = text == "true"
    if pod.gpus:
        pod.signature = declared(meta, names.WORKLOAD) or _signature(pod.namespace, pod.gpus, _programs(spec))


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UserError(f"{what}, 1 or more, not {text}")
    return int(text)


def _read_placement(pod: Pod, annotations: Mapping[str, str]) -> None:
    """Annotations that we wrote at the binding; nonsense there is another program's."""
    try:
        pod.indices = tuple(int(text) for text in annotations.get(names.INDICES, "").split(",") if text)
        charged = annotations.get(names.CHARGED)
        pod.charged = amount(charged) if charged is not None else None
    except (UserError, ValueError):
        pod.indices, pod.charged = (), None
    pod.admitted_by = annotations.get(names.ADMITTED, "")


def _requests(spec: Mapping[str, Any], resource: str) -> float:
    """The sum over containers; init containers count where they ask for more."""

    def of(container: Mapping[str, Any]) -> float:
        resources = container.get("resources") or {}
        found = (resources.get("requests") or {}).get(resource)
        if found is None:
            found = (resources.get("limits") or {}).get(resource, 0)
        return amount(found)

    before = spec.get("initContainers") or []
    beside = sum(of(one) for one in before if one.get("restartPolicy") == "Always")
    main = sum(of(one) for one in spec.get("containers") or []) + beside
    first = max((of(one) + beside for one in before if one.get("restartPolicy") != "Always"), default=0.0)
    return max(main, first) + amount((spec.get("overhead") or {}).get(resource, 0))


def _times(status: Mapping[str, Any]) -> tuple[float | None, float | None, int]:
    begun, ended, restarts = list[float](), list[float](), 0
    for one in status.get("containerStatuses") or []:
        restarts += int(one.get("restartCount") or 0)
        state = one.get("state") or {}
        for how in ("running", "terminated"):
            if (at := moment((state.get(how) or {}).get("startedAt"))) is not None:
                begun.append(at)
        if (at := moment((state.get("terminated") or {}).get("finishedAt"))) is not None:
            ended.append(at)
    started = min(begun) if begun else moment(status.get("startTime"))
    return started, max(ended) if ended else None, restarts


def _programs(spec: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        (str(one.get("image", "")), (*(one.get("command") or ()), *(one.get("args") or ())))
        for one in spec.get("containers") or []
    )


@lru_cache(maxsize=8192)
def _signature(namespace: str, gpus: int, programs: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Identifies similar pods: images, and commands without what changes from run to run."""
    images = [image for image, _ in programs]
    words = [word for _, command in programs for word in command]
    return sign(words or ["image"], directory="/", content=" ".join(images), user=namespace, gpus=gpus).exact
