"""Which open jobs a command is for: by their ids, or by what they are like."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.arrays import folded
from gpuyard.cli import output
from gpuyard.cli.ps import Name, State, Tag, check_state
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.client import Client, Job

_AT_ONCE = 500
"""Tasks of an array that one request names."""

User = Annotated[str | None, typer.Option("--user", metavar="U", help="This user's jobs, which is for admins (yours).")]
All = Annotated[bool, typer.Option("--all", help="All open jobs of yours, or of --user.")]


@dataclass(frozen=True, slots=True)
class Choice:
    """Options that choose among the open jobs; what fits them all is meant."""

    name: Name = None
    user: User = None
    state: State = None
    tag: Tag = None
    all_: All = False

    @property
    def made(self) -> bool:
        """Whether jobs are chosen by what they are like."""
        return bool(self.all_ or self.name or self.user or self.state or self.tag)

    def ids(self, client: Client, given: Sequence[str], usual: str | None = None) -> list[str]:
        """The jobs that are meant, tasks of an array as one; in the state `usual`, unless another is asked for."""
        check_state(self.state)
        if not self.made:
            if not given:
                raise UserError("which jobs? give their ids, or --name, --user, --state, --tag, or --all")
            return list(given)
        state = self.state or usual
        jobs = client.jobs(user=self.user or myself(client), name=self.name, state=state, tag=self.tag)
        if given:
            jobs = [job for job in jobs if job["id"] in given or job["array"] in given]
        output.say(f"{output.many(len(jobs), 'job')} chosen" if jobs else "no open job fits")
        return list(_together(jobs))


def _together(jobs: Iterable[Job]) -> Iterable[str]:
    """Their ids; tasks of one array are named together, since there may be thousands."""
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


def myself(client: Client) -> str:
    """The name that the daemon knows this user by."""
    if client.host is not None:
        return str(client.who_am_i().get("user") or "")
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
