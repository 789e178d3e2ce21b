"""`Work`: what a job runs, as the log keeps it. The numbers that a policy may know are in `core.model.Request`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """What a job is to run, and how: all that its submitter said, but for what a policy looks at (`Request`)."""

    command: tuple[str, ...]
    directory: str
    environment: str = ""
    """Hash of the environment, which is kept by itself."""
    name: str = ""
    tags: tuple[str, ...] = ()
    time_limit: float | None = None
    """Seconds after which it is made to end."""
    grace: float = 10.0
    """Seconds between asking it to end and making it end."""
    requeue: bool = False
    """Whether it waits again if the machine goes down under it."""
    output_limit: int = 2**30
    umask: int = 0o022
    limits: tuple[str, ...] = ()
    """Limits of its submitter's processes, where they are not the daemon's own."""
    estimated: bool = True
    """Whether the user said how long it will run, if only by a time limit; else a default is assumed."""
    kind: str = "job"
    """`job`: we run its command; `lease`: GPUs for a process that runs already."""
    task: int | None = None
    """Its number in its array."""
    tasks: tuple[int, int, int] | None = None
    """How many tasks its array has, and the least and the greatest of their numbers."""
    retries: int = 0
    """How often it is run again if it fails."""
    retry_delay: float = 0.0
    """Seconds to wait before the first retry; twice as long before each that follows."""
    signal: str = "TERM"
    """What asks it to stop so that others can run."""
    notice: float = 0.0
    """Seconds from that signal to its end; it comes so long before its time limit, too. 0: as `grace`, and not so."""
    output: str = ""
    """The file that its output goes to, with patterns like %j; empty: ours."""
    error: str = ""
    """The file that its errors go to, if not where its output goes."""
    open_mode: str = ""
    """`append` or `truncate` these files; empty: truncate at the first attempt, append at later ones."""
    script: str = ""
    """Hash of the script that it runs, which is kept by itself like an environment."""
    slurm: bool = False
    """Whether it is given the variables that Slurm would give it."""
    notify: tuple[str, ...] = ()
    """Who is to be told of it: names of subscriptions, `#12` for a URL that is kept elsewhere, `all` or `none`."""
    notify_on: tuple[str, ...] = ()
    """Of what; empty: as each subscription says."""
    simulate_use: str = ""
    """What it uses of simulated GPUs, as in `ramp:391M,713M,1045M`; empty: what was promised."""
    auto_memory: bool = False
    """Whether its share of a GPU follows from what its like has used before."""
    asked_memory: float = 0.0
    """Bytes that its submitter asked for, if its share has become another one since."""
    oom_retries: int = 0
    """How often it is run again, with more memory, if it runs out of that of a GPU."""
    ooms: int = 0
    """How often that has happened."""
    blameless: int = 0
    """How often it did although it kept to its share, and was run again as it was."""
    crowded: int = 0
    """How often it was stopped because others wanted memory that they had asked for, and it was given."""
    cap: bool = False
    """Whether its framework is told to keep to its share."""
    mps: bool = False
    """Whether it is a client of MPS."""
    thread_percentage: float = 0.0
    """Of such a client: how much of the GPU's threads it may have; 0: all."""
    profile: str = ""
    """How it is to be tried out first if nothing is known of its like: for a time, or with other arguments."""
    profiles: str = ""
    """Of a job that tries another out: the signature of that one."""
    signature: str = ""
    """What it has in common with jobs that use as much of a GPU."""
    likeness: str = ""
    """The same, whatever its script holds by now."""
    predicted: tuple[float, float, str] | None = None
    """What it was expected to use when it was last told: bytes, seconds (0: not known), and by what evidence."""
    batch: tuple[str, str, str] | None = None
    """The batch that it is of: its id, its name, and what tells that a file is the same."""
    row: tuple[int, int, float, float] | None = None
    """Which row of the batch's file it is, in which wave, and the row's epochs and priority."""
    adaptive: bool = False
    """Whether it adapts to what it is granted: it may be lent idle GPUs, and told to leave them."""
    refusals: tuple[tuple[int, str], ...] = ()
    """Of the first job of a batch: rows that can never run here, and why."""
    holder: tuple[int, int, str] | None = None
    """Of a lease: the process that holds it: its id, its start in clock ticks, and the life of the machine."""
    requester: tuple[int, int, str] | None = None
    """Of a lease: the process that asked for it, where that is not its holder."""
    interactive: bool = False
    """Of a lease: whether a shell that somebody types in holds it."""
    heartbeat: float = 0.0
    """Of a lease without a process here: seconds without a sign of life that end it."""
    by_use: bool = False
    """Of such a lease: whether it lasts, once it is held, until its GPUs were used and are free again."""
    watchmen: tuple[str, int] | None = None
    """Of a lease that a watchmen client asked for: its mode, and how many GPUs it said it wants."""

    def to_json(self) -> dict[str, Any]:
        """Only what is not the default."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Work:
        """The work that `to_json` told of."""
        return cls(**with_tuples(data))


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Work)}


def with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Values as frozen classes have them: JSON knows lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
