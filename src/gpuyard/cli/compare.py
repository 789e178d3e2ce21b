"""`gpuyard compare`: several policies on the same trace."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import options as o
from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.compare import Comparison
    from gpuyard.sim.simulate import Options
    from gpuyard.sim.trace import Trace

Policies = Annotated[
    list[str] | None,
    typer.Option("--policies", metavar="A,B,C", help="Which ones, by commas or spaces; may be repeated (all)."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", help="Simulate N policies at a time (all CPUs).")]


@shared
def compare(
    setup: o.Setup,
    policies: Policies = None,
    jobs: Jobs = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="Repeat what is random with N seeds; gives intervals.")
    ] = 1,
    windows: Annotated[
        int, typer.Option("--windows", metavar="N", help="Cut the trace by time into N, run each; gives intervals.")
    ] = 1,
    json: Json = False,
    out: o.Out = None,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="With --out: also write every policy's jobs.csv and segments.csv.")
    ] = False,
) -> None:
    """Run the same trace under several policies, and rank them by mean completion time."""
    if schedules and out is None:
        raise UserError("--schedules needs a place for the schedules; give --out DIR")
    chosen = chosen_policies(policies)
    trace, cluster, options = setup.prepare(lenient=True)
    found = run_all(
        trace, cluster, chosen, options, jobs=jobs, seeds=seeds, windows=windows, schedules=out if schedules else None
    )
    if out is not None:
        report = write_comparison(found, trace, out, o.command_line())
        output.say(f"wrote {report}, and its plots and numbers beside it")
    if json:
        output.print_json(_document(found, trace))
    else:
        print_ranking(found)
    fail_if_any(found)


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


def run_all(trace: Trace, cluster: Cluster, policies: list[str], options: Options, **how: Any) -> Comparison:
    """Compare with a progress bar; it is an error if no policy can be simulated at all."""
    from gpuyard.sim.compare import compare as run

    with output.run_bar("simulating") as progress:
        found = run(trace, cluster, policies, options, progress=progress, **how)
    if not found.summaries:
        policy, why = next(iter(found.failures.items()))
        raise UserError(why if len(policies) == 1 else f"no policy could be simulated; {policy}: {why}")
    return found


def write_comparison(found: Comparison, trace: Trace, out: Path, command: str) -> Path:
    """The report, the plots and the numbers; returns the report's path."""
    from gpuyard.sim.writing import write_comparison as write

    return write(found, trace, out, command, when=datetime.now(UTC))


def fail_if_any(found: Comparison) -> None:
    """End with a message for each policy that failed, and a code that says so."""
    for policy, why in found.failures.items():
        output.say(f"gpuyard: error: {policy}: {why}")
    if found.failures:
        raise typer.Exit(1)


def _document(found: Comparison, trace: Trace) -> dict[str, Any]:
    document: dict[str, Any] = {
        "trace": trace.source,
        "gpus": found.cluster.gpus,
        "nodes": list(found.cluster.nodes),
        "results": found.rows,
    }
    if found.repeated:
        document["runs"] = {"seeds": found.seeds, "windows": len(found.windows)}
    if found.failures:
        document["errors"] = [{"policy": policy, "error": why} for policy, why in found.failures.items()]
    return document


def print_ranking(found: Comparison) -> None:
    """The table of a comparison, the best mean completion time first; a narrow screen gets fewer columns."""
    from rich.table import Table

    screen = output.console()
    first = found.rows[0]
    title = f"{output.many(first['jobs'], 'job')} on {output.where(first)}, estimates {first['estimate']}"
    if len(found.windows) > 1:
        title += f"; means over {len(found.windows)} windows, ± 95 % confidence"
    elif found.seeds > 1:
        title += f"; means over {found.seeds} seeds of what is random, ± 95 % confidence"
    table = Table(title=title, title_justify="left")
    table.add_column("policy", overflow="fold", min_width=_LEAST_POLICY)
    columns = _fitting(_columns(found), screen.width)
    for head in columns:
        table.add_column(head, justify="left" if head == "discipline" else "right", no_wrap=True)
    for position, row in enumerate(found.rows):
        table.add_row(row["policy"], *(cells[position] for cells in columns.values()))
    screen.print(table)
    best = found.summaries[0]
    output.say_rejected(best.rejected, best.metrics["rejected"])


def _columns(found: Comparison) -> dict[str, list[str]]:
    """The cells of every column, by its heading."""
    rows = [row | {"where": f"{row['discipline']}@{row['placement']}"} for row in found.rows]
    return {
        head: [_cell(row, key, show) for row in rows]
        for head, key, show in _RANKING
        if head != "vs best" or found.repeated
    }


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """The columns that a screen has room for beside the policies; the first of `_SPARED` go first."""
    shown = dict(columns)
    for head in _SPARED:
        if _LEAST_POLICY + 4 + sum(3 + max(len(head), *map(len, cells)) for head, cells in shown.items()) <= width:
            break
        shown.pop(head, None)
    return shown


def _cell(row: dict[str, Any], key: str, show: Callable[[Any], str]) -> str:
    ends = row.get(f"{key}_ci") if key in _WITH_INTERVAL else None
    return show(row.get(key)) if ends is None else f"{show(row[key])} ± {show((ends[1] - ends[0]) / 2)}"


_WITH_INTERVAL = ("jct_mean", "jct_mean_diff")
"""Others have theirs in the JSON and in the report: a screen is only so wide."""

_RANKING: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("discipline", "where", str),
    ("JCT mean", "jct_mean", output.duration),
    ("vs best", "jct_mean_diff", output.duration),
    ("JCT p99", "jct_p99", output.duration),
    ("wait mean", "wait_mean", output.duration),
    ("wait max", "wait_max", output.duration),
    ("slowdown", "slowdown_mean", output.number),
    ("makespan", "makespan", output.duration),
    ("util", "utilization", output.percent),
    ("fairness", "fairness", lambda value: "-" if value is None else f"{value:.3f}"),
    ("kWh", "energy_kwh", output.number),
    ("preempt.", "preemptions", "{:,.0f}".format),
)
"""Heading, metric, and how to show it."""
_SPARED = (
    "kWh", "preempt.", "makespan", "fairness", "JCT p99", "discipline", "wait max", "util", "slowdown", "wait mean",
)  # fmt: skip
"""What a screen can do without, the first first."""
_LEAST_POLICY = 14
