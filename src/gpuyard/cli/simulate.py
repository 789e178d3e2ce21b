"""`gpuyard simulate` and `gpuyard compare`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.selecting import Format, Since, Slice, TraceArg, Until, Where, load_trace
from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_size

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.result import Result
    from gpuyard.sim.simulate import Options
    from gpuyard.sim.trace import Trace

Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", help="One node of N GPUs: only their number counts.")]
Nodes = Annotated[
    str | None,
    typer.Option("--nodes", metavar="4x8|FILE", help="4 nodes of 8 GPUs (4x8,2x4 mixes sizes), or a list of nodes."),
]
GpuMemory = Annotated[str, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of each GPU, for shares.")]
Discipline = Annotated[
    str | None,
    typer.Option(
        "--discipline", help="strict, commit, skip, easy, easy-shadow or conservative (strict; skip if preemptive)."
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement",
        help="first, pack, spread, consolidate, random, packing, clustering or fgd (first; consolidate with --nodes).",
    ),
]
Inflate = Annotated[
    float | None,
    typer.Option(
        "--inflate",
        metavar="FACTOR",
        help="Fill the cluster: jobs arrive until they want FACTOR x its GPUs (1.3), and none leaves.",
    ),
]
Estimate = Annotated[
    str | None,
    typer.Option(
        "--estimate", help="What policies know: actual, requested or noisy:S (requested if known, else actual)."
    ),
]
Quantum = Annotated[
    str | None,
    typer.Option("--quantum", metavar="TIME", help="Time slice of rr (10); else the least run before a stop (0)."),
]
RestartCost = Annotated[
    str, typer.Option("--restart-cost", metavar="SECONDS", help="Time lost whenever a preempted job runs again.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all that is random.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", file_okay=False, help="Also write tables and plots there.")
]


def simulate(
    trace: TraceArg,
    policy: Annotated[
        str, typer.Option("--policy", help="name[:key=value,...][@discipline[@placement]], or file.py:function.")
    ] = "fcfs",
    gpus: Gpus = None,
    nodes: Nodes = None,
    gpu_memory: GpuMemory = "16G",
    discipline: Discipline = None,
    placement: Placement = None,
    estimate: Estimate = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    slice_: Slice = None,
    quantum: Quantum = None,
    restart_cost: RestartCost = "0",
    seed: Seed = 0,
    inflate: Inflate = None,
    json: Json = False,
    out: Out = None,
    format: Format = None,
) -> None:
    """Run a trace under one policy, and tell how it went."""
    from gpuyard.sim.simulate import simulate as run

    options = _options(discipline, placement or _default_placement(nodes), estimate, quantum, restart_cost, seed)
    jobs, cluster = _load(
        (trace, format, where, since, until, slice_), gpus, nodes, gpu_memory, without_gpus=inflate is not None
    )
    if inflate is not None:
        from gpuyard.cli.inflate import fill

        fill(jobs, cluster, policy, options.placement, inflate, seed, json, out)
        return
    with output.progress_bar("simulating", [policy]) as bars:
        result, metrics = run(jobs, cluster, policy, options, progress=bars.get(policy))
    metrics = {"trace": jobs.source, "dropped": sum(jobs.dropped.values()), **metrics}
    if out is not None:
        from gpuyard.sim.writing import write_result

        write_result(result, metrics, out, plots=True)
        output.say(f"wrote {out}/: jobs.csv, segments.csv, metrics.json and plots")
    if json:
        output.print_json(metrics)
    else:
        _print_one(metrics, result)


def compare(
    trace: TraceArg,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policies", metavar="A,B,C", help="Which ones, by commas or spaces; may be repeated (all)."),
    ] = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    gpu_memory: GpuMemory = "16G",
    discipline: Discipline = None,
    placement: Placement = None,
    estimate: Estimate = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    slice_: Slice = None,
    quantum: Quantum = None,
    restart_cost: RestartCost = "0",
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    format: Format = None,
) -> None:
    """Run the same trace under several policies, and rank them by mean completion time."""
    options = _options(
        discipline, placement or _default_placement(nodes), estimate, quantum, restart_cost, seed, lenient=True
    )
    chosen = chosen_policies(policies)
    jobs, cluster = _load((trace, format, where, since, until, slice_), gpus, nodes, gpu_memory)
    runs = run_all(jobs, cluster, chosen, options)
    if out is not None:
        report = write_comparison(runs, jobs, out, command_line())
        output.say(f"wrote {report} and, for each policy, its schedule beside it")
    if json:
        rows = [metrics for _, metrics in runs]
        output.print_json({"trace": jobs.source, "gpus": cluster.gpus, "nodes": list(cluster.nodes), "results": rows})
    else:
        print_ranking(runs)


def chosen_policies(texts: list[str] | None) -> list[str]:
    """The policies to compare: those given, or all there are."""
    from gpuyard.core.policies import ALIASES, POLICIES
    from gpuyard.policyfile import resolve, split_list

    names = split_list(texts) if texts else [*POLICIES, *(name for name in ALIASES if name != "fifo")]
    if not names:
        raise UserError("--policies names no policy; gpuyard policies lists them")
    for name in names:
        resolve(name)
    return list(dict.fromkeys(names))


def run_all(
    jobs: Trace, cluster: Cluster, policies: list[str], options: Options
) -> list[tuple[Result, dict[str, Any]]]:
    """Each policy's schedule and metrics, the best mean completion time first."""
    from gpuyard.sim.simulate import simulate as run

    with output.progress_bar("simulating", policies) as bars:
        runs = [run(jobs, cluster, policy, options, progress=bars.get(policy)) for policy in policies]
    return sorted(runs, key=lambda r: (r[1]["jct_mean"] is None, r[1]["jct_mean"] or 0.0))


def write_comparison(runs: list[tuple[Result, dict[str, Any]]], jobs: Trace, out: Path, command: str) -> Path:
    """The report, the plots and every schedule; returns the report's path."""
    from gpuyard.sim.writing import write_comparison as write

    return write(runs, jobs, out, command)


def command_line() -> str:
    """The command that the user gave."""
    return shlex.join(["gpuyard", *sys.argv[1:]])


def _default_placement(nodes: str | None) -> str:
    return "first" if nodes is None else "consolidate"


def _options(
    discipline: str | None,
    placement: str,
    estimate: str | None,
    quantum: str | None,
    restart_cost: str,
    seed: int,
    lenient: bool = False,
) -> Options:
    from gpuyard.core.policy import check_discipline, check_placement
    from gpuyard.sim.simulate import Options

    check_discipline(discipline)
    check_placement(placement)
    cost = parse_duration(restart_cost)
    length = None if quantum is None else parse_duration(quantum)
    if cost < 0:
        raise UserError(f"--restart-cost must be 0 or more, not {restart_cost}")
    if length is not None and length < 0:
        raise UserError(f"--quantum must be 0 or more, not {quantum}")
    return Options(discipline, placement, estimate, length, cost, seed, lenient=lenient)


def _load(
    selection: tuple[str, str | None, list[str] | None, str | None, str | None, str | None],
    gpus: int | None,
    nodes: str | None,
    memory: str,
    without_gpus: bool = False,
) -> tuple[Trace, Cluster]:
    """The selected jobs (as `load_trace` takes them) and the cluster."""
    from gpuyard.core.model import Cluster
    from gpuyard.sim.cluster import read_cluster

    if gpus is not None and nodes is not None:
        raise UserError("give --gpus or --nodes, not both")
    if gpus is not None and gpus < 1:
        raise UserError(f"--gpus must be at least 1, not {gpus}")
    size = parse_size(memory)
    cluster = read_cluster(nodes, size) if nodes is not None else Cluster((gpus,), size) if gpus else None
    jobs = load_trace(*selection)
    if not without_gpus:
        jobs = jobs.with_gpus()
    if cluster is None:
        if jobs.capacity is None:
            raise UserError(f"{jobs.source} does not say how many GPUs there were; give --gpus 8 or --nodes 4x8")
        cluster = Cluster((jobs.capacity,), size)
    return jobs, cluster


def _print_one(metrics: dict[str, Any], result: Result) -> None:
    from rich.table import Table

    settings = f"{metrics['discipline']}, {metrics['placement']}, estimates {metrics['estimate']}"
    table = Table(
        title=f"{metrics['policy']} on {output.many(metrics['gpus'], 'simulated GPU')} ({settings})",
        title_justify="left",
    )
    for name in ("", "mean", "median", "p95", "p99", "max"):
        table.add_column(name, justify="left" if not name else "right")
    for name, title, show in (
        ("jct", "completion time", output.duration),
        ("wait", "waiting time", output.duration),
        ("slowdown", "bounded slowdown", output.number),
    ):
        table.add_row(title, *(show(metrics[f"{name}_{part}"]) for part in ("mean", "median", "p95", "p99", "max")))
    screen = output.console()
    screen.print(table)
    lines = [
        f"jobs         {metrics['completed']:,} of {metrics['jobs']:,} completed, {metrics['rejected']:,} rejected"
        + (f", {metrics['dropped']:,} dropped when reading" if metrics["dropped"] else ""),
        f"makespan     {output.duration(metrics['makespan'])}",
        f"utilization  {output.percent(metrics['utilization'])}",
        f"energy       {output.number(metrics['energy_kwh'])} kWh",
        f"fairness     {output.number(metrics['fairness'])}",
        f"preemptions  {metrics['preemptions']:,}",
        f"speed        {metrics['jobs_per_second']:,.0f} jobs/s",
    ]
    print("\n".join(lines))
    _say_rejected(result)


def _say_rejected(result: Result) -> None:
    for position, reason in list(result.rejected.items())[:3]:
        output.say(f"rejected: job {result.trace.ids[position]} {reason}")
    if len(result.rejected) > 3:
        output.say(f"rejected: {len(result.rejected) - 3:,} more")


def print_ranking(runs: list[tuple[Result, dict[str, Any]]]) -> None:
    """The table of a comparison, the best mean completion time first; a narrow screen gets fewer columns."""
    from rich.table import Table

    screen = output.console()
    wide = screen.width >= 135
    first = runs[0][1]
    gpus = output.many(first["gpus"], "simulated GPU")
    title = f"{output.many(first['jobs'], 'job')} on {gpus}, estimates {first['estimate']}"
    table = Table(title=title, title_justify="left")
    table.add_column("policy", overflow="fold", min_width=14)
    shown = [column for column in _RANKING if wide or not column[3]]
    for head, *_ in shown:
        table.add_column(head, justify="right", no_wrap=True)
    for _, row in runs:
        row = row | {"where": f"{row['discipline']}@{row['placement']}"}
        table.add_row(row["policy"], *(show(row[key]) for _, key, show, _ in shown))
    screen.print(table)
    _say_rejected(runs[0][0])


_RANKING: tuple[tuple[str, str, Callable[[Any], str], bool], ...] = (
    ("discipline", "where", str, True),
    ("JCT mean", "jct_mean", output.duration, False),
    ("JCT p99", "jct_p99", output.duration, True),
    ("wait mean", "wait_mean", output.duration, False),
    ("wait max", "wait_max", output.duration, False),
    ("slowdown", "slowdown_mean", output.number, False),
    ("makespan", "makespan", output.duration, True),
    ("util", "utilization", output.percent, False),
    ("fairness", "fairness", output.number, True),
    ("kWh", "energy_kwh", output.number, True),
    ("preempt.", "preemptions", "{:,}".format, True),
)
"""Heading, metric, how to show it, and whether only a wide screen has room for it."""
