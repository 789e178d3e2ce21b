"""`gpuyard policies`, `compare` and `sweep`: list, check and compare policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import Json, argument, option, option_groups
from gpuyard.cli.parser import command_group
from gpuyard.cli.simulator import simulation_options as o
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import format_interval

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.compare import Comparison
    from gpuyard.sim.simulate import Options
    from gpuyard.sim.sweep import Axis, Sweep
    from gpuyard.sim.trace import Trace


policies_app = command_group("List the policies, or check your own.", invoke_without_command=True)


@policies_app.callback()
def policies(
    context: typer.Context, json: Annotated[bool, option("--json", "Print JSON instead of tables.")] = False
) -> None:
    """List the policies, disciplines and placements, or check your own."""
    if context.invoked_subcommand is not None:
        return
    from gpuyard.core.columns import COLUMNS
    from gpuyard.core.loops.backfill import DISCIPLINES
    from gpuyard.core.policies import ALIASES, POLICIES
    from gpuyard.core.policy import PLACEMENT_DOCS

    if json:
        output.print_json(
            {
                "policies": [
                    {
                        "name": p.name,
                        "doc": p.doc,
                        "columns": list(p.columns),
                        "settings": dict(p.defaults) | ({"quantum": p.quantum} if p.preemptive else {}),
                        "preemptive": p.preemptive,
                    }
                    for p in POLICIES.values()
                ],
                "aliases": {name: text for name, (text, _) in ALIASES.items()},
                "disciplines": DISCIPLINES,
                "placements": PLACEMENT_DOCS,
                "columns": {name: column.doc for name, column in COLUMNS.items()},
            }
        )
        return
    rows = [
        (p.name, p.doc, ", ".join([*p.defaults, *(["quantum"] if p.preemptive else [])])) for p in POLICIES.values()
    ]
    _policies_table("Policies (a name, or name:setting=value,...)", ("name", "order", "settings"), rows)
    _policies_table("Other names", ("name", "stands for", "meaning"), [(n, t, m) for n, (t, m) in ALIASES.items()])
    _policies_table("Disciplines (policy@discipline)", ("name", "who may go ahead"), list(DISCIPLINES.items()))
    _policies_table("Placements (policy@discipline@placement)", ("name", "which GPUs"), list(PLACEMENT_DOCS.items()))
    columns = [(c.name, c.doc, c.changes) for c in COLUMNS.values()]
    _policies_table("Columns (what a policy of your own may ask for)", ("name", "meaning", "changes"), columns)


def _policies_table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for n, head in enumerate(heads):
        table.add_column(head, no_wrap=n == 0)
    for row in rows:
        table.add_row(*row)
    output.console().print(table)


@policies_app.command("check")
def check(policy: Annotated[str, argument("POLICY", "Usually ./mine.py:my_policy.")]) -> None:
    """Try a policy on ordinary queues and on the edges, and tell what is wrong with it."""
    from gpuyard.core.check import check_policy
    from gpuyard.policies.resolver import make_planner

    found = make_planner(policy).policy
    problems = check_policy(found)
    for problem in problems:
        print(f"{policy}: {problem}")
    if problems:
        raise typer.Exit(1)
    kind = "preemptive" if found.preemptive else "not preemptive"
    print(f"{policy}: fine ({kind}; columns: {', '.join(found.columns)}; ranks change: {found.changes})")


Policies = Annotated[
    list[str] | None, option("--policies", "A,B,C", "Which ones, by commas or spaces; may be repeated (all).")
]
Jobs = Annotated[int | None, option("--jobs", "N", "Simulate N policies at a time (all CPUs).")]


@option_groups
def compare(
    setup: o.Setup,
    policies: Policies = None,
    jobs: Jobs = None,
    seeds: Annotated[int, option("--seeds", "N", "Repeat what is random with N seeds; gives intervals.")] = 1,
    windows: Annotated[int, option("--windows", "N", "Cut the trace by time into N, run each; gives intervals.")] = 1,
    json: Json = False,
    out: o.Out = None,
    schedules: Annotated[
        bool, option("--schedules", "With --out: also write every policy's jobs.csv and segments.csv.")
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
    output.print_either(json, _document(found, trace), lambda: print_ranking(found))
    fail_if_any(found)
    o.fail_if_all_rejected(found.rows, found.summaries[0].rejected)


def chosen_policies(texts: list[str] | None) -> list[str]:
    from gpuyard.core.policies import ALIASES, POLICIES
    from gpuyard.policies.resolver import resolve, split_list

    names = split_list(texts) if texts else [*POLICIES, *(name for name in ALIASES if name != "fifo")]
    if not names:
        raise UserError("--policies names no policy; gpuyard policies lists them")
    for name in names:
        resolve(name)
    return list(dict.fromkeys(names))


def run_all(trace: Trace, cluster: Cluster, policies: list[str], options: Options, **how: Any) -> Comparison:
    """Compare with a progress bar; it is an error if no policy can be simulated."""
    from gpuyard.sim.compare import compare as run

    with output.run_bar("simulating") as progress:
        found = run(trace, cluster, policies, options, progress=progress, **how)
    if not found.summaries:
        policy, why = next(iter(found.failures.items()))
        raise UserError(why if len(policies) == 1 else f"no policy could be simulated; {policy}: {why}")
    return found


def write_comparison(found: Comparison, trace: Trace, out: Path, command: str) -> Path:
    """Write the report, plots and numbers; returns the report's path."""
    from gpuyard.sim.result_files import write_comparison as write

    return write(found, trace, out, command, when=datetime.now(UTC))


def fail_if_any(found: Comparison) -> None:
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
    """The ranking by mean completion time; a narrow screen gets fewer columns."""
    from rich.table import Table

    screen = output.console()
    first = found.rows[0]
    title = f"{output.many(first['jobs'], 'job')} on {output.where(first)}, estimates {first['estimate']}"
    if found.repeated:
        several = len(found.windows) > 1
        title += (
            f"; means over {f'{len(found.windows)} windows' if several else f'{found.seeds} seeds of what is random'}"
        )
        title += ", ± 95 % confidence" if found.with_intervals else ", too few for confidence intervals"
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
    rows = [row | {"where": f"{row['discipline']}@{row['placement']}"} for row in found.rows]
    return {
        head: [_cell(row, key, show, key in _WITH_INTERVAL) for row in rows]
        for head, key, show in _RANKING
        if (head != "vs best" or found.repeated)
        and (head not in ("missed", "tardiness") or any(row[key] is not None for row in rows))
    }


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """The columns that fit on the screen; the first of `_SPARED` go first."""
    shown = dict(columns)
    for head in _SPARED:
        if _LEAST_POLICY + 4 + sum(3 + max(len(head), *map(len, cells)) for head, cells in shown.items()) <= width:
            break
        shown.pop(head, None)
    return shown


def _cell(row: dict[str, Any], key: str, show: Callable[[Any], str], interval: bool = True) -> str:
    ends = row.get(f"{key}_ci") if interval else None
    text = show(row.get(key))
    return text if ends is None else f"{text} {format_interval(row[key], ends, show, share=show is output.percent)}"


_WITH_INTERVAL = ("jct_mean", "jct_mean_diff")  # the intervals of others are in the JSON and in the report

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
    ("missed", "deadline_missed", lambda value: "-" if value is None else f"{value:,.0f}"),
    ("tardiness", "tardiness_mean", output.duration),
)
"""Heading, metric, and how to show it."""
_SPARED = (
    "kWh", "preempt.", "makespan", "fairness", "JCT p99", "discipline", "wait max", "util", "tardiness", "slowdown",
    "missed", "wait mean",
)  # fmt: skip
"""Columns that a narrow screen does without, in this order."""
_LEAST_POLICY = 14


DEFAULT = ["fcfs", "sjf", "srtf", "las"]


@option_groups
def sweep(
    setup: o.Setup,
    vary: Annotated[str, option("--vary", "NAME=VALUES", "load=0.5:1.5:0.1, gpus=64,128, las.queues=9/99,50 ...")],
    policies: Policies = None,
    metric: Annotated[str, option("--metric", "What to print and to draw; all metrics are written.")] = ("jct_mean"),
    seeds: Annotated[int, option("--seeds", "N", "Repeat what is random with N seeds; gives intervals.")] = 1,
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
    document = _sweep_document(found, trace, metric)
    if out is not None:
        from gpuyard.sim.trace_plots import write_sweep

        write_sweep(found, metric, output.plain(document), out)
        output.say(f"wrote {out}/: sweep.csv, sweep.json and the curve")
    output.print_either(json, document, lambda: _print_sweep(found, trace, metric))
    _fail_if_any_point(found)
    o.fail_if_all_rejected(found.rows, ())


def _fail_if_any_point(found: Sweep) -> None:
    for value, policy, why in found.failures:
        output.say(f"gpuyard: error: {policy} at {found.axis.name}={_text(value)}: {why}")
    if found.failures:
        raise typer.Exit(1)


def _first_point(setup: o.Setup, axis: Axis) -> o.Setup:
    """If GPUs are varied, the first value stands for the option that is not given."""
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


def _sweep_document(found: Sweep, trace: Trace, metric: str) -> dict[str, Any]:
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


def _print_sweep(found: Sweep, trace: Trace, metric: str) -> None:
    from rich.table import Table

    from gpuyard.sim.schedule_plots import DURATIONS

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


def _text(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else value
