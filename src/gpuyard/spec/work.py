"""`Work`: what a job runs, as the log keeps it. The numbers that a policy may know are in `core.model.Request`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """What a job runs, and how. Fields without a comment are described in `spec.fields`."""

    command: tuple[str, ...]
    directory: str
    environment: str = ""
    """Hash of the environment, which is stored separately."""
    name: str = ""
    tags: tuple[str, ...] = ()
    comment: str = ""
    time_limit: float | None = None
    grace: float = 10.0
    requeue: bool = False
    output_limit: int = 2**30
    umask: int = 0o022
    limits: tuple[str, ...] = ()
    """Resource limits (rlimits) of the submitter's processes, where they differ from the daemon's."""
    role: str = ""
    """The role that its own requests have at most; empty: that of its user. A job has it of the token it came by."""
    estimated: bool = True
    """Whether the user gave an estimate or a time limit; else a default is assumed."""
    kind: str = "job"
    """`job`: we run its command; `lease`: GPUs for a process that runs already."""
    task: int | None = None
    tasks: tuple[int, int, int] | None = None
    """Of an array: the number of tasks, and the smallest and the largest task number."""
    retries: int = 0
    retry_delay: float = 0.0
    signal: str = "TERM"
    notice: float = 0.0
    """Seconds from `signal` to the end, also before a time limit; 0: `grace`, and no signal before a limit."""
    output: str = ""
    """Empty: the daemon's own file."""
    error: str = ""
    """Empty: as `output`."""
    open_mode: str = ""
    """Empty: truncate at the first attempt, append at later ones."""
    shared: str = ""
    """Of a task: hash of what all tasks of its array have in common, which is stored separately, once."""
    script: str = ""
    """Hash of the script, which is stored separately like an environment."""
    attach: tuple[str, ...] = ()
    """What stands before the command while `gpuyard run` waits for it: see `client.attachment`."""
    slurm: bool = False
    notify: tuple[str, ...] = ()
    """Names of subscriptions, `#12` for a URL that is stored separately, `all` or `none`."""
    notify_on: tuple[str, ...] = ()
    """Empty: as each subscription says."""
    simulate_use: str = ""
    """Empty: it uses what was promised."""
    auto_memory: bool = False
    """Whether its share of a GPU follows from what similar jobs used."""
    asked_memory: float = 0.0
    """Bytes that its submitter asked for, if its share has changed since."""
    oom_retries: int = 0
    ooms: int = 0
    """How often it ran out of GPU memory."""
    blameless: int = 0
    """How often it ran out of GPU memory within its share, and was run again unchanged."""
    crowded: int = 0
    """How often it was stopped because others needed the memory that they had asked for."""
    cap: bool = False
    mps: bool = False
    thread_percentage: float = 0.0
    """0: all."""
    profile: str = ""
    profiles: str = ""
    """Of a profiling run: the signature of the job that it profiles."""
    signature: str = ""
    """Equal for jobs that are expected to use the same amount of a GPU."""
    likeness: str = ""
    """The same, without the content of its script."""
    predicted: tuple[float, float, str] | None = None
    """The last prediction: bytes, seconds (0: not known), and the evidence."""
    batch: tuple[str, str, str] | None = None
    """Its batch: id, name, and the key that tells that a file is the same."""
    row: tuple[int, int, float, float] | None = None
    """Its row in the batch's file, its wave, and the row's epochs and priority."""
    adaptive: bool = False
    refusals: tuple[tuple[int, str], ...] = ()
    """Of the first job of a batch: rows that can never run here, and why."""
    holder: tuple[int, int, str] | None = None
    """Of a lease: the process that holds it: its id, its start in clock ticks, and the machine's boot id."""
    requester: tuple[int, int, str] | None = None
    """Of a lease: the process that asked for it, where that is not its holder."""
    interactive: bool = False
    """Of a lease: whether an interactive shell holds it."""
    heartbeat: float = 0.0
    """Of a lease without a process here: seconds without a heartbeat that end it."""
    by_use: bool = False
    """Of such a lease: whether it ends when its GPUs were used and are free again."""
    watchmen: tuple[str, int] | None = None
    """Of a lease for a watchmen client: its mode, and how many GPUs it asked for."""

    def to_json(self) -> dict[str, Any]:
        """Only what is not the default."""
        return {name: value for name, default in DEFAULTS.items() if (value := getattr(self, name)) != default}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Work:
        return cls(**with_tuples(data))


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Work)}


def with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


_OWN = ("task", "shared", "environment", "script", "batch", "row", "refusals", "adaptive", "estimated")
"""What each task keeps for itself: queries on the store look at it."""


def common(work: Mapping[str, Any]) -> dict[str, Any]:
    """What the tasks of an array have in common, of the JSON of one."""
    return {name: value for name, value in work.items() if name not in _OWN}


def without(work: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """A task's JSON without what is shared; null stands for what the task does not have."""
    own = {name: value for name, value in work.items() if name not in shared or not _same(shared[name], value)}
    return own | {name: None for name in shared if name not in work}


def joined(own: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `without`."""
    lacks = [name for name in shared if own.get(name, "") is None]
    found = {**shared, **own}
    for name in lacks:
        del found[name]
    return found


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (isinstance(one, list | tuple) and tuple(one) == tuple(other or ())))
