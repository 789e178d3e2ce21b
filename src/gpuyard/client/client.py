"""A client of the daemon: what the command line uses, and scripts may.

from gpuyard import Client

yard = Client()
job = yard.submit(["python", "train.py"], gpus=2)
print(yard.wait(job)["state"])
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast
from urllib.parse import quote

from gpuyard.api.types import (
    OVER,
    Columns,
    Explanation,
    Job,
    LeaseWishes,
    LogPart,
    Machine,
    Page,
    PolicyPreview,
    Samples,
    Usage,
    Wishes,
)
from gpuyard.client.connection import description, fields_body, query_of, remote_description
from gpuyard.client.endpoints import (
    AccessCalls,
    BatchCalls,
    EstimateCalls,
    GrantCalls,
    NotifyCalls,
    RecordingCalls,
    RuleCalls,
)
from gpuyard.client.follow import POLL, Following, output_of
from gpuyard.client.retry import PATIENCE
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.client.leases import Lease, Terms


class Client(Following, EstimateCalls, RuleCalls, AccessCalls, NotifyCalls, BatchCalls, RecordingCalls, GrantCalls):
    """Talks to the daemon of this machine, or to one at a host; by default to the one that the settings name.

    `Client()` finds the daemon as the command line does ($GPUYARD_HOST, $GPUYARD_SOCKET, $GPUYARD_DATA_DIR, the
    settings' file). `Client(host="https://box:62333")` asks one elsewhere, with the token of `gpuyard login`, of
    $GPUYARD_TOKEN, or `token`; `ca` is a file with the certificates to trust. `say` is told what goes on meanwhile.
    """

    def submit(
        self,
        command: Sequence[str],
        *,
        directory: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        key: str | None = None,
        **wishes: Unpack[Wishes],
    ) -> str:
        """Queue a command and return the job's id; `variables` come on top of its environment.

        It runs here and with this environment, unless told otherwise. At a host nothing of this machine is sent but
        what is given: it runs in the home directory there, and with the environment of a login.

        If the answer is lost it is sent again, and is not queued twice: the daemon knows it by a key that is made here,
        or is given as `key`, so that a script that is started again queues nothing twice either.
        """
        describe = description if self.host is None else remote_description
        return self.submit_described(describe(command, directory, environment, variables, **wishes), key)

    def submit_described(self, job: Mapping[str, Any], key: str | None = None) -> str:
        """Queue a job as `description` makes it; returns its id, or that of its array."""
        return str(self._ask_once("/jobs", job, key)["id"])

    def submit_all(self, jobs: Sequence[Mapping[str, Any]], key: str | None = None) -> list[str]:
        """Queue several jobs, as `description` makes them, or none of them; `@0` in a dependency is the first."""
        common = jobs[0].get("environment") if jobs else None  # mostly all have the same, which is long
        several = [{k: v for k, v in job.items() if k != "environment" or v != common} for job in jobs]
        body = {"jobs": several} if common is None else {"jobs": several, "environment": common}
        return list(map(str, self._ask_once("/jobs/batch", body, key)["ids"]))

    def edit(self, id: str, **changes: Unpack[Wishes]) -> Job:
        """Let a job, or the open tasks of an array, ask for something else; None takes a wish back."""
        return cast(Job, self._ask("PATCH", _of(id), fields_body(changes)))

    def clone(
        self,
        id: str,
        command: Sequence[str] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        **changes: Unpack[Wishes],
    ) -> str:
        """Queue the same once more, with changes; returns the new job's id."""
        new = fields_body(changes)
        if command is not None:
            new["command"] = list(command)
        if directory is not None:
            new["directory"] = os.path.abspath(directory) if self.host is None else os.fspath(directory)
        return str(self._ask_once(f"{_of(id)}/clone", new)["id"])

    def retry(self, id: str, **changes: Unpack[Wishes]) -> str:
        """Queue a job that is over once more; of an array, the tasks that did not succeed. Returns the new id."""
        return str(self._ask_once(f"{_of(id)}/retry", fields_body(changes))["id"])

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
        return self._pages("/jobs", limit, all=every, state=state, user=user, name=name, tag=tag)

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
        wait = min(wait, POLL)
        return cast(Job, self._get(_of(id), patience=wait, wait=f"{wait:.3f}", **{"for": until}))

    def wait(self, id: str, timeout: float | None = None) -> Job:
        """The job when it is over; a TimeoutError if that takes longer than `timeout` seconds.

        A daemon that goes away meanwhile is waited for, up to ten minutes (or `timeout`): the job goes on without it.
        """
        end = None if timeout is None else time.monotonic() + timeout

        def look() -> Job:
            return self.job(id, wait=POLL if end is None else max(end - time.monotonic(), 0.0))

        while True:
            job = self._patiently(look, PATIENCE if timeout is None else min(timeout, PATIENCE))
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

    def acquire(self, gpus: int | None = None, **terms: Unpack[Terms]) -> Lease:
        """Wait for GPUs, as `gpuyard.acquire` does, at this daemon."""
        from gpuyard.client.leases import acquire

        terms["client"] = self
        return acquire(gpus, **terms)

    def ask_for_lease(
        self,
        *,
        holder: int | None = None,
        interactive: bool = False,
        heartbeat: float | None = None,
        **wishes: Unpack[LeaseWishes],
    ) -> str:
        """Ask for GPUs for a process that runs already: this one, or one that it descends from; returns an id.

        Whether it has them tells `job(id, wait=..., until="start")`. They are its own until it ends or gives them back;
        with `heartbeat` until no `beat` has come for so many seconds. `acquire` does all that.
        """
        new: dict[str, Any] = {**wishes}
        if holder is not None or interactive:
            new |= {"holder": holder, "interactive": interactive}
        if heartbeat is not None:
            new["heartbeat"] = heartbeat
        if "among" in new:
            new["from"] = new.pop("among")
        return str(self._ask_once("/leases", new)["id"])

    def beat(self, id: str) -> None:
        """Tell that whoever holds a lease, or waits for it, is still there."""
        self._ask("POST", f"/leases/{quote(id, safe='')}/heartbeat", {})

    def give_back_lease(self, id: str) -> None:
        """End a lease, or give it up if it waits."""
        self._ask("POST", f"/leases/{quote(id, safe='')}/release", {})

    def log(
        self, id: str, offset: int = 0, *, size: int = 2**20, attempt: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """A piece of a job's output; an offset below 0 counts from its end. With `wait`, wait for more."""
        wait = min(wait, POLL)
        query = query_of(offset=offset, size=size, attempt=attempt, wait=f"{wait:.3f}" if wait > 0 else None)
        answer = self._send("GET", f"{_of(id)}/log{query}", patience=wait)
        headers = answer.headers
        return LogPart(
            answer.body,
            int(headers.get("x-next-offset") or max(offset, 0) + len(answer.body)),
            int(headers.get("x-log-size") or 0),
            headers.get("x-job-state", ""),
            int(headers.get("x-attempt") or 0),
        )

    def follow(self, id: str, offset: int = 0) -> Iterator[bytes]:
        """A job's output as it comes, until the job is over; that of an attempt that is run again begins anew.

        Goes on by itself after a restart of the daemon.
        """
        job = self.job(id)  # whoever was never there is told at once
        if job["output"] and "tasks" not in job:
            raise UserError(f"the output of job {id} goes to {job['output']}; read it there")
        return output_of(self, id, offset, say=self.say)

    def report_progress(self, id: str, done: float, total: float) -> None:
        """Tell how far a running job is: for work in a container, or elsewhere, that cannot use `gpuyard.progress`."""
        self._ask("POST", f"{_of(id)}/progress", {"done": done, "total": total})

    def environment(self, id: str) -> dict[str, str]:
        """The environment that a job was submitted with; its owner and admins may see it."""
        return cast("dict[str, str]", self._get(f"{_of(id)}/environment")["environment"])

    def explain(self, id: str) -> Explanation:
        """Why a job waits, and what has to end first."""
        return cast(Explanation, self._get(f"{_of(id)}/explain"))

    def gpus(self) -> Machine:
        """The GPUs and who is on them."""
        return cast(Machine, self._get("/gpus"))

    def samples(
        self,
        *,
        after: float = 0.0,
        wait: float = 0.0,
        span: Literal["fine", "coarse"] = "fine",
        gpus: Sequence[int] | None = None,
    ) -> Samples:
        """What the GPUs did in the last ten minutes, or (`coarse`) in each minute of the last day.

        With `wait`, when there is a sample after the time `after`, or so many seconds (at most 30) have passed.
        """
        wait = min(wait, POLL)
        some = None if gpus is None else ",".join(map(str, gpus))
        query = {"after": repr(after), "wait": f"{wait:.3f}", "span": span, "gpus": some}
        return cast(Samples, self._get("/gpus/samples", patience=wait, **query))

    def usage(
        self, *, since: float | str | None = None, until: float | str | None = None, limit: int | None = None
    ) -> Usage:
        """Who was on which GPU when, in a span of time: the last day, if not said."""
        return cast(Usage, self._get("/usage", since=since, until=until, limit=limit))

    def interference(self) -> dict[str, Any]:
        """What jobs that share a GPU do to each other, as far as it was seen; the worst first."""
        return self._get("/interference")

    def policy(self) -> dict[str, Any]:
        """The policy that decides, and since when."""
        return self._get("/policy")

    def set_policy(
        self, policy: str, *, discipline: str | None = None, placement: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Let another policy decide from now on; `force`: also a trained one that has not passed its gate."""
        wish = {"policy": policy, "discipline": discipline, "placement": placement}
        return self._ask("PUT", "/policy", wish | ({"force": True} if force else {}))

    def preview_policy(
        self, policy: str, *, discipline: str | None = None, placement: str | None = None
    ) -> PolicyPreview:
        """What would change now if another policy decided; nothing does."""
        wish = {"policy": policy, "discipline": discipline, "placement": placement}
        return cast(PolicyPreview, self._ask("POST", "/policy/preview", wish))

    def policies(self) -> dict[str, Any]:
        """The policies that there are, and what can be set of each."""
        return self._get("/policies")

    def stats(self, *, since: str | None = None, until: str | None = None) -> dict[str, Any]:
        """What happened in a span of time (ISO-8601; the last day, if not said), and how the queue stands now."""
        return self._get("/stats", since=since, until=until)

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
        until: str | None = None,
        text: str | None = None,
    ) -> list[Job]:
        """Jobs that are over, the newest first; `text` is looked for in id, name, user and command."""
        query = {"user": user, "state": state, "name": name, "tag": tag, "since": since, "until": until, "text": text}
        return self._pages("/history", limit, **query)

    def shutdown(self) -> None:
        """Let the daemon end; jobs go on running."""
        self._send("POST", "/shutdown", b"{}")


def _of(id: str) -> str:
    if not id:
        raise UserError("'' is not a job's id; gpuyard ps lists them")
    return f"/jobs/{quote(id, safe='')}"
