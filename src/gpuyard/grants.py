"""The job's side of a grant: how an adaptive job (`--adaptive`) receives grants, and reports its rates and decisions.

from gpuyard.grants import Grants

grants = Grants.from_environment()  # None outside such a job
while training:
    step()
    if grants:
        grants.report(step_seconds=0.12, gain_per_second=2e-5, parameters=10_602)
        for event in grants.events():  # extend, shrink, up, down, preempt
            ...

Two daemon threads talk to gpuyard's daemon. Nothing here waits for it or raises into the training: if it is away,
reports are sent when it is back, and no event is lost or repeated, since every change has a number in its log.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Unpack, cast

from gpuyard.client.client import Client
from gpuyard.client.retry import to_stderr
from gpuyard.client.transport import NoDaemon, Refused
from gpuyard.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.api.grant_types import GrantChange, JobReport

Kind = Literal["extend", "shrink", "up", "down", "preempt"]
_OVER = (404, 409, 410)  # status codes once the job is over
_FORBIDDEN = (401, 403)
_POLL = 25.0  # seconds that one request waits for events
_OFTEN = 0.5  # seconds between reports; only the last one in between counts
_SOON, _LATER = 0.2, 5.0  # seconds until the next try if the daemon is away, at first and at most
_TEXTS = {"decision": 500, "reason": 2000}  # maximal lengths
_COUNTS = ("parameters", "parameters_before")
_MOST = 1000  # decisions that wait to be sent


@dataclass(frozen=True, slots=True)
class GrantEvent:
    """A change for this job: what it has from then on, and why."""

    kind: Kind
    at: float  # seconds since the epoch
    deadline: float | None
    """End of its time, in seconds since the epoch; after `preempt`, when it is killed. None: never."""
    budget: float | None  # seconds that it may run in all, from its start; None: no limit
    gpus: tuple[str, ...]  # all GPUs that it may use from now on, as in CUDA_VISIBLE_DEVICES; its own come first
    grace: float  # seconds that it has to leave GPUs (`down`) or to end (`preempt`)
    why: str
    number: int = 0  # its sequence number in the daemon's log
    indices: tuple[int, ...] = ()  # the same GPUs, by index


class Grants:
    """What this job is granted. Made by `from_environment`; methods are thread-safe, and fast."""

    def __init__(
        self,
        control: str,
        job: str,
        *,
        gpus: Sequence[str] = (),
        budget: float | None = None,
        deadline: float | None = None,
        grace: float = 0.0,
        token: str | None = None,
        say: Callable[[str], None] = to_stderr,
    ) -> None:
        self.job = job
        self._own = tuple(gpus)
        self._gpus, self._budget, self._deadline, self._grace = self._own, budget, deadline, grace
        self._granted: tuple[int, ...] = ()
        self._say, self._said, self._saying = say, "", threading.RLock()
        self._client = client_of(control, token)
        self._events: deque[GrantEvent] = deque()
        self._last = 0
        self._latest: JobReport = {}
        self._decisions: deque[JobReport] = deque(maxlen=_MOST)
        self._returns: deque[tuple[tuple[int, ...] | None, str]] = deque(maxlen=_MOST)
        self._news, self._over = threading.Event(), threading.Event()
        self._telling = False
        self._arrived = threading.Condition()
        self._pid = os.getpid()
        for target, name in ((self._listen, "hears"), (self._tell, "tells")):
            threading.Thread(target=target, name=f"gpuyard-grants-{name}", daemon=True).start()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Grants | None:
        """The grants of the job that this process belongs to; None outside jobs and without --adaptive."""
        known = os.environ if environment is None else environment
        control, job = known.get("GPUYARD_CONTROL", ""), known.get("GPUYARD_JOB_ID", "")
        if not control or not job or known.get("GPUYARD_ADAPTIVE") != "1":
            return None
        return cls(
            control,
            job,
            gpus=[gpu for gpu in known.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu],
            budget=_number(known.get("GPUYARD_BUDGET")),
            deadline=_number(known.get("GPUYARD_DEADLINE")),
            grace=_number(known.get("GPUYARD_GRACE")) or 0.0,
            token=known.get("GPUYARD_TOKEN") or None,
        )

    # -- what it may have -------------------------------------------------------------------------

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs that it may use now, its own and those on loan, as in CUDA_VISIBLE_DEVICES."""
        return self._gpus

    @property
    def granted(self) -> tuple[int, ...]:
        """GPUs on loan, by index."""
        return self._granted

    @property
    def budget(self) -> float | None:
        """Seconds that it may run in all; None: no limit."""
        return self._budget

    @property
    def deadline(self) -> float | None:
        """End of its time, in seconds since the epoch; None: never."""
        return self._deadline

    @property
    def grace(self) -> float:
        """Seconds between the request to end and the kill."""
        return self._grace

    def events(self) -> list[GrantEvent]:
        """Changes since the last call, each once and in order; never waits."""
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def wait(self, timeout: float) -> bool:
        """Wait for an event, at most that many seconds; returns whether there is one."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._events or self._over.is_set(), timeout)
        return bool(self._events)

    # -- what it reports ----------------------------------------------------------------------------

    def report(self, **report: Unpack[JobReport]) -> None:
        """Report the job's rates: `step_seconds`, `gain_per_second`, `parameters` ...; see `JobReport`.

        Of reports in quick succession the last one counts. Reports with a `decision` are shown to people, and all of
        them are sent; `accepted=False` returns what was offered. Never waits, never raises.
        """
        told = _plain(report)
        if told.get("decision"):
            self._decisions.append(told)
        else:
            known, self._latest = bool(self._latest), told
            if known:  # the sender knows already
                return
        self._news.set()

    def give_back(self, gpus: Sequence[int] | None = None, *, reason: str = "") -> None:
        """Report that the job has left GPUs on loan, by index (by default all): after `down`, or on its own."""
        self._returns.append((None if gpus is None else tuple(gpus), reason))
        self._news.set()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is sent, at most that many seconds; returns whether it is."""
        end = time.monotonic() + timeout
        while (self._unsaid or self._telling) and not self._over.is_set() and time.monotonic() < end:
            time.sleep(0.01)
        return not (self._unsaid or self._telling)

    def close(self) -> None:
        """Receive and report no more; nothing is printed after this."""
        with self._saying:
            self._over.set()
        self._news.set()

    @property
    def _unsaid(self) -> bool:
        return bool(self._latest or self._decisions or self._returns)

    # -- the two threads --------------------------------------------------------------------------

    def _ended(self) -> bool:
        return self._over.is_set() or os.getpid() != self._pid  # not in a forked child

    def _listen(self) -> None:
        pause, patience = _SOON, 0.0  # the first request does not wait: the initial values may be outdated
        while not self._ended():
            if self._settled(partial(self._hear, patience)):
                pause, patience = _SOON, _POLL
            else:
                self._over.wait(pause)
                pause, patience = min(2 * pause, _LATER), 0.0
        with self._arrived:
            self._arrived.notify_all()

    def _hear(self, patience: float) -> None:
        found = self._client.grant(self.job, since=self._last, wait=patience)
        self._gpus, self._granted = tuple(found["gpus"]), tuple(found["granted"])
        self._budget, self._deadline, self._grace = found["budget"], found["deadline"], found["grace"]
        new = [_event(change) for change in found["events"] if change["number"] > self._last]
        self._last = max(self._last, found["last"])
        if new:
            with self._arrived:
                self._events.extend(new)
                self._arrived.notify_all()

    def _tell(self) -> None:
        """Send decisions at once, and the latest report at a limited rate."""
        pause = _SOON
        quiet = 0.0
        while not self._ended():
            self._news.wait(max(0.0, quiet - time.monotonic()) if self._latest else None)
            self._news.clear()
            self._telling = True
            done = self._tell_all() and (time.monotonic() < quiet or self._tell_latest())
            self._telling = False
            if done:
                pause = _SOON
                quiet = quiet if self._latest else time.monotonic() + _OFTEN
            else:
                self._over.wait(pause)
                pause = min(2 * pause, _LATER)
                self._news.set()

    def _tell_all(self) -> bool:
        """Send decisions and returns, in order; False if the daemon is away."""
        while self._decisions:
            if not self._settled(partial(self._client.report, self.job, **self._decisions[0])):
                return False
            self._decisions.popleft()
        while self._returns:
            gpus, reason = self._returns[0]
            if not self._settled(partial(self._client.give_back_grant, self.job, gpus, reason=reason)):
                return False
            self._returns.popleft()
        return True

    def _tell_latest(self) -> bool:
        """Send the latest report; False if the daemon is away."""
        latest, self._latest = self._latest, {}
        if latest and not self._settled(partial(self._client.report, self.job, **latest)):
            self._latest = self._latest or latest
            return False
        return True

    def _settled(self, ask: Callable[[], object]) -> bool:
        """Send a request; False if it must be repeated, since the daemon is away."""
        try:
            ask()
        except NoDaemon:
            return False
        except Refused as error:
            if error.status >= 500:  # it cannot write now
                return False
            if error.status not in _OVER:
                self._complain(str(error))
            if error.status in (*_OVER, *_FORBIDDEN):
                self.close()
        except (GpuyardError, OSError, ValueError, TypeError, LookupError) as error:
            self._complain(str(error))
            self._over.wait(_LATER)
        return True

    def _complain(self, why: str) -> None:
        with self._saying:
            if why == self._said or self._over.is_set():
                return
            self._said = why
            self._say(f"warning: grants of job {self.job}: {why}")


def client_of(control: str, token: str | None = None) -> Client:
    """A client for an address like `unix:/run/gpuyard.sock` or `http://box:62333`."""
    if control.startswith("unix:"):
        return Client(control.removeprefix("unix:"))
    return Client(host=control, token=token)


def _plain(report: Mapping[str, object]) -> JobReport:
    """A report as JSON: numpy's numbers become plain ones, and invalid values are dropped."""
    found: dict[str, object] = {}
    for name, value in report.items():
        with suppress(TypeError, ValueError, OverflowError):  # a bad number must not stop a training
            if value is None:
                continue
            if name in _TEXTS:
                found[name] = str(value)[: _TEXTS[name]]
            elif name == "accepted":
                found[name] = bool(value)
            elif math.isfinite(number := float(value)):  # type: ignore[arg-type]
                found[name] = int(number) if name in _COUNTS else number
    return cast("JobReport", found)


def _event(change: GrantChange) -> GrantEvent:
    return GrantEvent(
        cast(Kind, change["kind"]),
        change["at"],
        change["deadline"],
        change["budget"],
        tuple(change["gpus"]),
        change["grace"],
        change["why"],
        change["number"],
        tuple(change["indices"]),
    )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
