"""`gpuyard simulate`, `trace` and `workload`: run, inspect, convert and generate traces."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import Json, argument, option, option_groups
from gpuyard.cli.parser import command_group
from gpuyard.cli.simulator import simulation_options as o
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import parse_size

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.result import Result
    from gpuyard.sim.trace import Trace


def fill(
    jobs: Trace, cluster: Cluster, policy: str, placement: str, factor: float, seed: int, json: bool, out: Path | None
) -> None:
    """Fill the cluster with jobs; only the placement of the policy matters."""
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
        _print_filling(facts)


def _print_filling(facts: dict[str, Any]) -> None:
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
        str, option("--policy", "A name, as sjf, rr:quantum=5 or sjf@easy@pack, or file.py:function.")
    ] = "fcfs",
    inflate: Annotated[
        float | None,
        option(
            "--inflate",
            "FACTOR",
            "Fill the cluster: jobs arrive until they want FACTOR x its GPUs (1.3), and none leaves.",
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
    output.print_either(json, metrics, lambda: _print_one(metrics, result))
    o.fail_if_all_rejected([metrics], [(result.trace.ids[row], why) for row, why in result.rejected.items()][:1])


def _print_one(metrics: dict[str, Any], result: Result) -> None:
    from rich.table import Table

    settings = f"{metrics['discipline']}, {metrics['placement']}, estimates {metrics['estimate']}"
    table = Table(title=f"{metrics['policy']} on {output.where(metrics)} ({settings})", title_justify="left")
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
    if metrics["deadline_missed"] is not None:
        mean, most = (output.duration(metrics[f"tardiness_{key}"]) for key in ("mean", "max"))
        missed = f"{metrics['deadline_missed']:,} missed; tardiness {mean} on average, {most} at most"
        lines.insert(-1, f"deadlines    {missed}")
    print("\n".join(lines))
    examples = [(result.trace.ids[position], why) for position, why in list(result.rejected.items())[:3]]
    output.say_rejected(examples, len(result.rejected))


_SPARKS = "▁▂▃▄▅▆▇█"

trace_app = command_group("Look at a trace, or convert it.")


@trace_app.command("info")
def info(
    trace: o.TraceArg,
    gpus: Annotated[int | None, option("--gpus", "The load that this would be for N GPUs.", min=1)] = None,
    nodes: Annotated[str | None, option("--nodes", "4x8", "The same for these nodes.")] = None,
    where: o.Where = None,
    since: o.Since = None,
    until: o.Until = None,
    slice_: o.Slice = None,
    json: Json = False,
    out: Annotated[Path | None, option("--out", "DIR", "Also plot it there.", file_okay=False)] = None,
    format: o.Format = None,
) -> None:
    """Tell what a trace asks for: jobs, span, load, arrivals, run times, GPUs per job, users, labels."""
    from gpuyard.core.model import DEFAULT_GPU_MEMORY
    from gpuyard.sim.traces import describe
    from gpuyard.sim.traces.nodes import read_cluster

    if gpus is not None and nodes is not None:
        raise UserError("give --gpus or --nodes, not both")
    size = read_cluster(nodes, DEFAULT_GPU_MEMORY).gpus if nodes is not None else gpus
    jobs = o.load_trace(trace, format, where, since, until, slice_)
    facts = describe(jobs, size)
    if out is not None:
        from gpuyard.sim.trace_plots import write_plots

        names = write_plots(jobs, out, facts["capacity"])
        output.say(f"wrote {out}/: {', '.join(names)}, each as PNG and SVG")
    output.print_either(json, facts, lambda: _print_facts(facts))


def _print_facts(facts: dict[str, Any]) -> None:
    dropped = ", ".join(f"{count:,} {why}" for why, count in facts["dropped"].items())
    lines = [
        ("trace", f"{facts['source']} ({facts['format']})"),
        ("jobs", f"{facts['jobs']:,}" + (f" (dropped: {dropped})" if dropped else "")),
        ("users", f"{facts['users']:,}{_top(facts['top_users'], 3)}" if facts["users"] else "not said"),
        ("span", output.duration(facts["span_seconds"])),
        ("GPU time", output.duration(facts["gpu_seconds"])),
        ("demand", f"{facts['mean_gpus']:,.1f} GPUs on average"),
    ]
    if "first_date" in facts:
        lines.insert(4, ("submits", f"{facts['first_date']} to {facts['last_date']}"))
    if "load" in facts:
        lines.append(("load", f"{output.percent(facts['load'])} of {facts['capacity']:,} GPUs"))
    if facts["arrivals_per_hour"] is not None:
        lines.append(("arrivals", f"{facts['arrivals_per_hour']:,.1f} per hour"))
    run = facts["run"]
    lines.append(("run time", ", ".join(f"{name} {output.duration(run[name])}" for name in run)))
    if "requested_accuracy" in facts:
        lines.append(
            ("requests", f"jobs run {output.percent(facts['requested_accuracy'])} of what they ask, on average")
        )
    lines += [(name, f"{label['values']:,}{_top(label['top'], 4)}") for name, label in facts["labels"].items()]
    wide = max(9, *(len(name) for name, _ in lines))
    for name, value in lines:
        print(f"{name:<{wide}} {value}")
    _draw(facts)


def _top(counts: dict[str, int], most: int) -> str:
    """`: a (10), b (7), ...`, the most frequent first; nothing where each is there once."""
    if max(counts.values()) == 1:
        return ""
    short = [name if len(name) <= 24 else f"{name[:14]}…{name[-9:]}" for name in counts]
    pairs = list(zip(short, counts.values(), strict=True))[:most]
    shown = ", ".join(f"{name or '(empty)'} ({count:,})" for name, count in pairs)
    return f": {shown}{', ...' if len(counts) > most else ''}"


def _draw(facts: dict[str, Any]) -> None:
    step = facts["arrivals"]["step_seconds"]
    if step:
        print(f"Arrivals over time, each step {output.duration(step)}")
        print(f"  {_sparks(facts['arrivals']['counts'])}")
    if "arrivals_by_hour" in facts:
        print("Arrivals by hour of the day, UTC")
        print(f"  {'  '.join(_sparks(facts['arrivals_by_hour']))}")
        print(f"  {' '.join(f'{hour:<2}' for hour in range(24))}")
    print("Run times")
    _bars(facts["run_lengths"])
    print("GPUs per job")
    _bars(_grouped(facts["gpu_sizes"]))


def _sparks(counts: list[int]) -> str:
    """One small bar for each count; a blank for 0."""
    most = max(counts)
    return "".join(" " if not count else _SPARKS[(count * 8 - 1) // most if count < most else 7] for count in counts)


def _bars(counts: dict[str, int]) -> None:
    most = max(counts.values())
    for name, count in counts.items():
        bar = "█" * max(1, round(40 * count / most)) if count else ""
        print(f"  {name:>11} {bar:<40} {count:,}")


def _grouped(sizes: dict[int, int], most: int = 16) -> dict[str, int]:
    if len(sizes) <= most:
        return {str(size): count for size, count in sizes.items()}
    groups: dict[str, int] = {}
    for size, count in sizes.items():
        high = 1 << (size - 1).bit_length()
        name = str(size) if size <= 2 else f"{high // 2 + 1}-{high}"
        groups[name] = groups.get(name, 0) + count
    return groups


@trace_app.command("convert")
def convert(
    trace: o.TraceArg,
    target: Annotated[str, argument("TARGET", "Where to write it; - for stdout.")],
    to: Annotated[str | None, option("--to", "gpuyard (CSV), jsonl or swf; otherwise TARGET's ending decides.")] = None,
    where: o.Where = None,
    since: o.Since = None,
    until: o.Until = None,
    slice_: o.Slice = None,
    format: o.Format = None,
) -> None:
    """Write a trace in another format."""
    from gpuyard.sim.traces import write

    kept = o.load_trace(trace, format, where, since, until, slice_)
    write(kept, target, to or ("gpuyard" if target == "-" else None))
    if target != "-":
        output.say(f"wrote {output.many(len(kept), 'job')} to {Path(target)}")


workload_app = command_group("Make up a workload.")


class Kind(StrEnum):
    TASKS = "tasks"
    POISSON = "poisson"


@workload_app.command("generate")
def generate(
    kind: Annotated[
        Kind, option("--kind", "tasks: three kinds of training tasks that share GPUs; poisson: a busy cluster.")
    ] = Kind.TASKS,
    jobs: Annotated[int | None, option("--jobs", "How many (tasks: 40 to 50; poisson: 1000).")] = None,
    seed: o.Seed = 0,
    config: Annotated[Path | None, option("--config", "FILE", "tasks: your own kinds and ranges, in TOML.")] = None,
    gpus: Annotated[int, option("--gpus", "poisson: GPUs that the load is meant for.")] = 64,
    load: Annotated[float, option("--load", "poisson: demand as a share of those GPUs.")] = 0.8,
    gpu_memory: o.GpuMemory = "16G",
    out: Annotated[str, option("--out", "FILE", "Where to write it (stdout).")] = "-",
    to: Annotated[str | None, option("--to", "gpuyard (CSV), jsonl or swf (by the file's ending).")] = None,
) -> None:
    """Make up a seeded workload, as a trace that simulate and compare can read."""
    from gpuyard.sim.traces import write
    from gpuyard.sim.workload import generate_poisson, generate_tasks

    if kind is Kind.POISSON:
        if config is not None:
            raise UserError("--config is for --kind tasks")
        trace = generate_poisson(seed, jobs=1000 if jobs is None else jobs, gpus=gpus, load=load)
    else:
        trace = generate_tasks(seed, jobs=jobs, config=config, gpu_memory=parse_size(gpu_memory))
    write(trace, out, to or ("gpuyard" if out == "-" else None))
    if out != "-":
        output.say(f"wrote {output.many(len(trace), 'job')} to {out}")
