"""Client of the daemon, for the command line and for scripts.

from gpuyard import Client

yard = Client()
job = yard.submit(["python", "train.py"], gpus=2)
print(yard.wait(job)["state"])
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack, cast
from urllib.parse import quote

from gpuyard.api.replies import BulkChange
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
from gpuyard.client.connection import LONG, POLL, description, fields_body, query_of, remote_description, several
from gpuyard.client.endpoints import (
    AccessCalls,
    BatchCalls,
    EstimateCalls,
    GrantCalls,
    NotifyCalls,
    RecordingCalls,
    RuleCalls,
)
from gpuyard.client.follow import EventCalls, output_of
from gpuyard.client.leases import Lease, LeaseTerms, obtain_lease, of_this_job
from gpuyard.client.retry import PATIENCE
from gpuyard.errors import UserError


class Terms(LeaseTerms, total=False):
    client: Client | None


class Client(EventCalls, EstimateCalls, RuleCalls, AccessCalls, NotifyCalls, BatchCalls, RecordingCalls, GrantCalls):
    """Client of the daemon on this machine or at a host; by default of the one that the settings name.

    `Client()` finds the daemon as the command line does ($GPUYARD_HOST, $GPUYARD_SOCKET, $GPUYARD_DATA_DIR, the
    settings' file). `Client(host="https://box:62333")` uses the token of `gpuyard login`, of $GPUYARD_TOKEN, or
    `token`; `ca` is a file with the certificates to trust. `say` is called with warnings and progress messages.
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
        """Queue a command and return the job's id; `variables` are added to its environment.

        By default it runs in this directory with this environment. At a host nothing of this machine is sent unless
        given: it runs in the home directory there, with the environment of a login.

        If the answer is lost the request is sent again, but not queued twice: the daemon recognises its key, which is
        made here or given as `key`, so that a restarted script queues nothing twice either.
        """
        describe = description if self.host is None else remote_description
        return self.submit_described(describe(command, directory, environment, variables, **wishes), key)

    def submit_all(self, jobs: Sequence[Mapping[str, Any]], key: str | None = None) -> list[str]:
        """Queue all of these jobs, as made by `description`, or none; `@0` in a dependency is the first."""
        return list(map(str, self._ask_once("/jobs/batch", several(jobs), key, patience=LONG)["ids"]))

    def edit(self, id: str, **changes: Unpack[Wishes]) -> Job:
        """Change the request of a job, or of the open tasks of an array; None resets a field."""
        return cast(Job, self._ask("PATCH", _of(id), fields_body(changes), patience=LONG))

    def clone(
        self,
        id: str,
        command: Sequence[str] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        **changes: Unpack[Wishes],
    ) -> str:
        """Queue a copy of a job, with changes; returns its id."""
        new = fields_body(changes)
        if command is not None:
            new["command"] = list(command)
        if directory is not None:
            new["directory"] = os.path.abspath(directory) if self.host is None else os.fspath(directory)
        return str(self._ask_once(f"{_of(id)}/clone", new, patience=LONG)["id"])

    def retry(self, id: str, **changes: Unpack[Wishes]) -> str:
        """Queue a finished job again; of an array, the tasks that did not succeed. Returns the new id."""
        return str(self._ask_once(f"{_of(id)}/retry", fields_body(changes), patience=LONG)["id"])

    def jobs(
        self,
        *,
        all: bool = False,
        state: str | None = None,
        user: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        fold: bool = False,
    ) -> list[Job]:
        """Open jobs in queue order, running ones first; with `all` also finished ones.

        `state` may be several (`queued,held`), or `waiting`. With `fold` the waiting tasks of an array are one entry.
        """
        query = {"all": "true" if all else None, "fold": "true" if fold else None}
        return self._pages("/jobs", limit, **query, state=state, user=user, name=name, tag=tag)

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
        """The daemon's time, and the same jobs as columns: faster for thousands of jobs.

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
        """A page of the open jobs, and their number; filtered by states (`queued,held`), user, or a text."""
        found = self._get("/jobs", columns="true", state=state, user=user, text=text, offset=offset, limit=limit)
        return Page(found["now"], found["total"], found["last"], found["columns"])

    def job(self, id: str, *, wait: float = 0.0, until: Literal["over", "start"] = "over") -> Job:
        """One job; with `wait`, once it is over (or started) or after that many seconds (at most 30)."""
        if wait <= 0:
            return cast(Job, self._get(_of(id)))
        wait = min(wait, POLL)
        return cast(Job, self._get(_of(id), patience=wait, wait=f"{wait:.3f}", **{"for": until}))

    def wait(self, id: str, timeout: float | None = None) -> Job:
        """The job once it is over; raises TimeoutError after `timeout` seconds.

        Waits up to ten minutes (or `timeout`) for a daemon that went away: the job goes on without it.
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
        """Cancel a job; a running one is asked to end, and killed after `grace` seconds."""
        return cast(Job, self._ask("POST", f"{_of(id)}/cancel", {"grace": grace}, patience=LONG))

    def hold(self, id: str) -> Job:
        """Keep a waiting job from starting."""
        return cast(Job, self._ask("POST", f"{_of(id)}/hold", {}, patience=LONG))

    def release(self, id: str) -> Job:
        """Release a held job."""
        return cast(Job, self._ask("POST", f"{_of(id)}/release", {}, patience=LONG))

    def change_jobs(
        self,
        action: Literal["cancel", "hold", "release", "edit", "retry"],
        *,
        name: str = "",
        tag: str = "",
        user: str = "",
        state: str = "",
        array: str = "",
        text: str = "",
        jobs: Sequence[str] | None = None,
        all: bool = False,
        grace: float | None = None,
        changes: Wishes | None = None,
    ) -> BulkChange:
        """Cancel, hold, release, edit or retry all jobs that match, or none; of `user`, by default one's own."""
        said = {"name": name, "tag": tag, "user": user, "state": state, "array": array, "text": text, "all": all}
        body: dict[str, Any] = {"action": action, **{key: value for key, value in said.items() if value}}
        more = {
            "jobs": None if jobs is None else list(jobs),
            "grace": grace,
            "changes": changes and fields_body(changes),
        }
        body |= {key: value for key, value in more.items() if value is not None}
        return cast(BulkChange, self._ask_once("/jobs/bulk", body, patience=LONG))

    def requeue(self, id: str) -> Job:
        """Ask a running job to end, after which it waits again."""
        return cast(Job, self._ask("POST", f"{_of(id)}/requeue", {}))

    def acquire(self, gpus: int | None = None, **terms: Unpack[Terms]) -> Lease:
        """Like `gpuyard.acquire`, at this daemon."""
        own = of_this_job(gpus, terms.get("from_"))
        return obtain_lease(self, gpus, terms) if own is None else own

    def ask_for_lease(
        self,
        *,
        holder: int | None = None,
        interactive: bool = False,
        heartbeat: float | None = None,
        **wishes: Unpack[LeaseWishes],
    ) -> str:
        """Request GPUs for a running process: this one, or an ancestor of it; returns an id.

        `job(id, wait=..., until="start")` waits for them. The process has them until it ends or gives them back; with
        `heartbeat`, until no `beat` came for that many seconds. `acquire` does all that.
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
        """Heartbeat of the holder of a lease, or of the process that waits for it."""
        self._ask("POST", f"/leases/{quote(id, safe='')}/heartbeat", {})

    def give_back_lease(self, id: str) -> None:
        """End a lease, or withdraw a waiting request."""
        self._ask("POST", f"/leases/{quote(id, safe='')}/release", {})

    def log(
        self, id: str, offset: int = 0, *, size: int = 2**20, attempt: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """A part of a job's output; a negative offset counts from its end. With `wait`, wait for more."""
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
        """A job's output as it is written, until the job is over; another attempt starts at its beginning.

        Continues after a restart of the daemon.
        """
        job = self.job(id)  # an unknown job is an error at once
        if job["output"] and "tasks" not in job:
            raise UserError(f"the output of job {id} goes to {job['output']}; read it there")
        return output_of(self, id, offset, say=self.say)

    def report_progress(self, id: str, done: float, total: float) -> None:
        """Report a running job's progress, for example from a container that cannot use `gpuyard.progress`."""
        self._ask("POST", f"{_of(id)}/progress", {"done": done, "total": total})

    def environment(self, id: str) -> dict[str, str]:
        """The environment that a job was submitted with; only its owner and admins may read it."""
        return cast("dict[str, str]", self._get(f"{_of(id)}/environment")["environment"])

    def explain(self, id: str) -> Explanation:
        """Why a job waits, and which jobs have to end first."""
        return cast(Explanation, self._get(f"{_of(id)}/explain"))

    def gpus(self) -> Machine:
        """The GPUs and their jobs and processes."""
        return cast(Machine, self._get("/gpus"))

    def samples(
        self,
        *,
        after: float = 0.0,
        wait: float = 0.0,
        span: Literal["fine", "coarse"] = "fine",
        gpus: Sequence[int] | None = None,
    ) -> Samples:
        """GPU metrics of the last ten minutes, or (`coarse`) of each minute of the last day.

        With `wait`, once there is a sample after the time `after`, or after that many seconds (at most 30).
        """
        wait = min(wait, POLL)
        some = None if gpus is None else ",".join(map(str, gpus))
        query = {"after": repr(after), "wait": f"{wait:.3f}", "span": span, "gpus": some}
        return cast(Samples, self._get("/gpus/samples", patience=wait, **query))

    def usage(
        self, *, since: float | str | None = None, until: float | str | None = None, limit: int | None = None
    ) -> Usage:
        """Which jobs were on which GPU when, in a time window; by default in the last day."""
        return cast(Usage, self._get("/usage", since=since, until=until, limit=limit))

    def interference(self) -> dict[str, Any]:
        """Measured slowdown of jobs that share a GPU, worst first."""
        return self._get("/interference")

    def policy(self) -> dict[str, Any]:
        """The policy in force, and since when."""
        return self._get("/policy")

    def set_policy(
        self, policy: str, *, discipline: str | None = None, placement: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Set the policy; `force` accepts a trained one that has not passed its gate."""
        body = {"policy": policy, "discipline": discipline, "placement": placement}
        return self._ask("PUT", "/policy", body | ({"force": True} if force else {}))

    def preview_policy(
        self, policy: str, *, discipline: str | None = None, placement: str | None = None
    ) -> PolicyPreview:
        """What another policy would change now."""
        body = {"policy": policy, "discipline": discipline, "placement": placement}
        return cast(PolicyPreview, self._ask("POST", "/policy/preview", body))

    def policies(self) -> dict[str, Any]:
        """All policies and their settings."""
        return self._get("/policies")

    def stats(self, *, since: str | None = None, until: str | None = None) -> dict[str, Any]:
        """Statistics of a time window (ISO-8601; by default the last day), and the state of the queue."""
        return self._get("/stats", since=since, until=until)

    def status(self) -> dict[str, Any]:
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
        """Finished jobs, latest first; `text` is searched in id, name, user and command."""
        query = {"user": user, "state": state, "name": name, "tag": tag, "since": since, "until": until, "text": text}
        return self._pages("/history", limit, **query)

    def shutdown(self) -> None:
        """Stop the daemon; jobs go on running."""
        self._send("POST", "/shutdown", b"{}")


def acquire(gpus: int | None = None, **terms: Unpack[Terms]) -> Lease:
    """Wait for GPUs; they are this process's until the `with` block ends, or `release`, or the process.

    In a `with` block CUDA_VISIBLE_DEVICES is set, for the whole process. Raises `TimeoutError` after `timeout` and
    `LeaseCancelled` if the lease is cancelled. Inside a job of gpuyard's it is the job's own GPUs, at once.
    """
    own = of_this_job(gpus, terms.get("from_"))
    return obtain_lease(terms.get("client") or Client(), gpus, terms) if own is None else own


def wait_for_gpus(gpus: int | None = None, **terms: Unpack[Terms]) -> Lease:
    """Wait for GPUs and keep them, with CUDA_VISIBLE_DEVICES set to them, until this process ends."""
    lease = acquire(gpus, **terms)
    os.environ.update(lease.environment)
    return lease


def _of(id: str) -> str:
    if not id:
        raise UserError("'' is not a job's id; gpuyard ps lists them")
    return f"/jobs/{quote(id, safe='')}"
