"""`gpuyard compare`: several policies on the same trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import options as o
from gpuyard.cli import output
from gpuyard.cli.simulate import say_rejected
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.result import Result
    from gpuyard.sim.simulate import Options
    from gpuyard.sim.trace import Trace


@o.shared
def compare(
    setup: o.Setup,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policies", metavar="A,B,C", help="Which ones, by commas or spaces; may be repeated (all)."),
    ] = None,
    json: o.Json = False,
    out: o.Out = None,
) -> None:
    """Run the same trace under several policies, and rank them by mean completion time."""
    chosen = chosen_policies(policies)
    jobs, cluster, options = setup.prepare(lenient=True)
    runs = run_all(jobs, cluster, chosen, options)
    if out is not None:
        report = write_comparison(runs, jobs, out, o.command_line())
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
    say_rejected(runs[0][0])


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
