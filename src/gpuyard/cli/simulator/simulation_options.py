"""Options that simulate, compare, sweep, learn and trace share: jobs of a trace, cluster, engine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuyard.cli.common_options import argument, option
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_size

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.simulate import Options
    from gpuyard.sim.trace import Trace
    from gpuyard.sim.virtual_clusters import Pools


TraceArg = Annotated[str, argument("TRACE", "The trace: a file (compressed is fine), or - for stdin.")]
Format = Annotated[
    str | None, option("--format", "The trace's format, if it is not recognised; gavel:k80 names a GPU type.")
]
Where = Annotated[
    list[str] | None, option("--where", "NAME=VALUE", "Only jobs with that; !=, <, <=, >, >= too. May be repeated.")
]
Since = Annotated[str | None, option("--since", "TIME", "Only jobs submitted from then on: a UTC date, or seconds.")]
Until = Annotated[str | None, option("--until", "TIME", "Only jobs submitted before then.")]
Slice = Annotated[
    str | None, option("--slice", "START:COUNT", "Only COUNT jobs from START on, of those that are left.")
]


def load_trace(
    path: str,
    format: str | None = None,
    where: list[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    slice_: str | None = None,
) -> Trace:
    """Read a trace and keep the selected jobs; the slice is taken last."""
    from gpuyard.sim.select import select
    from gpuyard.sim.traces import read

    jobs = select(read(path, format), where or (), since, until)
    return jobs if slice_ is None else jobs.slice(slice_)


_Value = TypeVar("_Value")

Gpus = Annotated[int | None, option("--gpus", "N", "One node of N GPUs: only their number counts.")]
Nodes = Annotated[
    str | None, option("--nodes", "4x8|FILE", "4 nodes of 8 GPUs (4x8,2x4 mixes sizes), or a list of nodes.")
]
GpuMemory = Annotated[str, option("--gpu-memory", "SIZE", "Memory of each GPU, for shares.")]
Discipline = Annotated[
    str | None,
    option("--discipline", "strict, commit, skip, easy, easy-shadow or conservative (strict; skip if preemptive)."),
]
Placement = Annotated[
    str | None,
    option(
        "--placement",
        "first, pack, spread, consolidate, random, packing, clustering or fgd (first; consolidate with --nodes).",
    ),
]
Estimate = Annotated[
    str | None,
    option("--estimate", "What policies know: actual, requested or noisy:S (requested if known, else actual)."),
]
Quantum = Annotated[
    str | None, option("--quantum", "TIME", "Time slice of rr (10); else the least run before a stop (0).")
]
RestartCost = Annotated[
    str, option("--restart-cost", "TIME", "Lost when a preempted job runs again; 7/30/60: 1, up to 8, more GPUs.")
]
Round = Annotated[str, option("--round", "TIME", "Plan only at multiples of this time (0: at every event).")]
PoolsFile = Annotated[
    str | None, option("--pools", "FILE", "CSV of virtual clusters (vc,node num): each job stays in its own.")
]
PoolBy = Annotated[str, option("--pool-by", "LABEL", "The label of a job that names its pool.")]
Engine = Annotated[str, option("--engine", "auto, kernel (compiled, for large traces) or replay (event by event).")]
Seed = Annotated[int, option("--seed", "Seed of all that is random.", min=0)]
Out = Annotated[Path | None, option("--out", "DIR", "Also write tables and plots there.", file_okay=False)]


@dataclass(frozen=True, slots=True)
class Setup:
    trace: TraceArg
    gpus: Gpus = None
    nodes: Nodes = None
    pools: PoolsFile = None
    pool_by: PoolBy = "vc"
    gpu_memory: GpuMemory = "16G"
    discipline: Discipline = None
    placement: Placement = None
    estimate: Estimate = None
    where: Where = None
    since: Since = None
    until: Until = None
    slice_: Slice = None
    quantum: Quantum = None
    restart_cost: RestartCost = "0"
    round_: Round = "0"
    engine: Engine = "auto"
    seed: Seed = 0
    format: Format = None

    def prepare(
        self, *, lenient: bool = False, without_gpus: bool = False, made: Callable[[], Trace] | None = None
    ) -> tuple[Trace, Cluster, Options]:
        """The jobs, the cluster and what else decides a schedule; mistakes are told before the trace is read.

        Jobs that want no GPU are left out, unless `without_gpus` says that they matter. What is `made` needs no file.
        """
        options = self._options(lenient)
        cluster, pools = self._cluster()
        given = (self.trace, self.format, self.where, self.since, self.until, self.slice_)
        jobs = made() if made is not None else load_trace(*given)
        if not without_gpus:
            jobs = jobs.with_gpus().by_arrival()
        if cluster is None:
            cluster = self._recorded(jobs)
        return jobs, cluster, replace(options, pools=pools)

    def _options(self, lenient: bool) -> Options:
        from gpuyard.core.policy import check_discipline, check_placement
        from gpuyard.sim.simulate import Options, check_engine, parse_restart_cost

        check_discipline(self.discipline)
        check_placement(self.placement)
        # Where nodes matter, jobs stay together.
        usual = "first" if self.nodes is None and self.pools is None else "consolidate"
        return Options(
            discipline=self.discipline,
            placement=self.placement or usual,
            estimate=self.estimate,
            quantum=None if self.quantum is None else _duration("--quantum", self.quantum),
            restart_cost=_given("--restart-cost", parse_restart_cost, self.restart_cost),
            round_length=_duration("--round", self.round_),
            seed=self.seed,
            engine=check_engine(self.engine),
            lenient=lenient,
        )

    def _cluster(self) -> tuple[Cluster | None, Pools | None]:
        from gpuyard.core.model import Cluster
        from gpuyard.sim.traces.nodes import read_cluster

        if sum(given is not None for given in (self.gpus, self.nodes, self.pools)) > 1:
            raise UserError("give one of --gpus, --nodes and --pools, not both")
        size = _given("--gpu-memory", parse_size, self.gpu_memory)
        if self.pools is not None:
            pools = _read_pools(self.pools, self.pool_by, size)
            return pools.cluster, pools
        if self.nodes is not None:
            return read_cluster(self.nodes, size), None
        if self.gpus is not None and self.gpus < 1:
            raise UserError(f"--gpus must be at least 1, not {self.gpus}")
        return (None if self.gpus is None else Cluster((self.gpus,), size)), None

    def _recorded(self, jobs: Trace) -> Cluster:
        from gpuyard.core.model import Cluster

        if jobs.capacity is None:
            raise UserError(f"{jobs.source} does not say how many GPUs there were; give --gpus 8 or --nodes 4x8")
        return Cluster((jobs.capacity,), parse_size(self.gpu_memory))


def fail_if_all_rejected(rows: Sequence[Mapping[str, Any]], examples: Sequence[tuple[str, str]]) -> None:
    """It is an error where no job could run in any of these simulations; what is known has been printed."""
    if not any(row["completed"] for row in rows) and any(row["rejected"] for row in rows):
        why = f": job {examples[0][0]} {examples[0][1]}" if examples else "; simulate one policy to see why"
        output.say(f"gpuyard: error: every job was rejected{why}")
        raise typer.Exit(1)


def command_line() -> str:
    return shlex.join(["gpuyard", *sys.argv[1:]])


def _duration(option: str, text: str) -> float:
    seconds = _given(option, parse_duration, text)
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{option} must be 0 or more, not {text}")
    return seconds


def _given(option: str, parse: Callable[[str], _Value], text: str) -> _Value:
    """The option's value; a mistake is reported with the option's name."""
    try:
        return parse(text)
    except UserError as error:
        raise UserError(str(error) if option in str(error) else f"{option}: {error}") from None


def _read_pools(path: str, label: str, memory: float) -> Pools:
    from gpuyard.sim.traces.nodes import read_pools
    from gpuyard.sim.virtual_clusters import Pools

    return Pools.of(read_pools(path), label, memory)
