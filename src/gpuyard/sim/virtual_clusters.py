"""Virtual clusters: the GPUs are divided into pools, and every job stays within the pool that its label names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuyard.core.model import DEFAULT_GPU_MEMORY, Cluster
from gpuyard.errors import UserError, suggest
from gpuyard.sim.replay import Progress
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.trace import Floats, Trace

DEFAULT_LABEL = "vc"

Run = Callable[[Trace, Cluster, Floats, Floats, Progress | None], Result]
"""Simulates one pool: its jobs, its cluster, their estimates and restart costs."""

Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Pools:
    clusters: tuple[tuple[str, Cluster], ...]
    label: str = DEFAULT_LABEL

    @classmethod
    def of(
        cls, rows: Iterable[tuple[str, int, int]], label: str = DEFAULT_LABEL, memory: float = DEFAULT_GPU_MEMORY
    ) -> Pools:
        clusters = tuple((name, Cluster((size,) * count, memory)) for name, count, size in rows)
        if not clusters:
            raise UserError("there are no pools; give at least one, with its number of nodes")
        names = [name for name, _ in clusters]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"pool '{twice}' is there twice; name each pool once")
        return cls(clusters, label)

    @property
    def cluster(self) -> Cluster:
        """All pools side by side; GPUs are numbered in the order of the pools."""
        nodes = tuple(size for _, cluster in self.clusters for size in cluster.nodes)
        return Cluster(nodes, self.clusters[0][1].memory)

    def members(self, trace: Trace) -> dict[str, Positions]:
        if self.label not in trace.labels:
            known = list(trace.labels)
            has = f"it has {', '.join(known)}; say which with --pool-by" if known else "it has none at all"
            raise UserError(f"{trace.source} has no label '{self.label}'{suggest(self.label, known)} ({has})")
        wanted = np.array(trace.labels[self.label], dtype=object)
        return {name: np.flatnonzero(wanted == name) for name, _ in self.clusters}


def replay_pools(
    run: Run, trace: Trace, pools: Pools, estimates: Floats, restart_cost: Floats, progress: Progress | None = None
) -> tuple[Result, dict[str, Result]]:
    """Simulate every pool by itself; returns the schedule of all together, and each pool's own."""
    members = pools.members(trace)
    parts: dict[str, Result] = {}
    done = 0
    for name, cluster in pools.clusters:
        rows = members[name]
        parts[name] = run(
            trace.take(rows), cluster, estimates[rows], restart_cost[rows], _onwards(progress, done, len(trace))
        )
        done += len(rows)
    return _merge(trace, pools, members, parts), parts


def _onwards(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)


def _merge(trace: Trace, pools: Pools, members: dict[str, Positions], parts: dict[str, Result]) -> Result:
    order = trace.arrival_order()
    place = np.empty(len(trace), dtype=np.int64)
    place[order] = np.arange(len(trace))
    merged = Result(
        trace=trace.take(order), cluster=pools.cluster, policy=next(iter(parts.values())).policy,
        start=np.full(len(trace), np.nan), end=np.full(len(trace), np.nan),
        preemptions=np.zeros(len(trace), dtype=np.int64), placements=Placements.of([]), rejected={},
        segments=Segments.none(),
    )  # fmt: skip
    found: list[Segments] = []
    spots: list[tuple[Positions, Placements, int]] = []
    offset = 0
    for name, cluster in pools.clusters:
        part, rows = parts[name], members[name]
        # Within the pool, jobs are in arrival order, which the pool's own ids and times decide.
        at = place[rows[trace.take(rows).arrival_order()]]
        merged.start[at], merged.end[at], merged.preemptions[at] = part.start, part.end, part.preemptions
        spots.append((at, part.placements, offset))
        merged.rejected.update((int(at[k]), f"{why} (pool {name})") for k, why in part.rejected.items())
        held = part.segments
        found.append(Segments(at[held.job], held.gpu + offset, held.start, held.end))
        offset += cluster.gpus
    merged.rejected.update(_homeless(merged.trace, pools))
    seconds = sum(part.wall_seconds for part in parts.values())
    placements = _joined(len(trace), spots)
    return replace(merged, placements=placements, segments=Segments.join(found), wall_seconds=seconds)


def _joined(count: int, spots: list[tuple[Positions, Placements, int]]) -> Placements:
    sizes = np.zeros(count, dtype=np.int64)
    for at, part, _ in spots:
        sizes[at] = part.sizes
    ends = np.cumsum(sizes)
    gpus = np.empty(int(sizes.sum()), dtype=np.int64)
    for at, part, offset in spots:
        shift = (ends - sizes)[at] - (part.ends - part.sizes)
        gpus[np.arange(len(part.gpus)) + np.repeat(shift, part.sizes)] = part.gpus + offset
    return Placements(gpus, ends)


def _homeless(trace: Trace, pools: Pools) -> dict[int, str]:
    """Jobs whose pool does not exist, and why they are rejected."""
    names = {name for name, _ in pools.clusters}
    return {
        row: f"belongs to {pools.label} '{wanted}', and there is no such pool"
        for row, wanted in enumerate(trace.labels[pools.label])
        if wanted not in names
    }
