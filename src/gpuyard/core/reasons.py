"""Why a job waits: "no" is data, with the numbers that made it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.core.usage.admission import Decision
from gpuyard.units import format_size

_WITHDRAWN = {"foreign": "in use by others", "unknown": "not answering", "drained": "drained"}


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of a GPU for those who share it, in bytes."""

    gpu: int
    left: float
    total: float
    buffer: float = 0.0  # kept free
    others: float = 0.0  # used by others than our jobs, or by these beyond what they asked for

    def __str__(self) -> str:
        taken = [
            f"{format_size(size)} {what}"
            for size, what in ((self.buffer, "kept free"), (self.others, "used by others"))
            if size
        ]
        rest = f" ({', '.join(taken)})" if taken else ""
        return f"GPU {self.gpu} has {format_size(self.left)} left of {format_size(self.total)}{rest}"


@dataclass(frozen=True, slots=True)
class Resources:
    """Not enough is free for the job now."""

    gpus: int
    idle: int
    expected_at: float | None = None  # when enough is expected to be free, where the discipline reserves for it
    withdrawn: Mapping[str, int] = field(default_factory=dict)  # how many GPUs cannot be used, by cause
    memory: float = 0.0  # bytes on each GPU, if it shares them
    room: Room | None = None  # the GPU with the most left for it, if none has enough
    asked: float = 0.0  # bytes that it asked for, if it is expected to need less; 0: what it needs is what it asked for
    usage: Decision | None = None  # why it may not have what others asked for and do not use, where that is looked at

    def __str__(self) -> str:
        if self.memory:
            where = "1 GPU" if self.gpus == 1 else f"each of {self.gpus} GPUs"
            rest = ", which is not free now" if self.room is None else f"; {self.room}"
            asked = f" (of the {format_size(self.asked)} asked for)" if self.asked else ""
            wants = f"needs {format_size(self.memory)}{asked} on {where}{rest}"
        else:
            wants = f"needs {self.gpus} GPU{'s' if self.gpus > 1 else ''}, {self.idle} idle"
            if self.gpus <= self.idle:
                wants += ", but not where it could use them"
        for cause, count in self.withdrawn.items():
            wants += f", {count} {_WITHDRAWN.get(cause, cause)}"
        if self.usage is not None:
            wants += f"; by usage: {self.usage.why}"
        return wants + (f"; expected to fit at {self.expected_at:g}" if self.expected_at is not None else "")


@dataclass(frozen=True, slots=True)
class Priority:
    """A job that goes first must start before this one may."""

    behind: str
    ahead: int  # how many waiting jobs go first

    def __str__(self) -> str:
        return f"waits behind job {self.behind} ({self.ahead} job{'s' if self.ahead > 1 else ''} ahead)"


@dataclass(frozen=True, slots=True)
class Reserved:
    """The job would fit, but would take what is reserved for one that goes first."""

    behind: str
    until: float

    def __str__(self) -> str:
        return f"would fit, but could delay job {self.behind}, due at {self.until:g}"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Other jobs must end first, or begin."""

    after: tuple[str, ...]  # which, and how, as in `Request.after`

    @property
    def jobs(self) -> list[str]:
        """The jobs alone."""
        return list(dict.fromkeys(dependency.partition(":")[2] for dependency in self.after))

    def __str__(self) -> str:
        waits = [
            f"job {job} to {_AFTER[how]}" for how, _, job in (dependency.partition(":") for dependency in self.after)
        ]
        more = f" and {len(waits) - 3} more" if len(waits) > 3 else ""
        return f"waits for {', '.join(waits[:3])}{more}"


_AFTER = {"ok": "succeed", "notok": "fail", "any": "end", "begun": "begin"}


@dataclass(frozen=True, slots=True)
class BeginTime:
    """It is not to start before a time."""

    at: float

    def __str__(self) -> str:
        return f"is not to start before {self.at:g}"


@dataclass(frozen=True, slots=True)
class ArrayLimit:
    """As many tasks of its array run as may."""

    array: str
    at_most: int

    def __str__(self) -> str:
        return f"waits for another task of array {self.array}, which runs {self.at_most} at once"


@dataclass(frozen=True, slots=True)
class Quota:
    """Its user, or its user's group, has as much as they may have."""

    who: str
    unit: str  # `GPUs` at once, or `GPU-hours` in seven days
    limit: float
    used: float
    wants: int

    def __str__(self) -> str:
        if self.unit == "GPUs":
            gpus = "GPU" if self.limit == 1 else "GPUs"
            return f"wants {self.wants}, and {self.who} may have {self.limit:g} {gpus} at once and has {self.used:g}"
        return f"waits, since {self.who} has used {self.used:.4g} of {self.limit:g} GPU-hours in the last seven days"


@dataclass(frozen=True, slots=True)
class Promise:
    """GPUs are kept for it; the jobs that run there, or have them on loan, are being asked to leave."""

    gpus: tuple[int, ...]

    def __str__(self) -> str:
        gpus = ", ".join(map(str, self.gpus))
        return f"is next on GPU {gpus}, as soon as the job that runs there has left"


@dataclass(frozen=True, slots=True)
class Reservation:
    """It would fit, but on GPUs that are reserved for others."""

    name: str
    begin: float
    end: float
    gpus: tuple[int, ...]
    unlimited: bool = False  # whether it does not say when it will have ended

    def __str__(self) -> str:
        which = ", ".join(map(str, self.gpus))
        gpus = f"GPUs {which} are" if len(self.gpus) > 1 else f"GPU {which} is"
        rest = ", and it has no time limit" if self.unlimited else ""
        return f"would fit, but {gpus} reserved ({self.name}) from {self.begin:g} to {self.end:g}{rest}"


@dataclass(frozen=True, slots=True)
class Harm:
    """It would fit, but beside a job that it would hurt, or that would hurt it."""

    gpu: int
    beside: str
    slowdown: float  # how many times as long the one that suffers more would take
    suffers: bool = True  # whether that is the one that waits

    def __str__(self) -> str:
        percent = f"{100 / self.slowdown:.0f} %"
        if self.suffers:
            return f"would fit on GPU {self.gpu}, but beside job {self.beside} it would run at {percent} of its speed"
        return f"would fit on GPU {self.gpu}, but job {self.beside} would run at {percent} of its speed beside it"


Reason = (
    Resources | Priority | Reserved | Dependency | BeginTime | ArrayLimit | Quota | Promise | Reservation | Harm
)  # fmt: skip
