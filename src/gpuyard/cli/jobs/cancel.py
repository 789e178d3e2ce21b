"""`gpuyard cancel`, `hold` and `release`: for jobs given by id or selected by state, user, name or tag."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.common_options import DaemonOptions, option, option_groups
from gpuyard.cli.common_options import SomeJobIds as JobIds
from gpuyard.cli.jobs.job_lists import Name, State, Tag, check_state
from gpuyard.cli.terminal import output
from gpuyard.client.transport import NoDaemon, Refused
from gpuyard.errors import GpuyardError, UserError
from gpuyard.spec.notation import folded

if TYPE_CHECKING:
    from gpuyard.api.types import Job
    from gpuyard.client.client import Client


_AT_ONCE = 500  # tasks of an array that one request names

User = Annotated[str | None, option("--user", "U", "This user's jobs, which is for admins (yours).")]
All = Annotated[bool, option("--all", "All open jobs of yours, or of --user.")]


@dataclass(frozen=True, slots=True)
class Selection:
    """Options that select open jobs; a job must match all of them."""

    name: Name = None
    user: User = None
    state: State = None
    tag: Tag = None
    all_: All = False

    @property
    def given_by_options(self) -> bool:
        return bool(self.all_ or self.name or self.user or self.state or self.tag)

    def ids(self, client: Client, given: Sequence[str], usual: str | None = None) -> list[str]:
        """Ids of the selected jobs, tasks of an array as one; in the state `usual` unless --state is given."""
        check_state(self.state)
        if not self.given_by_options:
            if not given:
                raise UserError("which jobs? give their ids, or --name, --user, --state, --tag, or --all")
            return list(given)
        state = self.state or usual
        jobs = client.jobs(user=self.user or current_user(client), name=self.name, state=state, tag=self.tag)
        if given:
            jobs = [job for job in jobs if job["id"] in given or job["array"] in given]
        output.say(f"{output.many(len(jobs), 'job')} chosen" if jobs else "no open job fits")
        return list(_together(jobs))


def _together(jobs: Iterable[Job]) -> Iterable[str]:
    """Ids of jobs; tasks of one array are named together, since there may be thousands."""
    arrays: dict[str, list[int]] = {}
    for job in jobs:
        if job["array"] is None or job["task"] is None:
            yield job["id"]
        else:
            arrays.setdefault(job["array"], []).append(job["task"])
    for array, tasks in arrays.items():
        tasks.sort()
        for first in range(0, len(tasks), _AT_ONCE):
            yield folded(array, tasks[first : first + _AT_ONCE])


def current_user(client: Client) -> str:
    if client.host is not None:
        return str(client.who_am_i().get("user") or "")
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


Json = Annotated[bool, option("--json", "Print the jobs as JSON.")]


@option_groups
def cancel(
    daemon: DaemonOptions,
    selection: Selection,
    jobs: JobIds = None,
    grace: Annotated[
        str | None, option("--grace", "TIME", "From SIGTERM to SIGKILL (what its submitter said, else 10s).")
    ] = None,
    json: Json = False,
) -> None:
    """End jobs: those that wait now, those that run after a grace period."""
    from gpuyard.cli.jobs.submit import duration

    seconds = duration("--grace", grace)
    client = daemon.client()
    over: set[str] = set()

    def act(id: str) -> Job:
        try:
            return client.cancel(id, seconds)
        except Refused:
            if not selection.given_by_options or _count(job := client.job(id), "queued", "held", "running"):
                raise
            over.add(job["id"])  # it ended after it was selected
            return job

    def describe(job: Job) -> str:
        return "is over already" if job["id"] in over else describe_cancelled(job)

    _apply(selection.ids(client, jobs or ()), act, describe, json)


@option_groups
def hold(daemon: DaemonOptions, selection: Selection, jobs: JobIds = None, json: Json = False) -> None:
    """Keep waiting jobs from being started."""
    client, said = daemon.client(), [""]

    def act(id: str) -> Job:
        said[0] = "held" if _count(client.job(id), "queued", "running") else "was held already"
        return client.hold(id)

    _apply(selection.ids(client, jobs or (), "queued"), act, lambda _: said[0], json)


@option_groups
def release(daemon: DaemonOptions, selection: Selection, jobs: JobIds = None, json: Json = False) -> None:
    """Let held jobs be started again; give leases back."""
    client, said = daemon.client(), [""]

    def act(id: str) -> Job:
        job = client.job(id)
        if job["kind"] == "lease" and job["state"] == "running":
            client.give_back_lease(id)
            gpus = ", ".join(map(str, job["gpus"]))
            said[0] = f"given back; process {job['pid']} is left alone, so let it use GPU {gpus} no more"
            return client.job(id)
        said[0] = "released" if _count(job, "held") else "was not held"
        return client.release(id)

    _apply(selection.ids(client, jobs or (), "held"), act, lambda _: said[0], json)


def _count(job: Job, *states: str) -> int:
    """How many tasks of an array (or 1 for a job) are in one of the states."""
    tasks = job.get("tasks") or {job["state"]: 1}
    return sum(tasks.get(state, 0) for state in states)


def describe_cancelled(job: Job) -> str:
    if job["kind"] == "lease" and job["started_at"] is not None:
        return f"the lease ends; process {job['pid']} is left alone, so end it yourself if it uses the GPUs still"
    return "asked to end" if job["state"] == "running" else job["state"]


def _apply(jobs: list[str], act: Callable[[str], Job], describe: Callable[[Job], str], json: bool) -> None:
    """Act on every job; a failure is reported, and the others go on."""
    done: list[Job] = []
    for id in dict.fromkeys(jobs):
        try:
            done.append(act(id))
        except NoDaemon:
            raise
        except GpuyardError as error:
            output.say(f"gpuyard: error: {error}")
        else:
            output.say(f"job {id}: {describe(done[-1])}")
    if json:
        from gpuyard.cli.terminal.text_table import print_rows

        print_rows(done)
    if len(done) < len(dict.fromkeys(jobs)):
        raise typer.Exit(1)
