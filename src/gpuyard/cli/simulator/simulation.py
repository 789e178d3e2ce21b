"""`gpuyard simulate`: run a trace under one policy, or fill a cluster with its jobs (`--inflate`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import Json, option_groups
from gpuyard.cli.simulator import simulation_options as o
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.result import Result
    from gpuyard.sim.trace import Trace


def fill(
    jobs: Trace, cluster: Cluster, policy: str, placement: str, factor: float, seed: int, json: bool, out: Path | None
) -> None:
    """Run the experiment under a policy's placement; nothing else of the policy matters to it."""
    from gpuyard.policies.resolver import make_planner
    from gpuyard.sim.inflate import inflate

    chosen = make_planner(policy, placement=placement, lenient=True).placement
    with output.progress_bar("filling", [chosen]) as bars:
        facts = inflate(jobs, cluster, chosen, factor, seed, bars.get(chosen))
    facts = {"trace": jobs.source, "dropped": sum(jobs.dropped.values()), **facts}
    if out is not None:
        from gpuyard.sim.trace_plots import write_filling

        write_filling(facts, out)
        output.say(f"wrote {out}/: curve.csv, metrics.json and a plot")
    if json:
        output.print_json({name: value for name, value in facts.items() if name != "curve"})
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    lines = [
        f"filling {output.many(facts['gpus'], 'simulated GPU')} on {output.many(facts['nodes'], 'node')}, "
        f"placement {facts['placement']}, seed {facts['seed']}",
        f"arrived        {output.many(facts['arrived'], 'job')} that want {facts['demand']:.1f} % of the GPUs",
        f"placed         {facts['placed']:,}, and {facts['failed']:,} found no room",
        f"allocation     {facts['allocation']:.2f} % of the GPUs",
        f"fragmentation  {facts['fragmentation']:.2f} % of the GPUs: free, and of no use to the usual jobs",
    ]
    for name, title in (("cpu_allocation", "CPUs"), ("memory_allocation", "host memory")):
        if facts[name] is not None:
            lines.append(f"{title:<15}{facts[name]:.2f} % allocated")
    print("\n".join(lines))


@option_groups
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

        fill(jobs, cluster, policy, options.placement, inflate, setup.seed, json, out)
        return
    with output.progress_bar("simulating", [policy]) as bars:
        result, metrics = run(jobs, cluster, policy, options, progress=bars.get(policy))
    metrics = {"trace": jobs.source, "dropped": sum(jobs.dropped.values()), **metrics}
    if out is not None:
        from gpuyard.sim.result_files import write_result

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
