"""The cluster view:

the document of `/cluster`, which `top` and the dashboard show, built from the scheduler's state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gpuyard.core.state import State
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.inventory import UNKNOWN
from gpuyard.kubernetes.cluster.node_state import FOREIGN
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.kubernetes.gpu_usage import GpuUsage

try:
    import orjson
except ImportError:  # the extra [kubernetes] has it
    orjson = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class GpuView:
    index: int
    memory_total: float  # 0: unknown
    memory_charged: float  # sum of its pods' charges; all of it for a pod with a whole GPU
    memory_used: float | None = None  # by DCGM; None: not known
    utilization: float | None = None
    state: str = "free"  # `free`, `ours`, `foreign` (of a pod of another scheduler) or `closed` (cordoned, not ready)
    pods: tuple[str, ...] = ()  # `namespace/name` of the pods on it


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    model: str
    ready: bool
    cordoned: bool
    cpus: float
    cpus_free: float
    memory: float
    memory_free: float
    gpus: tuple[GpuView, ...]


@dataclass(frozen=True, slots=True)
class PodView:
    namespace: str
    name: str
    uid: str
    scheduler: str
    phase: str  # `waiting`, `gated`, `bound` (a node is chosen, nothing runs yet), `running`, `ending`
    reason: str  # why it waits; empty if it does not
    node: str
    gpus: tuple[int, ...]  # indices on its node; empty while it waits, or where they are unknown
    gpu_count: int
    gpu_memory: float  # bytes asked for on each GPU; 0: whole GPUs
    charged: float  # bytes charged on each GPU; 0: whole GPUs
    admitted_by: str
    priority: float
    gang: str
    estimate: float | None
    created_at: float
    started_at: float | None
    position: int | None = None  # of a waiting pod: its place in the queue, from 1


@dataclass(frozen=True, slots=True)
class ClusterView:
    at: float
    server: str
    scheduler: str
    policy: str
    admission: str
    leader: str  # the replica that decides; empty: none is elected
    prometheus: str  # `ok`, `off`, or what is wrong
    nodes: tuple[NodeView, ...] = ()
    pods: tuple[PodView, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)  # `waiting`, `running`, `bound_total`, `evicted_total` ..

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def dumps(view: ClusterView) -> bytes:
    """A view as JSON; for a large cluster this holds the interpreter lock for a moment."""
    return orjson.dumps(view) if orjson else json.dumps(view.to_json()).encode()


def nodes_of(world: ClusterState, observed: GpuUsage) -> tuple[NodeView, ...]:
    state = world.state
    if state is None:
        return ()
    on = _rows_by_gpu(state)
    return tuple(_node(world, observed, state, n, on) for n in range(len(world.layout.nodes)))


def _rows_by_gpu(state: State) -> dict[int, list[int]]:
    found = dict[int, list[int]]()
    for row in state.running.array.tolist():
        for gpu in state.spot[row].tolist():
            found.setdefault(gpu, []).append(row)
    return found


def _key(world: ClusterState, job: str) -> str:
    pod = world.pods.get(world.uid_of.get(job, ""))
    return pod.key if pod is not None else job


def _node(world: ClusterState, observed: GpuUsage, state: State, n: int, on: dict[int, list[int]]) -> NodeView:
    layout = world.layout
    node = world.nodes.get(layout.nodes[n].name, layout.nodes[n])
    size = layout.memory[n] if layout.memory[n] > UNKNOWN else 0.0
    is_there = node.name in world.nodes
    closed = not is_there or world.hosts.is_closed(node)
    free = world.hosts.free_on(node.name) if is_there else (0.0, 0.0)
    gpus = []
    for gpu in layout.all_of(n):
        index, rows = gpu - layout.first[n], on.get(gpu, [])
        pods = tuple(_key(world, state.ids[row]) for row in rows)
        card = observed.cards.get((node.name, index))
        whole = state.pool.kind[gpu] > 0
        shared = float(state.table.footprint[rows].sum())
        kind = "foreign" if state.withdrawn.get(gpu) == FOREIGN else "ours" if pods else "closed" if closed else "free"
        gpus.append(
            GpuView(
                index, size, size if whole else shared, card.used if card else None,
                card.utilization if card else None, kind, pods,
            )
        )  # fmt: skip
    return NodeView(
        node.name, node.model, node.ready, node.cordoned, node.cpus, free[0], node.memory, free[1], tuple(gpus)
    )


def pods_of(world: ClusterState, reason: Callable[[Pod], str]) -> tuple[PodView, ...]:
    """Pods that are ours, or that hold GPUs; waiting ones in the order of the queue."""
    place = _places(world)
    shown = [pod for pod in world.pods.values() if (pod.gpus and pod.node) or world.is_ours(pod)]
    shown.sort(key=lambda pod: (place.get(pod.uid, 0 if not pod.waits else len(place) + 1), pod.created, pod.key))
    return tuple(_pod(world, pod, place.get(pod.uid), reason) for pod in shown)


def _places(world: ClusterState) -> dict[str, int]:
    """The position of each waiting pod in the queue, from 1."""
    state = world.state
    if state is None or not len(state.waiting):
        return {}
    rows = state.waiting.array
    order = rows[np.argsort(world.planner.policy.rank(state, rows, time.time()), kind="stable")]
    found = dict[str, int]()
    for row in order.tolist():
        unit = world.gangs.by_job(state.ids[row])
        for uid in [world.uid_of[state.ids[row]]] if unit is None else list(unit.members):
            found[uid] = len(found) + 1
    return found


def _pod(world: ClusterState, pod: Pod, position: int | None, reason: Callable[[Pod], str]) -> PodView:
    state, job = world.state, world.job_of.get(pod.uid)
    row = state.row_of.get(job or "") if state is not None else None
    ours, assumed = world.is_ours(pod), world.assumed.get(pod.uid)
    waits = pod.waits and assumed is None
    charged = float(state.table.footprint[row]) if state is not None and row is not None and pod.shares else 0.0
    phase = (
        "gated" if pod.gated and waits else "waiting" if waits else "ending" if pod.deleting
        else "running" if pod.phase == "Running" else "bound"
    )  # fmt: skip
    return PodView(
        pod.namespace, pod.name, pod.uid, pod.scheduler, phase, reason(pod) if waits and ours else "",
        pod.node or (assumed.node if assumed else ""), pod.indices or (assumed.indices if assumed else ()), pod.gpus,
        pod.gpu_memory, charged, pod.admitted_by, pod.priority, pod.gang.name if pod.gang else "",
        world.expected(pod), pod.created, pod.started, position,
    )  # fmt: skip


def cluster_view(
    world: ClusterState,
    observed: GpuUsage,
    reason: Callable[[Pod], str],
    *,
    server: str,
    leader: str,
    counts: dict[str, int],
) -> ClusterView:
    pods = pods_of(world, reason)
    waiting = sum(pod.phase in ("waiting", "gated") for pod in pods)
    settings = world.settings
    prometheus = observed.trouble or ("ok" if settings.prometheus else "off")
    found = {"waiting": waiting, "running": sum(pod.phase == "running" for pod in pods), **counts}
    return ClusterView(
        time.time(), server, settings.scheduler, world.planner.text, settings.admission, leader, prometheus,
        nodes_of(world, observed), pods, found,
    )  # fmt: skip
