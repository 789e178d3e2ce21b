"""Everything that can happen to a job, and to the cluster. State is a fold of these, and history is nothing else.

Every event says when (`at`, seconds on the driver's clock), and those of a job say which. Events that belong to one run
of a job carry its `attempt`, so that a late report of an earlier run can be ignored.
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
    """A waiting job may not be chosen until it is released."""


@dataclass(frozen=True, slots=True)
class Released(_JobEvent):
    """A held job may be chosen again."""


@dataclass(frozen=True, slots=True)
class Cancelled(_JobEvent):
    """A job was cancelled before it was placed."""


@dataclass(frozen=True, slots=True)
class Chosen(_JobEvent):
    """A waiting job became the head that all others wait for; `shadow` is when it is expected to fit."""

    shadow: float


@dataclass(frozen=True, slots=True)
class Promised(_JobEvent):
    """GPUs are kept for a waiting job while the jobs there are being stopped."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unpromised(_JobEvent):
    """A promise was taken back: the job competes again, like all others."""


@dataclass(frozen=True, slots=True)
class Placed(_AttemptEvent):
    """GPUs were taken for a job. Written before the launch, so that a crash cannot lose the intent."""

    gpus: tuple[int, ...]
    rule: str = ""  # `history`, `cbp` or `pp`, if others asked for some of the memory that it is given; see `admission`


@dataclass(frozen=True, slots=True)
class Charged(_JobEvent):
    """A job that shares GPUs is charged this much of each from now on, since it is expected to use no more."""

    memory: float  # bytes, at most what it asked for
    rule: str = ""
    """`history`, if the use of similar jobs is the evidence; `cbp` or `pp`, if it is to fit into what others leave."""
    why: str = ""  # by what evidence; empty: it asked for as much


@dataclass(frozen=True, slots=True)
class Started(_AttemptEvent):
    """The job's process runs; its first `overhead` seconds bring no progress (restoring a checkpoint)."""

    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Renewed(_AttemptEvent):
    """A running job's time slice was over, and it got another."""


@dataclass(frozen=True, slots=True)
class Preempted(_AttemptEvent):
    """A running job was stopped with its progress kept, and waits again."""


@dataclass(frozen=True, slots=True)
class Requeued(_AttemptEvent):
    """An attempt had no result (it never began, failed, or the machine went down), and the job waits again."""

    begin: float = 0.0  # not before this time


@dataclass(frozen=True, slots=True)
class Recalled(_AttemptEvent):
    """A job on GPUs must end: it was cancelled, its time is over, or others come first."""

    cause: str
    """How the job will have ended, `cancelled` or `timeout`; or `preempted`: it will wait again; or `oom`: it uses more
    of a GPU than it may, and will wait again as long as more memory can help; or `crowded`: it has memory that others
    asked for, and want now, and will wait again."""


@dataclass(frozen=True, slots=True)
class Spared(_AttemptEvent):
    """A job on GPUs that had to end for others may go on: it could not be stopped."""


@dataclass(frozen=True, slots=True)
class Granted(_AttemptEvent):
    """Idle GPUs were lent to a running job that adapts, until another job needs them. Plans do not see that."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reclaimed(_AttemptEvent):
    """A job must leave GPUs that it was lent; they are its own until it has left, or its grace is over."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Returned(_AttemptEvent):
    """GPUs that a job was lent are free again: it left them, or had to."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapted(_AttemptEvent):
    """A running job reported its decision, with the GPUs and the time that it has."""


@dataclass(frozen=True, slots=True)
class Exited(_AttemptEvent):
    """A job's process ended."""

    code: int | None = 0  # exit code as the shell has it; None where it cannot be known
    cause: str = ""  # `cancelled`, `timeout`, `oom` or `interrupted` where that is why; else the code says how it went


@dataclass(frozen=True, slots=True)
class Opened(_ClusterEvent):
    """A driver took over the queue, with these GPUs."""

    cluster: Cluster
    gpus: tuple[str, ...] = ()  # what identifies each GPU, by index


@dataclass(frozen=True, slots=True)
class PolicySet(_ClusterEvent):
    """From now on plans follow another policy, discipline or placement."""

    policy: str


@dataclass(frozen=True, slots=True)
class GpusWithdrawn(_ClusterEvent):
    """Nothing may be started on these GPUs until they are restored; what runs there goes on."""

    gpus: tuple[int, ...]
    cause: str
    """`foreign`: other processes use them; `unknown`: they do not answer; `shared`: other processes use a part of them,
    and shares may be started beside that, whole GPUs may not."""


@dataclass(frozen=True, slots=True)
class GpusRestored(_ClusterEvent):
    """GPUs may be used again."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryTaken(_ClusterEvent):
    """These bytes of each GPU are for no job that shares it: what is kept free, and what others use."""

    taken: tuple[float, ...]  # bytes, by GPU
    buffer: float = 0.0  # how many of these are kept free, on every GPU


@dataclass(frozen=True, slots=True)
class HostTaken(_ClusterEvent):
    """These CPU cores and bytes of a node's own memory are used by processes that are not our jobs."""

    node: int
    cpus: float
    memory: float


@dataclass(frozen=True, slots=True)
class GpusDrained(_ClusterEvent):
    """An operator drained these GPUs until they are resumed; what runs there goes on."""

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
    """A reservation was cancelled."""

    name: str


@dataclass(frozen=True, slots=True)
class RulesSet(_ClusterEvent):
    """From now on GPUs are shared by these rules."""

    rules: Rules


@dataclass(frozen=True, slots=True)
class HarmMeasured(_ClusterEvent):
    """The measured slowdown of jobs of one kind beside those of another on the same GPU."""

    sufferer: str
    beside: str  # kinds of jobs (`Request.kind`)
    slowdown: float  # 2: it takes twice as long as alone


@dataclass(frozen=True, slots=True)
class ClockSet(_ClusterEvent):
    """The time of day was set: the driver's clock gained these seconds on the time that passed, or lost them.

    What waits or runs was submitted, and began, as much later, or earlier, by the new time: its age is that of the time
    that passed.
    """

    by: float


WAIT_AGAIN = ("preempted", "oom", "crowded", "requeued")
"""Causes of a recall after which a job may wait again; a final cause overrides them."""

JobEvent = (
    Submitted | Edited | Rejected | Held | Released | Cancelled | Chosen | Promised | Unpromised | Charged | Placed
    | Started | Renewed | Preempted | Requeued | Recalled | Spared | Granted | Reclaimed | Returned | Adapted | Exited
)  # fmt: skip
ClusterEvent = (
    Opened | PolicySet | GpusWithdrawn | GpusRestored | MemoryTaken | HostTaken | GpusDrained | GpusResumed | Booked
    | Unbooked | RulesSet | HarmMeasured | ClockSet
)  # fmt: skip
Event = JobEvent | ClusterEvent
