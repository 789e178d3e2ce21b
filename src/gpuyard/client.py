"""A client of the daemon: what the command line uses, and scripts may.

from gpuyard import Client

yard = Client()
job = yard.submit(["python", "train.py"], gpus=2)
print(yard.wait(job)["state"])
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, cast
from urllib.parse import quote, urlencode

from gpuyard.errors import GpuyardError, UserError
from gpuyard.notifycalls import NotifyCalls
from gpuyard.rulecalls import RuleCalls
from gpuyard.shapes import (
    Blocker,
    Columns,
    Explanation,
    Gpu,
    Job,
    LeaseWishes,
    LogPart,
    Machine,
    Page,
    Progress,
    Wishes,
)
from gpuyard.unixhttp import Answer, NoDaemon, request

__all__ = [
    "OVER",
    "Blocker",
    "Client",
    "Columns",
    "Explanation",
    "Gpu",
    "Invalid",
    "Job",
    "LeaseWishes",
    "LogPart",
    "Machine",
    "NoDaemon",
    "Page",
    "Progress",
    "Refused",
    "Wishes",
]

OVER = frozenset(("succeeded", "failed", "cancelled", "timeout", "oom", "interrupted"))
"""The states in which a job has ended."""

_POLL = 30.0
"""The longest that the daemon lets one request wait, in seconds."""


class Refused(GpuyardError):
    """The daemon said no."""

    def __init__(self, status: int, message: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Invalid(Refused, UserError):
    """The daemon cannot make sense of the request."""


class Client(RuleCalls, NotifyCalls):
    """Talks to the daemon of a data directory, or at a socket; by default to the one that the settings name."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if socket is None:
            from gpuyard.config import daemon_socket

            socket = daemon_socket({"data_dir": data_dir})
        self.socket = os.fspath(socket)
        self.timeout = timeout

    def submit(
        self,
        command: Sequence[str],
        *,
        directory: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **wishes: Unpack[Wishes],
    ) -> str:
        """Queue a command and return the job's id; it runs here and with this environment, unless told otherwise."""
        return self.submit_described(description(command, directory, environment, **wishes))

    def submit_described(self, job: Mapping[str, Any]) -> str:
        """Queue a job as `description` makes it; returns its id, or that of its array."""
        return str(self._ask("POST", "/jobs", job)["id"])

    def submit_all(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Queue several jobs, as `description` makes them, or none of them; `@0` in a dependency is the first."""
        common = jobs[0].get("environment") if jobs else None  # mostly all have the same, which is long
        several = [{k: v for k, v in job.items() if k != "environment" or v != common} for job in jobs]
        return list(map(str, self._ask("POST", "/jobs/batch", {"jobs": several, "environment": common or {}})["ids"]))

    def edit(self, id: str, **changes: Unpack[Wishes]) -> Job:
        """Let a job, or the open tasks of an array, ask for something else; None takes a wish back."""
        return cast(Job, self._ask("PATCH", _of(id), _wanted(changes)))

    def clone(
        self,
        id: str,
        command: Sequence[str] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        **changes: Unpack[Wishes],
    ) -> str:
        """Queue the same once more, with changes; returns the new job's id."""
        wanted = _wanted(changes)
        if command is not None:
            wanted["command"] = list(command)
        if directory is not None:
            wanted["directory"] = os.path.abspath(directory)
        return str(self._ask("POST", f"{_of(id)}/clone", wanted)["id"])

    def retry(self, id: str, **changes: Unpack[Wishes]) -> str:
        """Queue a job that is over once more; of an array, the tasks that did not succeed. Returns the new id."""
        return str(self._ask("POST", f"{_of(id)}/retry", _wanted(changes))["id"])

    def jobs(
        self,
        *,
        all: bool = False,
        state: str | None = None,
        user: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """The open jobs in the queue's order, those that run first; with `all` the ones that are over as well."""
        every = "true" if all else None
        found = self._get("/jobs", all=every, state=state, user=user, name=name, tag=tag, limit=limit)
        return cast("list[Job]", found["jobs"])

    def columns(
        self,
        *,
        all: bool = False,
        state: str | None = None,
        user: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        fold: bool = False,
    ) -> tuple[float, Columns]:
        """The time at the daemon, and the same jobs as a table has them: quicker where there are thousands.

        With `fold` the waiting tasks of an array are one entry.
        """
        query: dict[str, Any] = {"all": "true" if all else None, "fold": "true" if fold else None, "limit": limit}
        found = self._get("/jobs", columns="true", state=state, user=user, name=name, tag=tag, **query)
        return found["now"], cast("Columns", found["columns"])

    def page(
        self,
        *,
        state: str | None = None,
        user: str | None = None,
        text: str | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> Page:
        """A part of the open jobs, and how many there are; of some states (`queued,held`), or with a text somewhere."""
        found = self._get("/jobs", columns="true", state=state, user=user, text=text, offset=offset, limit=limit)
        return Page(found["now"], found["total"], found["last"], found["columns"])

    def job(self, id: str, *, wait: float = 0.0, until: Literal["over", "start"] = "over") -> Job:
        """One job; with `wait` not before it is over (or started), or so many seconds (at most 30) have passed."""
        if wait <= 0:
            return cast(Job, self._get(_of(id)))
        wait = min(wait, _POLL)
        return cast(Job, self._get(_of(id), patience=wait, wait=f"{wait:.3f}", **{"for": until}))

    def wait(self, id: str, timeout: float | None = None) -> Job:
        """The job when it is over; a TimeoutError if that takes longer than `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL if end is None else end - time.monotonic()
            job = self.job(id, wait=max(left, 0.0))
            if job["state"] in OVER:
                return job
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"job {id} is not over after {timeout:.6g} seconds; it is {job['state']}")

    def cancel(self, id: str, grace: float | None = None) -> Job:
        """End a job: now if it waits; else it is asked to, and made to after `grace` seconds."""
        return cast(Job, self._ask("POST", f"{_of(id)}/cancel", {"grace": grace}))

    def hold(self, id: str) -> Job:
        """Keep a waiting job from being started."""
        return cast(Job, self._ask("POST", f"{_of(id)}/hold", {}))

    def release(self, id: str) -> Job:
        """Let a held job be started again."""
        return cast(Job, self._ask("POST", f"{_of(id)}/release", {}))

    def ask_for_lease(
        self, *, holder: int | None = None, interactive: bool = False, **wishes: Unpack[LeaseWishes]
    ) -> str:
        """Ask for GPUs for a process that runs already: this one, or one that it descends from; returns an id.

        Whether it has them tells `job(id, wait=..., until="start")`. They are its own until it ends or gives them back;
        `gpuyard.acquire` does all that.
        """
        wanted: dict[str, Any] = {"holder": holder, "interactive": interactive, **wishes}
        if "among" in wanted:
            wanted["from"] = wanted.pop("among")
        return str(self._ask("POST", "/leases", wanted)["id"])

    def give_back_lease(self, id: str) -> None:
        """End a lease, or give it up if it waits."""
        self._ask("POST", f"/leases/{quote(id, safe='')}/release", {})

    def log(
        self, id: str, offset: int = 0, *, size: int = 2**20, attempt: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """A piece of a job's output; an offset below 0 counts from its end. With `wait`, wait for more."""
        wait = min(wait, _POLL)
        query = _query(offset=offset, size=size, attempt=attempt, wait=f"{wait:.3f}" if wait > 0 else None)
        answer = self._send("GET", f"{_of(id)}/log{query}", patience=wait)
        headers = answer.headers
        return LogPart(
            answer.body,
            int(headers.get("x-next-offset") or max(offset, 0) + len(answer.body)),
            int(headers.get("x-log-size") or 0),
            headers.get("x-job-state", ""),
            int(headers.get("x-attempt") or 0),
        )

    def environment(self, id: str) -> dict[str, str]:
        """The environment that a job was submitted with; its owner and admins may see it."""
        return cast("dict[str, str]", self._get(f"{_of(id)}/environment")["environment"])

    def explain(self, id: str) -> Explanation:
        """Why a job waits, and what has to end first."""
        return cast(Explanation, self._get(f"{_of(id)}/explain"))

    def gpus(self) -> Machine:
        """The GPUs and who is on them."""
        return cast(Machine, self._get("/gpus"))

    def policy(self) -> dict[str, Any]:
        """The policy that decides, and since when."""
        return self._get("/policy")

    def set_policy(self, policy: str, *, discipline: str | None = None, placement: str | None = None) -> dict[str, Any]:
        """Let another policy decide from now on."""
        return self._ask("PUT", "/policy", {"policy": policy, "discipline": discipline, "placement": placement})

    def status(self) -> dict[str, Any]:
        """How the daemon is."""
        return self._get("/status")

    def history(
        self,
        *,
        limit: int | None = None,
        user: str | None = None,
        state: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        since: str | None = None,
    ) -> list[Job]:
        """Jobs that are over, the newest first."""
        found = self._get("/history", limit=limit, user=user, state=state, name=name, tag=tag, since=since)
        return cast("list[Job]", found["jobs"])

    def events(
        self, after: int = 0, *, limit: int | None = None, job: str | None = None, wait: float = 0.0
    ) -> dict[str, Any]:
        """What happened after an event, by its number, or to one job; with `wait`, wait for something to happen."""
        wait = min(wait, _POLL)
        query: dict[str, Any] = {"after": after, "limit": limit, "job": job}
        return self._get("/events", patience=wait, **query, wait=f"{wait:.3f}" if wait > 0 else None)

    def shutdown(self) -> None:
        """Let the daemon end; jobs go on running."""
        self._send("POST", "/shutdown", b"{}")

    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]:
        return _read(self._send("GET", target + _query(**query), patience=patience))

    def _ask(self, method: str, target: str, body: Mapping[str, Any], *, patience: float = 0.0) -> dict[str, Any]:
        return _read(self._send(method, target, encode(body), patience))

    def _send(self, method: str, target: str, body: bytes = b"", patience: float = 0.0) -> Answer:
        answer = request(self.socket, method, f"/api/v1{target}", body, self.timeout + patience)
        if answer.status >= 400:
            raise _refusal(answer)
        return answer


def description(
    command: Sequence[str],
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    **wishes: Unpack[Wishes],
) -> dict[str, Any]:
    """A job as the daemon wants to be told of it."""
    if isinstance(command, str):
        raise UserError("a command is a list of words; write ['python', 'train.py'], not one string")
    return {
        "command": list(command),
        "directory": os.path.abspath(directory or os.curdir),
        "environment": dict(os.environ if environment is None else environment),
        "umask": _umask(),
        **_wanted(wishes),
    }


def _wanted(wishes: Wishes) -> dict[str, Any]:
    """Wishes as JSON has them."""
    wanted: dict[str, Any] = {**wishes}
    if "among" in wanted:
        wanted["from"] = wanted.pop("among")
    for name in ("begin", "deadline"):
        if isinstance(wanted.get(name), str):
            from gpuyard.times import parse_when  # here, because few say when, and submitting a job is to be quick

            wanted[name] = parse_when(wanted[name], time.time())
    return wanted


def _umask() -> int:
    """This process's umask, which can only be read by setting it."""
    former = os.umask(0o077)
    os.umask(former)
    return former


def encode(body: Mapping[str, Any]) -> bytes:
    """A request's body. Bytes that are not UTF-8, in a file's name say, go as escaped surrogates, and arrive."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise UserError("a number of the request is not finite; leave it out or give another") from error


def _of(id: str) -> str:
    if not id:
        raise UserError("'' is not a job's id; gpuyard ps lists them")
    return f"/jobs/{quote(id, safe='')}"


def _query(**values: Any) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _read(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body or b"{}")
    except ValueError as error:
        raise GpuyardError("the daemon's answer is not JSON; is it gpuyard's, and of this version?") from error
    return cast("dict[str, Any]", found)


def _refusal(answer: Answer) -> Refused:
    try:
        problem = json.loads(answer.body)
        text = problem.get("detail") or problem.get("title")
    except (ValueError, AttributeError):
        text = None
    if not isinstance(text, str):
        text = f"the daemon answered {answer.status}; see its log with gpuyard status"
    kind = Invalid if answer.status in (400, 422) else Refused
    return kind(answer.status, text)
