"""`gpuyard cancel`, `hold` and `release`: what is done to several jobs, each for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.choosing import Choice
from gpuyard.cli.sharing import shared
from gpuyard.cli.yard import SomeJobIds as JobIds
from gpuyard.cli.yard import Yard
from gpuyard.client import NoDaemon, Refused
from gpuyard.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.client import Job

Json = Annotated[bool, typer.Option("--json", help="Print the jobs as JSON.")]


@shared
def cancel(
    yard: Yard,
    choice: Choice,
    jobs: JobIds = None,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="TIME", help="From SIGTERM to SIGKILL (what its submitter said, else 10s)."),
    ] = None,
    json: Json = False,
) -> None:
    """End jobs: those that wait now, those that run after a grace period."""
    from gpuyard.cli.submit import duration

    seconds = duration("--grace", grace)
    client = yard.client()
    over: set[str] = set()

    def act(id: str) -> Job:
        try:
            return client.cancel(id, seconds)
        except Refused:
            if not choice.made or _count(job := client.job(id), "queued", "held", "running"):
                raise
            over.add(job["id"])  # since it was chosen, which is nobody's mistake
            return job

    def describe(job: Job) -> str:
        return "is over already" if job["id"] in over else describe_cancelled(job)

    _each(choice.ids(client, jobs or ()), act, describe, json)


@shared
def hold(yard: Yard, choice: Choice, jobs: JobIds = None, json: Json = False) -> None:
    """Keep waiting jobs from being started."""
    client, said = yard.client(), [""]

    def act(id: str) -> Job:
        said[0] = "held" if _count(client.job(id), "queued", "running") else "was held already"
        return client.hold(id)

    _each(choice.ids(client, jobs or (), "queued"), act, lambda _: said[0], json)


@shared
def release(yard: Yard, choice: Choice, jobs: JobIds = None, json: Json = False) -> None:
    """Let held jobs be started again; give leases back."""
    client, said = yard.client(), [""]

    def act(id: str) -> Job:
        job = client.job(id)
        if job["kind"] == "lease" and job["state"] == "running":
            client.give_back_lease(id)
            said[0] = f"given back; process {job['pid']} is left alone, so let it use GPU {_listed(job)} no more"
            return client.job(id)
        said[0] = "released" if _count(job, "held") else "was not held"
        return client.release(id)

    _each(choice.ids(client, jobs or (), "held"), act, lambda _: said[0], json)


def _count(job: Job, *states: str) -> int:
    """How many tasks of an array are in one of some states; of a job, whether it is."""
    tasks = job.get("tasks") or {job["state"]: 1}
    return sum(tasks.get(state, 0) for state in states)


def _listed(job: Job) -> str:
    return ", ".join(map(str, job["gpus"]))


def describe_cancelled(job: Job) -> str:
    """What became of a job that was cancelled."""
    if job["kind"] == "lease" and job["started_at"] is not None:
        return f"the lease ends; process {job['pid']} is left alone, so end it yourself if it uses the GPUs still"
    return "asked to end" if job["state"] == "running" else job["state"]


def _each(jobs: list[str], act: Callable[[str], Job], describe: Callable[[Job], str], json: bool) -> None:
    """Do it to every job; one that cannot be done is told, and does not keep the others from it."""
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
        from gpuyard.cli.table import print_rows

        print_rows(done)
    if len(done) < len(dict.fromkeys(jobs)):
        raise typer.Exit(1)
