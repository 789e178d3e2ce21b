"""`gpuyard sweep`: vary one thing, and see what becomes of a metric."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import options as o
from gpuyard.cli import output
from gpuyard.cli.compare import Jobs, Policies, chosen_policies
from gpuyard.cli.sharing import Json, shared
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.sim.sweep import Axis, Sweep
    from gpuyard.sim.trace import Trace

DEFAULT = ["fcfs", "sjf", "srtf", "las"]


@shared
def sweep(
    setup: o.Setup,
    vary: Annotated[
        str, typer.Option("--vary", metavar="NAME=VALUES", help="load=0.5:1.5:0.1, gpus=64,128, las.queues=9/99,50 ...")
    ],
    policies: Policies = None,
    metric: Annotated[str, typer.Option("--metric", help="What to print and to draw; all metrics are written.")] = (
        "jct_mean"
    ),
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="Repeat what is random with N seeds; gives intervals.")
    ] = 1,
    jobs: Jobs = None,
    json: Json = False,
    out: o.Out = None,
) -> None:
    """Vary load, GPUs or a setting, and run the policies at every value (fcfs, sjf, srtf and las if none is named)."""
    from gpuyard.sim.sweep import check_metric, parse_axis
    from gpuyard.sim.sweep import sweep as run

    axis = parse_axis(vary)
    chosen = chosen_policies(policies or DEFAULT)
    check_metric(metric)
    trace, cluster, options = _first_point(setup, axis).prepare(lenient=True)
    with output.run_bar("simulating") as progress:
        found = run(trace, cluster, axis, chosen, options, seeds=seeds, jobs=jobs, progress=progress)
    if not found.rows:
        raise UserError(f"nothing could be simulated; {found.failures[0][1]}: {found.failures[0][2]}")
    document = _document(found, trace, metric)
    if out is not None:
        from gpuyard.sim.trends import write_sweep

        write_sweep(found, metric, output.plain(document), out)
        output.say(f"wrote {out}/: sweep.csv, sweep.json and the curve")
    if json:
        output.print_json(document)
    else:
        _print(found, trace, metric)
    _fail_if_any(found)


def _fail_if_any(found: Sweep) -> None:
    for value, policy, why in found.failures:
        output.say(f"gpuyard: error: {policy} at {found.axis.name}={_text(value)}: {why}")
    if found.failures:
        raise typer.Exit(1)


def _first_point(setup: o.Setup, axis: Axis) -> o.Setup:
    """Where the GPUs are varied, the first value stands for the option that is then not given."""
    if axis.name not in ("gpus", "nodes"):
        return setup
    if setup.gpus is not None or setup.nodes is not None:
        raise UserError(f"--vary {axis.name} says how many GPUs there are; leave out --gpus and --nodes")
    if setup.pools is not None:
        return setup  # refused further on, with the reason
    first = axis.texts[0]
    if axis.name == "nodes":
        return replace(setup, nodes=first.replace("+", ","))
    if not first.isdecimal() or int(first) < 1:
        raise UserError(f"--vary gpus takes whole numbers from 1 on, not {first}")
    return replace(setup, gpus=int(first))


def _document(found: Sweep, trace: Trace, metric: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "trace": trace.source,
        "vary": found.axis.name,
        "values": list(found.axis.values),
        "policies": found.policies,
        "metric": metric,
        "results": found.rows,
    }
    if found.failures:
        document["errors"] = [{"value": v, "policy": p, "error": why} for v, p, why in found.failures]
    return document


def _print(found: Sweep, trace: Trace, metric: str) -> None:
    from rich.table import Table

    from gpuyard.sim.plots import DURATIONS

    show = output.duration if metric in DURATIONS else output.percent if metric == "utilization" else output.number
    screen = output.console()
    screen.print(f"{metric} of {output.many(len(trace), 'job')} by {found.axis.name}")
    table = Table()
    table.add_column(found.axis.name)
    for policy in found.policies:
        table.add_column(policy, justify="right", overflow="fold")
    cells = {(row["value"], row["policy"]): _cell(row, metric, show) for row in found.rows}
    for value in found.axis.values:
        table.add_row(_text(value), *(cells.get((value, policy), "failed") for policy in found.policies))
    screen.print(table)


def _cell(row: dict[str, Any], metric: str, show: Any) -> str:
    ends = row.get(f"{metric}_ci")
    return str(show(row[metric])) if ends is None else f"{show(row[metric])} ± {show((ends[1] - ends[0]) / 2)}"


def _text(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else value
