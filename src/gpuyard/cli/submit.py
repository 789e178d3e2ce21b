"""`gpuyard submit`: queue a command."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_size

if TYPE_CHECKING:
    from gpuyard.client import Client, Wishes

Command = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND ARGS", show_default=False, help="What to run, after --.")
]
Gpus = Annotated[int, typer.Option("--gpus", "-g", min=1, metavar="N", help="How many GPUs.")]
From = Annotated[str | None, typer.Option("--from", metavar="0,1,3", help="Only on some of these GPUs.")]
GpuMemory = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="SIZE", help="Share GPUs: so much memory of each, as in 6G."),
]
Name = Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="What to call the job (its program).")]
Priority = Annotated[float, typer.Option("--priority", metavar="P", help="Higher runs first.")]
TimeLimit = Annotated[
    str | None, typer.Option("--time", "--time-limit", "-t", metavar="TIME", help="End it after that, as in 90m.")
]
Estimate = Annotated[
    str | None, typer.Option("--estimate", metavar="TIME", help="How long it is likely to run, as in 1h.")
]
Directory = Annotated[str | None, typer.Option("--chdir", "-D", metavar="DIR", help="Where to run it (here).")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A word to find it by; may be repeated.")]
Requeue = Annotated[bool, typer.Option("--requeue", help="Run it again if a reboot interrupts it.")]
Hold = Annotated[bool, typer.Option("--hold", help="Queue it, but start it only after gpuyard release.")]
Grace = Annotated[
    str | None,
    typer.Option("--grace", metavar="TIME", help="From SIGTERM to SIGKILL when it is to end, as in 10s."),
]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to run and what it needs: options of submit and of run."""

    command: Command = None
    gpus: Gpus = 1
    from_: From = None
    gpu_memory: GpuMemory = None
    name: Name = None
    priority: Priority = 0.0
    time: TimeLimit = None
    estimate: Estimate = None
    chdir: Directory = None
    tag: Tags = None
    requeue: Requeue = False
    hold: Hold = False
    grace: Grace = None

    def send(self, client: Client) -> str:
        """Queue it; the job's id. Mistakes are told before anything is sent."""
        return client.submit(self._words(), directory=self._directory(), **self._wishes())

    def _words(self) -> list[str]:
        words = list(self.command or ())
        if not words or not words[0]:
            raise UserError("there is no command to run; put it after --, as in: gpuyard submit -- python train.py")
        first = words[0]
        if any(blank in first for blank in " \t\n") and not os.path.exists(first) and shutil.which(first) is None:
            raise UserError(
                f"there is no program '{first}': write its words without quotes, as in: gpuyard submit -- {first}; "
                f"or let a shell read them: gpuyard submit -- sh -c '{first}'"
            )
        return words

    def _directory(self) -> str:
        directory = os.path.abspath(os.path.expanduser(self.chdir)) if self.chdir else os.getcwd()
        if not os.path.isdir(directory):
            raise UserError(f"there is no directory {directory}; give another --chdir")
        return directory

    def _wishes(self) -> Wishes:
        return {
            "name": self.name,
            "tags": self.tag or [],
            "gpus": self.gpus,
            "among": None if self.from_ is None else indices(self.from_),
            "gpu_memory": None if self.gpu_memory is None else int(parse_size(self.gpu_memory)),
            "priority": self.priority,
            "estimate": duration("--estimate", self.estimate, none=False),
            "time_limit": duration("--time", self.time, none=False),
            "grace": duration("--grace", self.grace),
            "requeue": self.requeue,
            "hold": self.hold,
        }


@shared
def submit(
    yard: Yard,
    request: Request,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the bare id.")] = False,
) -> None:
    """Queue a command and print its job's id."""
    job = request.send(yard.client())
    if json:
        output.print_json({"id": job})
    else:
        print(job)


def duration(option: str, text: str | None, *, none: bool = True) -> float | None:
    """Seconds, from what an option was given; whether it may be no time at all."""
    if text is None:
        return None
    seconds = parse_duration(text)
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{option} must be 0 or more, not {text}")
    if not seconds and not none:
        raise UserError(f"{option} must be more than 0; leave it out if there is none")
    return seconds


def indices(text: str) -> list[int]:
    """GPUs, from a list such as 0,1,3."""
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise UserError(f"--from {text} is not a list of GPUs; write their indices, as in 0,1,3") from None
