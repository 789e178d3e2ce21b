"""`gpuyard workload`: make traces up."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.options import GpuMemory, Seed
from gpuyard.errors import UserError
from gpuyard.units import parse_size

app = typer.Typer(help="Make up a workload.", no_args_is_help=True, rich_markup_mode=None)


class Kind(StrEnum):
    """The generators."""

    TASKS = "tasks"
    POISSON = "poisson"


@app.callback()
def _group() -> None:
    """Make up a workload."""


@app.command("generate")
def generate(
    kind: Annotated[
        Kind,
        typer.Option("--kind", help="tasks: three kinds of training tasks that share GPUs; poisson: a busy cluster."),
    ] = Kind.TASKS,
    jobs: Annotated[int | None, typer.Option("--jobs", help="How many (tasks: 40 to 50; poisson: 1000).")] = None,
    seed: Seed = 0,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="tasks: your own kinds and ranges, in TOML.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", help="poisson: GPUs that the load is meant for.")] = 64,
    load: Annotated[float, typer.Option("--load", help="poisson: demand as a share of those GPUs.")] = 0.8,
    gpu_memory: GpuMemory = "16G",
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to write it (stdout).")] = "-",
    to: Annotated[str | None, typer.Option("--to", help="gpuyard (CSV), jsonl or swf (by the file's ending).")] = None,
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
