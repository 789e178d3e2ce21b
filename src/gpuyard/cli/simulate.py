"""`gpuyard simulate`: one policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import options as o
from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.sim.result import Result


@shared
def simulate(
    setup: o.Setup,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="A name, as sjf, rr:quantum=5 or sjf@easy@pack, or file.py:function.",
        ),
    ] = "fcfs",
    inflate: Annotated[
        float | None,
        typer.Option(
            "--inflate",
            metavar="FACTOR",
            help="Fill the cluster: jobs arrive until they want FACTOR x its GPUs (1.3), and none leaves.",
        ),
    ] = None,
    json: Json = False,
    out: o.Out = None,
) -> None:
    """Run a trace under one policy, and tell how it went."""
    from gpuyard.sim.simulate import simulate as run

    jobs, cluster, options = setup.prepare(without_gpus=inflate is not None)
    if inflate is not None:
        if options.pools is not None:
            raise UserError("--inflate fills one cluster; leave out --pools")
        from gpuyard.cli.inflate import fill

        fill(jobs, cluster, policy, options.placement, inflate, setup.seed, json, out)
        return
    with output.progress_bar("simulating", [policy]) as bars:
        result, metrics = run(jobs, cluster, policy, options, progress=bars.get(policy))
    metrics = {"trace": jobs.source, "dropped": sum(jobs.dropped.values()), **metrics}
    if out is not None:
        from gpuyard.sim.writing import write_result

        write_result(result, metrics, out)
        output.say(f"wrote {out}/: jobs.csv, segments.csv, metrics.json and plots")
    if json:
        output.print_json(metrics)
    else:
        _print_one(metrics, result)


def _print_one(metrics: dict[str, Any], result: Result) -> None:
    from rich.table import Table

    settings = f"{metrics['discipline']}, {metrics['placement']}, estimates {metrics['estimate']}"
    table = Table(
        title=f"{metrics['policy']} on {output.where(metrics)} ({settings})",
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
        f"energy       {output.number(metrics['energy_kwh'])}{' kWh' if metrics['energy_kwh'] is not None else ''}",
        f"fairness     {output.number(metrics['fairness'])}",
        f"preemptions  {metrics['preemptions']:,}",
        f"speed        {metrics['jobs_per_second']:,.0f} jobs/s",
    ]
    print("\n".join(lines))
    examples = [(result.trace.ids[position], why) for position, why in list(result.rejected.items())[:3]]
    output.say_rejected(examples, len(result.rejected))
