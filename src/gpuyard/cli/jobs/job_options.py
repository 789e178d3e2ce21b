"""What a job can ask for:

options of submit, run, clone and edit, lines of a script, keys of a job file. An option that was not given is None,
so that one source can take precedence over another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_indices, parse_share, parse_signal

if TYPE_CHECKING:
    from gpuyard.api.types import Wishes

T = TypeVar("T", bound="Edits")

Gpus = Annotated[int | None, typer.Option("--gpus", "-g", "-G", min=1, metavar="N", help="How many GPUs (1).")]
From = Annotated[str | None, typer.Option("--from", metavar="0,1,3", help="Only on some of these GPUs.")]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory",
        metavar="SIZE|auto",
        help="Share GPUs: so much memory of each, as in 6G; auto: as measured before.",
    ),
]
OomRetries = Annotated[
    int | None,
    typer.Option(
        "--oom-retries", min=0, max=100, metavar="N", help="Run it again with more if GPU memory runs out (3)."
    ),
]
Cap = Annotated[bool | None, typer.Option("--cap/--no-cap", help="Tell its framework to keep to --gpu-memory (no).")]
SimulateUse = Annotated[
    str | None,
    typer.Option("--simulate-use", metavar="USE", help="What it uses of simulated GPUs: ramp:391M,713M,1045M."),
]
Mps = Annotated[
    bool | None, typer.Option("--mps/--no-mps", help="Let it share a GPU's cores through NVIDIA's MPS (no).")
]
ThreadPercentage = Annotated[
    float | None,
    typer.Option("--thread-percentage", min=1, max=100, metavar="P", help="With --mps: of the GPU's threads, at most."),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="[TIME|ARGS]", help="If its like is unknown, try it first (30s): 2m, '--epochs 2'."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", "-n", "--job-name", "-J", metavar="NAME", help="What to call the job (its program)."),
]
Priority = Annotated[float | None, typer.Option("--priority", metavar="P", help="Higher runs first (0).")]
TimeLimit = Annotated[
    str | None, typer.Option("--time", "--time-limit", "-t", metavar="TIME", help="End it after that, as in 90m.")
]
Estimate = Annotated[
    str | None, typer.Option("--estimate", metavar="TIME", help="How long it is likely to run, as in 1h.")
]
Directory = Annotated[
    str | None,
    typer.Option("--chdir", "-D", metavar="DIR", help="Where to run it (here; at a host, in your home there)."),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A word to find it by; may be repeated.")]
Requeue = Annotated[
    bool | None, typer.Option("--requeue/--no-requeue", help="Run it again if a reboot interrupts it (no).")
]
Hold = Annotated[bool | None, typer.Option("--hold", "-H", help="Queue it, but start it only after gpuyard release.")]
Grace = Annotated[
    str | None,
    typer.Option("--grace", metavar="TIME", help="From SIGTERM to SIGKILL when it is to end, as in 10s."),
]
Preemptible = Annotated[
    bool | None,
    typer.Option(
        "--preemptible/--no-preemptible", help="It may be stopped so that others can run, and waits again then (no)."
    ),
]
Adaptive = Annotated[
    bool | None,
    typer.Option(
        "--adaptive/--no-adaptive", help="It adapts: it may be lent idle GPUs, and be told to leave them (no)."
    ),
]
Signal = Annotated[
    str | None,
    typer.Option("--signal", metavar="NAME[@TIME]", help="What asks it to stop, and how long before it must (TERM)."),
]
Begin = Annotated[
    str | None, typer.Option("--begin", "-b", metavar="WHEN", help="Not before: 16:00, tomorrow, 'fri 14:00', +90m.")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="WHEN", help="When it should be done; the policy edf looks at it.")
]
Dependency = Annotated[
    str | None,
    typer.Option("--dependency", "-d", metavar="HOW:ID", help="Start it after others: afterok:12:13,afterany:NAME."),
]
Array = Annotated[
    str | None, typer.Option("--array", "-a", metavar="0-99%4", help="Run it so many times; %4: four at once.")
]
Retries = Annotated[
    int | None, typer.Option("--retries", min=0, max=1000, metavar="N", help="Run it again if it fails (0).")
]
RetryDelay = Annotated[
    str | None,
    typer.Option("--retry-delay", metavar="TIME", help="Before the first retry, then twice as long (30s)."),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write its output there; %j is its id, %a the task."),
]
Errors = Annotated[
    str | None, typer.Option("--error", "-e", metavar="FILE", help="Write its errors there (with its output).")
]
OpenMode = Annotated[
    str | None, typer.Option("--open-mode", metavar="MODE", help="append or truncate these files (truncate at first).")
]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable for it; may be repeated.")
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export", metavar="ALL|NONE|A,B=1", help="Which variables of this environment it gets (ALL; at a host, NONE)."
    ),
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        "--notify", metavar="NAME|URL|all|none", help="Who is told of it (all of gpuyard notify list); may be repeated."
    ),
]
NotifyOn = Annotated[
    str | None,
    typer.Option("--notify-on", metavar="EVENTS", help="Of what: start,finish,failure,timeout,long-wait,tasks."),
]
SlurmVariables = Annotated[
    bool | None,
    typer.Option(
        "--slurm-variables/--no-slurm-variables", help="Also give it SLURM_JOB_ID and such (if #SBATCH lines ask)."
    ),
]


@dataclass(frozen=True, slots=True)
class Edits:
    """What may also be changed later."""

    gpus: Gpus = None
    from_: From = None
    gpu_memory: GpuMemory = None
    name: Name = None
    priority: Priority = None
    time: TimeLimit = None
    estimate: Estimate = None
    begin: Begin = None
    deadline: Deadline = None
    dependency: Dependency = None
    tag: Tags = None
    retries: Retries = None
    retry_delay: RetryDelay = None
    grace: Grace = None
    preemptible: Preemptible = None
    adaptive: Adaptive = None
    signal: Signal = None
    requeue: Requeue = None
    output: Output = None
    error: Errors = None
    open_mode: OpenMode = None
    notify: Notify = None
    notify_on: NotifyOn = None
    oom_retries: OomRetries = None
    cap: Cap = None
    mps: Mps = None
    thread_percentage: ThreadPercentage = None
    profile: Profile = None
    simulate_use: SimulateUse = None

    def over(self: T, other: Edits) -> T:
        """These, and of the other ones what is not among these."""
        mine = {f.name for f in fields(self)}
        left = {f.name: getattr(other, f.name) for f in fields(other) if f.name in mine and not given(self, f.name)}
        return replace(self, **left)

    def wishes(self) -> Wishes:
        """What was given, as the client takes it; mistakes are told before anything is sent."""
        signal, notice = (None, None) if self.signal is None else parse_signal(self.signal)
        found: dict[str, Any] = {
            "name": self.name,
            "tags": self.tag or None,
            "gpus": self.gpus,
            "among": None if self.from_ is None else parse_indices(self.from_),
            "gpu_memory": _share(self.gpu_memory),
            "priority": self.priority,
            "estimate": duration("--estimate", self.estimate, none=False),
            "time_limit": duration("--time", self.time, none=False),
            "grace": duration("--grace", self.grace),
            "preemptible": self.preemptible,
            "adaptive": self.adaptive,
            "signal": signal,
            "notice": notice,
            "requeue": self.requeue,
            "begin": instant("--begin", self.begin),
            "deadline": instant("--deadline", self.deadline),
            "dependency": self.dependency,
            "retries": self.retries,
            "retry_delay": duration("--retry-delay", self.retry_delay),
            "output": self.output,
            "error": self.error,
            "open_mode": _mode(self.open_mode),
            "notify": self.notify or None,
            "notify_on": None if self.notify_on is None else self.notify_on.replace(",", " ").split(),
            "oom_retries": self.oom_retries,
            "cap": self.cap,
            "mps": self.mps,
            "thread_percentage": self.thread_percentage,
            "profile": self.profile,
            "simulate_use": self.simulate_use,
        }
        return {name: value for name, value in found.items() if value is not None}  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Options(Edits):
    """What may be asked for a new job."""

    chdir: Directory = None
    array: Array = None
    hold: Hold = None
    env: Env = None
    export: Export = None
    slurm_variables: SlurmVariables = None

    def wishes(self) -> Wishes:
        """What was given, as the client takes it."""
        found: dict[str, Any] = {"array": self.array, "hold": self.hold, "slurm": self.slurm_variables}
        given = {name: value for name, value in found.items() if value is not None}
        return {**Edits.wishes(self), **given}  # type: ignore[typeddict-item]

    def directory(self) -> str:
        """Where to run it."""
        directory = os.path.abspath(os.path.expanduser(self.chdir)) if self.chdir else os.getcwd()
        if not os.path.isdir(directory):
            raise UserError(f"there is no directory {directory}; give another --chdir")
        return directory

    def environment(self) -> dict[str, str]:
        """The variables that it gets."""
        return _exported(self.export or "ALL") | self._named()

    def variables(self) -> dict[str, str]:
        """Those that are named: all that a job elsewhere gets of this environment."""
        names = (part for part in (self.export or "").split(",") if part not in ("ALL", "NONE", "NIL"))
        return _exported_too(names) | self._named()

    def _named(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for item in self.env or ():
            name, equals, value = item.partition("=")
            if not name or not (equals or name in os.environ):
                raise UserError(f"--env {item} is not NAME=VALUE")
            found[name] = value if equals else os.environ[name]
        return found


_ALWAYS = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ")
"""Variables that a job gets also if it is to get none."""


def _exported(text: str) -> dict[str, str]:
    """The part of this environment that a text in Slurm's form names."""
    names = [part for part in text.split(",") if part]
    if not names or "ALL" in names:
        found = dict(os.environ)
    else:
        found = {name: os.environ[name] for name in _ALWAYS if name in os.environ}
    return found | _exported_too(names)


def _exported_too(names: Iterable[str]) -> dict[str, str]:
    """Variables that are named, each as it is here unless its value is given."""
    found: dict[str, str] = {}
    for part in names:
        name, equals, value = part.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def given(options: Edits, name: str) -> bool:
    """Whether an option was given; a list that may be repeated is empty if not."""
    value = getattr(options, name)
    return value is not None and value != [] and value != ()


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


def instant(option: str, text: str | None) -> float | None:
    """Seconds since the epoch, from what an option was given."""
    if text is None:
        return None
    import time

    from gpuyard.spec.times import format_when, parse_when

    now = time.time()
    at = parse_when(text, now)
    if option == "--deadline" and at <= now:
        raise UserError(f"--deadline {text} is in the past: {format_when(at, now)}")
    return at


def _share(text: str | None) -> int | str | None:
    return text if text in (None, "auto") else parse_share(text)


def _mode(text: str | None) -> str | None:
    if text not in (None, "append", "truncate"):
        raise UserError(f"--open-mode is append or truncate, not {text}")
    return text
