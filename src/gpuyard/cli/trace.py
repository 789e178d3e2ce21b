"""`gpuyard trace`: look at a trace, or write it in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.options import Format, Json, Slice, TraceArg

app = typer.Typer(help="Look at a trace, or convert it.", no_args_is_help=True)


@app.command("info")
def info(trace: TraceArg, slice_: Slice = None, json: Json = False, format: Format = None) -> None:
    """Tell what a trace asks for: jobs, span, load, GPUs per job, users."""
    from gpuyard.sim.traces import describe, read

    jobs = read(trace, format)
    facts = describe(jobs if slice_ is None else jobs.slice(slice_))
    if json:
        output.print_json(facts)
    else:
        _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    dropped = ", ".join(f"{count:,} {why}" for why, count in facts["dropped"].items())
    lines = [
        ("trace", f"{facts['source']} ({facts['format']})"),
        ("jobs", f"{facts['jobs']:,}" + (f" (dropped: {dropped})" if dropped else "")),
        ("users", f"{facts['users']:,}" if facts["users"] else "not said"),
        ("span", output.duration(facts["span_seconds"])),
        ("GPU time", output.duration(facts["gpu_seconds"])),
        ("demand", f"{facts['mean_gpus']:,.1f} GPUs on average"),
    ]
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
    for name, value in lines:
        print(f"{name:<9} {value}")
    print("GPUs per job")
    sizes = _grouped(facts["gpu_sizes"])
    most = max(sizes.values())
    for size, count in sizes.items():
        print(f"  {size:>11} {'█' * max(1, round(40 * count / most)):<40} {count:,}")


def _grouped(sizes: dict[int, int], most: int = 16) -> dict[str, int]:
    """The histogram as it is, or by powers of two where it would fill the screen."""
    if len(sizes) <= most:
        return {str(size): count for size, count in sizes.items()}
    groups: dict[str, int] = {}
    for size, count in sizes.items():
        high = 1 << (size - 1).bit_length()
        name = str(size) if size <= 2 else f"{high // 2 + 1}-{high}"
        groups[name] = groups.get(name, 0) + count
    return groups


@app.command("convert")
def convert(
    trace: TraceArg,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where to write it; - for stdout.")],
    to: Annotated[
        str | None, typer.Option("--to", help="gpuyard (CSV), jsonl or swf; otherwise TARGET's ending decides.")
    ] = None,
    slice_: Slice = None,
    format: Format = None,
) -> None:
    """Write a trace in another format."""
    from gpuyard.sim.traces import read, write

    jobs = read(trace, format)
    kept = jobs if slice_ is None else jobs.slice(slice_)
    write(kept, target, to or ("gpuyard" if target == "-" else None))
    if target != "-":
        output.say(f"wrote {output.many(len(kept), 'job')} to {Path(target)}")
