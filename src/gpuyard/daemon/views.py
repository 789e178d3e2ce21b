"""What the log says of a job, in the form that people ask for it: a fold over its events, one view per job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuyard.core.events import (
    WAIT_AGAIN,
    Adapted,
    Cancelled,
    Edited,
    Exited,
    Granted,
    Held,
    Placed,
    Preempted,
    Recalled,
    Released,
    Requeued,
    Started,
    Submitted,
)
from gpuyard.core.model import Phase, Request
from gpuyard.daemon.energy import totals
from gpuyard.daemon.journal import Record, finite, with_tuples

_LONGEST = 200  # characters of a job's own reason that its line shows


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


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it stands."""

    number: int
    id: str
    name: str
    user: str
    state: str
    submitted: float
    priority: float
    work: Mapping[str, Any] = field(default_factory=dict)
    """`Work`, and the numbers of the request, as JSON has them."""
    attempt: int = 0
    gpus: tuple[int, ...] = ()
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    message: str = ""
    recalled: str = ""
    kind: str = "job"
    array: str = ""
    failures: int = 0
    """Attempts that failed and were followed by a retry."""
    preemptions: int = 0
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What the last attempt used, once it is over: peak, mean, samples, period, seconds, utilization, alone; what all
    of them took together; and where usage counts by what the latest one was let in (`admission`)."""

    @property
    def over(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.ended is not None


def fold_view(view: JobView | None, number: int, record: Record) -> JobView | None:
    """The view of a job after one more event; None while there is none."""
    event, details = record.event, record.details
    if isinstance(event, Submitted):
        return _new(number, event, details)
    if view is None:
        return None
    if isinstance(event, Edited):
        return _edited(view, event, details)
    if isinstance(event, Held):
        return replace(view, state="held")
    if isinstance(event, Released):
        return replace(view, state="queued")
    if isinstance(event, Cancelled):
        return replace(view, state="cancelled", ended=event.at, message=details.get("message", ""))
    if isinstance(event, Placed):
        return _let_in(replace(view, state="running", attempt=event.attempt, gpus=event.gpus, message=""), details)
    if getattr(event, "attempt", view.attempt) != view.attempt or view.over:
        return view  # a late report on an attempt that is over
    if isinstance(event, Started):
        return replace(view, started=event.at)
    if isinstance(event, Granted | Adapted):
        stays = view.message and _changed_nothing(event, details)
        return view if stays else replace(view, message=_adapted(event, details))
    if isinstance(event, Recalled):
        return replace(view, recalled=event.cause if view.recalled in ("", *WAIT_AGAIN) else view.recalled)
    if isinstance(event, Preempted | Requeued | Exited):
        view = replace(view, measured=_measured(view, event.at, details.get("measured", {})))
    if isinstance(event, Preempted | Requeued):
        waits = replace(view, state="queued", gpus=(), started=None, recalled="", message=details.get("message", ""))
        if isinstance(event, Preempted):
            return replace(waits, preemptions=view.preemptions + 1)
        return replace(waits, failures=view.failures + bool(details.get("failed")))
    if isinstance(event, Exited):
        state = event.cause or (Phase.SUCCEEDED if event.code == 0 else Phase.FAILED)
        message = details.get("message", "")
        if state == Phase.SUCCEEDED and view.work.get("adaptive"):  # what it decided is worth remembering
            message = message or view.message
        return replace(view, state=str(state), exit_code=event.code, ended=event.at, message=message)
    return view


def _adapted(event: Granted | Adapted, details: Mapping[str, Any]) -> str:
    """What was last heard of a job that adapts."""
    if isinstance(event, Granted):
        return f"was given GPU {', '.join(map(str, event.gpus))}: {details.get('why', '')}"
    reason = str(details.get("reason", ""))
    reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
    decision = "declined a GPU" if details.get("accepted") is False else str(details.get("decision", ""))
    return decision + (f": {reason}" if reason else "")


def _changed_nothing(event: Granted | Adapted, details: Mapping[str, Any]) -> bool:
    """Whether a job decided to stay as it is, and declined nothing: what it did before is what people want to see."""
    before, after = details.get("parameters_before"), details.get("parameters")
    stays = isinstance(event, Adapted) and before is not None and before == after
    return stays and details.get("accepted") is not False


def _let_in(view: JobView, details: Mapping[str, Any]) -> JobView:
    """A view that says by what the attempt was let in, if anything was said of that, and not of an earlier one."""
    if "admission" not in details and "admission" not in view.measured:
        return view
    before = {name: value for name, value in view.measured.items() if name != "admission"}
    return replace(view, measured={**before, **{n: v for n, v in details.items() if n == "admission"}})


def _measured(view: JobView, at: float, measured: Mapping[str, Any]) -> dict[str, Any]:
    """What an attempt used that is over, and what all of them took together."""
    if not measured:  # it never began, or that was not measured then
        return {name: value for name, value in view.measured.items() if name in (*TOTALS, "admission")}
    seconds = 0.0 if view.started is None else max(0.0, at - view.started)
    kept = {name: value for name, value in view.measured.items() if name == "admission"}
    return {**measured, **totals(view.measured, measured, seconds, len(view.gpus)), **kept}


TOTALS = ("total_wh", "total_gpu_seconds")
"""Of what was measured, what counts for all attempts."""


def _new(number: int, event: Submitted, details: Mapping[str, Any]) -> JobView:
    request = event.request
    work = _wishes(request, details)
    return JobView(
        number, event.job, work.get("name", ""), request.user, "queued", event.at, request.priority, work,
        kind=work.get("kind", "job"), array=request.array,
    )  # fmt: skip


def _edited(view: JobView, event: Edited, details: Mapping[str, Any]) -> JobView:
    work = _wishes(event.request, details)
    message = details.get("message", view.message) if view.state == "running" else view.message
    return replace(view, name=work.get("name", ""), priority=event.request.priority, work=work, message=message)


def _wishes(request: Request, details: Mapping[str, Any]) -> dict[str, Any]:
    """All that a job asks for, as JSON has it; what is seldom asked for only if it was."""
    seldom = {
        "begin": request.begin or None,
        "deadline": finite(request.deadline),
        "after": list(request.after),
        "preemptible": request.preemptible,
        "at_most": request.at_most,
        "alone": request.whole and request.memory > 0,
    }
    return {
        **details.get("work", {}),
        "gpu_count": request.gpus,
        "estimate": finite(request.estimate),
        "gpu_memory": request.memory or None,
        "from": list(request.scope) or None,
        **{name: value for name, value in seldom.items() if value},
    }


_WORK = frozenset(f.name for f in fields(Work))


def work_of(view: JobView) -> Work:
    """What a job is to run, out of its view."""
    return Work.from_json({name: value for name, value in view.work.items() if name in _WORK})


COLUMNS = tuple(f.name for f in fields(JobView))
"""The columns of the table `jobs`."""


FIXED = ("id", "name", "user", "submitted", "priority", "work", "kind", "array")
"""Those that no event changes, but for `Edited`."""
CHANGING = tuple(name for name in COLUMNS if name not in (*FIXED, "number"))


def to_row(view: JobView, columns: tuple[str, ...] = COLUMNS) -> list[Any]:
    """Columns of a view, as the table has them."""
    return [_TO_ROW[name](getattr(view, name)) if name in _TO_ROW else getattr(view, name) for name in columns]


def from_row(row: tuple[Any, ...]) -> JobView:
    """A row of the table as a view."""
    found = dict(zip(COLUMNS, row, strict=True))
    found["gpus"] = tuple(int(index) for index in found["gpus"].split(",") if index)
    found["work"] = json.loads(found["work"])
    found["measured"] = json.loads(found["measured"] or "{}")
    return JobView(**found)


def printable(text: str) -> str:
    """A text without what cannot be written as UTF-8, such as a file's name may hold."""
    return text.encode(errors="replace").decode()


_TO_ROW: dict[str, Callable[[Any], Any]] = {
    "gpus": lambda gpus: ",".join(map(str, gpus)),
    "name": printable,
    "message": printable,
    "work": lambda work: json.dumps(work, separators=(",", ":")),
    "measured": lambda measured: json.dumps(measured, separators=(",", ":")) if measured else "",
}
