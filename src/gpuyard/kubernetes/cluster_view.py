"""The document of `/cluster`, which `top` and the dashboard show."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

try:
    import orjson
except ImportError:  # the extra [kubernetes] has it
    orjson = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of a node."""

    index: int
    memory_total: float
    """0: nobody knows."""
    memory_charged: float
    """What the pods there are counted with; all of it for one that has the GPU for itself."""
    memory_used: float | None = None
    """By DCGM; None: not known."""
    utilization: float | None = None
    state: str = "free"
    """`free`, `ours`, `foreign` (of a pod of another scheduler) or `closed` (cordoned, not ready)."""
    pods: tuple[str, ...] = ()
    """`namespace/name` of those who are on it."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with GPUs."""

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
    """A pod that is ours, or that holds GPUs."""

    namespace: str
    name: str
    uid: str
    scheduler: str
    phase: str
    """`waiting`, `gated`, `bound` (a node is chosen, nothing runs yet), `running`, `ending`."""
    reason: str
    """Why it waits; empty if it does not."""
    node: str
    gpus: tuple[int, ...]
    """Indices on its node; empty while it waits, or where nobody knows them."""
    gpu_count: int
    gpu_memory: float
    """Bytes asked for on each GPU; 0: whole GPUs."""
    charged: float
    """Bytes it is counted with on each GPU; 0: whole GPUs."""
    admitted_by: str
    priority: float
    gang: str
    estimate: float | None
    created_at: float
    started_at: float | None
    position: int | None = None
    """Of a waiting pod: its place in the queue, from 1."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All of it, at one instant."""

    at: float
    server: str
    scheduler: str
    policy: str
    admission: str
    leader: str
    """Who decides; empty: nobody is elected."""
    prometheus: str
    """`ok`, `off`, or what is wrong."""
    nodes: tuple[NodeView, ...] = ()
    pods: tuple[PodView, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """`waiting`, `running`, `bound_total`, `evicted_total` ..."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def dumps(view: ClusterView) -> bytes:
    """A view as JSON; a large cluster's takes a moment, in which nobody else gets a word in."""
    return orjson.dumps(view) if orjson else json.dumps(view.to_json()).encode()
