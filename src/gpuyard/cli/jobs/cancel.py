"""`gpuyard cancel`, `hold` and `release`: for jobs given by id or selected by state, user, name or tag."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpuyard.cli.common_options import DaemonOptions, option, option_groups
from gpuyard.cli.common_options import SomeJobIds as JobIds
from gpuyard.cli.jobs.job_lists import Name, State, Tag, check_state
from gpuyard.cli.terminal import output
from gpuyard.client.transport import NoDaemon
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.api.replies import BulkChange
    from gpuyard.api.types import Job
    from gpuyard.client.client import Client


Action = Literal["cancel", "hold", "release", "edit", "retry"]
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

    def change(self, client: Client, given: Sequence[str], action: Action, **how: Any) -> BulkChange:
        """Change all that match by one request, so that all of them change, or none."""
        check_state(self.state)
        if not (given or self.all_ or self.name or self.state or self.tag):
            raise UserError(f"which jobs of {self.user}? give --name, --state, --tag, or --all")
        return client.change_jobs(
            action, name=self.name or "", tag=self.tag or "", state=self.state or "", all=self.all_,
            user=self.user or "", jobs=list(given) or None, **how,
        )  # fmt: skip

    def ids(self, given: Sequence[str]) -> list[str]:
        if not given:
            raise UserError("which jobs? give their ids, or --name, --user, --state, --tag, or --all")
        return list(dict.fromkeys(given))


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
    from gpuyard.cli.jobs.job_options import duration

    seconds = duration("--grace", grace)
    client = daemon.client()
    if selection.given_by_options:
        found = selection.change(client, jobs or (), "cancel", grace=seconds)
        running = min(found["states"].get("running", 0), found["changed"])
        asked = f", {running:,} of them asked to end since they run" if running else ""
        _report(client, found, f"cancelled{asked}", json)
    else:
        _apply(selection.ids(jobs or ()), lambda id: client.cancel(id, seconds), describe_cancelled, json)


@option_groups
def hold(daemon: DaemonOptions, selection: Selection, jobs: JobIds = None, json: Json = False) -> None:
    """Keep waiting jobs from being started."""
    client, said = daemon.client(), [""]

    def act(id: str) -> Job:
        said[0] = "held" if _count(client.job(id), "queued", "running") else "was held already"
        return client.hold(id)

    if selection.given_by_options:
        _report(client, selection.change(client, jobs or (), "hold"), "held", json)
    else:
        _apply(selection.ids(jobs or ()), act, lambda _: said[0], json)


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

    if selection.given_by_options:
        _report(client, selection.change(client, jobs or (), "release"), "released", json)
    else:
        _apply(selection.ids(jobs or ()), act, lambda _: said[0], json)


def _report(client: Client, found: BulkChange, done: str, json: bool) -> None:
    """Tell what became of all that match."""
    if not found["matched"]:
        output.say("no job fits")
    else:
        missed = found["matched"] - found["changed"]
        late = f"; {output.many(missed, 'job')} had begun or ended meanwhile" if missed else ""
        output.say(f"{output.many(found['changed'], 'job')} {done}{late}")
    if json:
        from gpuyard.cli.terminal.text_table import print_rows

        print_rows([client.job(id) for id in found["jobs"]])


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
    for id in jobs:
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
    if len(done) < len(jobs):
        raise typer.Exit(1)
