"""Everything that can happen to a job, and to the cluster. State is a fold of these, and history is nothing else.

Every event says when (`at`, seconds on the driver's clock), and those of a job say which. Events that belong to one run
of a job carry its `attempt`, so that a late report of an earlier run can be told apart and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.core.model import Booking, Cluster, Request, Rules


@dataclass(frozen=True, slots=True)
class _JobEvent:
    at: float
    job: str


@dataclass(frozen=True, slots=True)
class _AttemptEvent(_JobEvent):
    attempt: int


@dataclass(frozen=True, slots=True)
class _ClusterEvent:
    at: float


@dataclass(frozen=True, slots=True)
class Submitted(_JobEvent):
    """A job entered the queue."""

    request: Request


@dataclass(frozen=True, slots=True)
class Edited(_JobEvent):
    """What a job asks for was changed; of a job on GPUs, all but what those depend on."""

    request: Request


@dataclass(frozen=True, slots=True)
class Rejected(_JobEvent):
    """A job was refused, because it can never run here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held(_JobEvent):
    """A waiting job was taken out of the running until it is released."""


@dataclass(frozen=True, slots=True)
class Released(_JobEvent):
    """A held job may be chosen again."""


@dataclass(frozen=True, slots=True)
class Cancelled(_JobEvent):
    """A job was given up before it was placed."""


@dataclass(frozen=True, slots=True)
class Chosen(_JobEvent):
    """A waiting job became the head that all others wait for; `shadow` is when it is due to fit."""

    shadow: float


@dataclass(frozen=True, slots=True)
class Promised(_JobEvent):
    """GPUs that others are being stopped on are kept for a waiting job."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unpromised(_JobEvent):
    """A promise was taken back: the job takes its chance again, like all others."""


@dataclass(frozen=True, slots=True)
class Placed(_AttemptEvent):
    """GPUs were taken for a job. Written before the launch, so that a crash cannot lose the intent."""

    gpus: tuple[int, ...]
    rule: str = ""
    """`history`, `cbp` or `pp`, if others asked for some of the memory that it is given; see `admission`."""


@dataclass(frozen=True, slots=True)
class Charged(_JobEvent):
    """A job that shares GPUs is counted with so much of each from now on, since it is expected to use no more."""

    memory: float
    """Bytes, at most what it asked for."""
    rule: str = ""
    """`history`, if what its like used is the evidence; `cbp` or `pp`, if it is to fit into what others leave."""
    why: str = ""
    """By what evidence; empty: it asked for as much."""


@dataclass(frozen=True, slots=True)
class Started(_AttemptEvent):
    """The job's process runs; its first `overhead` seconds bring no progress (restoring a checkpoint)."""

    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Renewed(_AttemptEvent):
    """A running job's time slice was over, and it was given another."""


@dataclass(frozen=True, slots=True)
class Preempted(_AttemptEvent):
    """A running job was stopped with its progress kept, and waits again."""


@dataclass(frozen=True, slots=True)
class Requeued(_AttemptEvent):
    """An attempt came to nothing (it never began, failed, or the machine went down), and the job waits again."""

    begin: float = 0.0
    """Not before this time."""


@dataclass(frozen=True, slots=True)
class Recalled(_AttemptEvent):
    """A job on GPUs was told to end: it was cancelled, its time is over, or others come first."""

    cause: str
    """How the job will have ended, `cancelled` or `timeout`; or `preempted`: it will wait again; or `oom`: it uses more
    of a GPU than it may, and will wait again as long as more memory can help; or `crowded`: it has memory that others
    asked for, and want now, and will wait again."""


@dataclass(frozen=True, slots=True)
class Spared(_AttemptEvent):
    """A job on GPUs that was told to end for others may go on: it could not be stopped."""


@dataclass(frozen=True, slots=True)
class Granted(_AttemptEvent):
    """Idle GPUs were lent to a running job that adapts, until somebody needs them. Plans do not see that."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reclaimed(_AttemptEvent):
    """A job was told to leave GPUs that it was lent; they are its own until it has, or its grace is over."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Returned(_AttemptEvent):
    """GPUs that a job was lent are nobody's again: it left them, or had to."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapted(_AttemptEvent):
    """A running job told what it decided, with the GPUs and the time that it has."""


@dataclass(frozen=True, slots=True)
class Exited(_AttemptEvent):
    """A job's process ended."""

    code: int | None = 0
    """Exit code as the shell has it; None where it cannot be known."""
    cause: str = ""
    """`cancelled`, `timeout`, `oom` or `interrupted` where that is why; else the code says how it went."""


@dataclass(frozen=True, slots=True)
class Opened(_ClusterEvent):
    """A driver took the yard over, with these GPUs."""

    cluster: Cluster
    gpus: tuple[str, ...] = ()
    """What identifies each GPU, by index."""


@dataclass(frozen=True, slots=True)
class PolicySet(_ClusterEvent):
    """From now on plans follow another policy, discipline or placement."""

    policy: str


@dataclass(frozen=True, slots=True)
class GpusWithdrawn(_ClusterEvent):
    """Nothing may be started on these GPUs until they are restored; what runs there goes on."""

    gpus: tuple[int, ...]
    cause: str
    """`foreign`: somebody else uses them; `unknown`: they do not answer; `shared`: somebody else uses a part of them,
    and shares may be started beside that, whole GPUs may not."""


@dataclass(frozen=True, slots=True)
class GpusRestored(_ClusterEvent):
    """GPUs may be used again."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryTaken(_ClusterEvent):
    """So much of each GPU is for no job that shares it: what is kept free, and what others use."""

    taken: tuple[float, ...]
    """Bytes, by GPU."""
    buffer: float = 0.0
    """How many of these are kept free, on every GPU."""


@dataclass(frozen=True, slots=True)
class HostTaken(_ClusterEvent):
    """So many CPU cores and bytes of a node's own memory are no job's of ours."""

    node: int
    cpus: float
    memory: float


@dataclass(frozen=True, slots=True)
class GpusDrained(_ClusterEvent):
    """Somebody wants these GPUs to be left alone until they are resumed; what runs there goes on."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpusResumed(_ClusterEvent):
    """GPUs that were drained may be used again."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Booked(_ClusterEvent):
    """GPUs were reserved for a time."""

    booking: Booking


@dataclass(frozen=True, slots=True)
class Unbooked(_ClusterEvent):
    """A reservation was given up."""

    name: str


@dataclass(frozen=True, slots=True)
class RulesSet(_ClusterEvent):
    """From now on GPUs are shared by these rules."""

    rules: Rules


@dataclass(frozen=True, slots=True)
class HarmMeasured(_ClusterEvent):
    """It was seen how much slower jobs of one kind run beside those of another on the same GPU."""

    sufferer: str
    beside: str
    """Kinds of jobs (`Request.kind`)."""
    slowdown: float
    """2: it takes twice as long as alone."""


WAIT_AGAIN = ("preempted", "oom", "crowded")
"""Causes for being told to end that need not be the end: others come on top."""

JobEvent = (
    Submitted | Edited | Rejected | Held | Released | Cancelled | Chosen | Promised | Unpromised | Charged | Placed
    | Started | Renewed | Preempted | Requeued | Recalled | Spared | Granted | Reclaimed | Returned | Adapted | Exited
)  # fmt: skip
YardEvent = (
    Opened | PolicySet | GpusWithdrawn | GpusRestored | MemoryTaken | HostTaken | GpusDrained | GpusResumed | Booked
    | Unbooked | RulesSet | HarmMeasured
)  # fmt: skip
Event = JobEvent | YardEvent
