"""The queue as it moves: a live table on a terminal, a line for every change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuyard.cli.demo.jobs import wants
from gpuyard.cli.table import indices, instant
from gpuyard.client import OVER

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuyard.client import Job

_COLOURS = {"running": "bold green", "succeeded": "blue", "queued": "yellow"}


@dataclass(frozen=True, slots=True)
class Scene:
    """The yard at an instant."""

    gpus: int
    jobs: Sequence[Job]
    """In the order of submission."""
    said: Mapping[str, str]
    """The last line that each job has printed, by its id."""
    to_come: int
    """Jobs that are not submitted yet."""
    over: int
    """Jobs that have ended, also those that are not among these any more."""
    began: str
    """When the first was submitted."""


Show = Callable[[Scene], None]


@contextmanager
def live() -> Iterator[Show]:
    """A table that is drawn over and over, and is gone in the end."""
    from rich.live import Live

    from gpuyard.cli.output import console

    with Live(console=console(), transient=True, auto_refresh=False) as screen:
        yield lambda scene: screen.update(_picture(scene), refresh=True)


@dataclass(slots=True)
class Lines:
    """One line for everything that happens."""

    states: dict[str, str] = field(default_factory=dict)

    def show(self, scene: Scene) -> None:
        """Tell what is new."""
        changed = [job for job in scene.jobs if self.states.get(job["id"]) != job["state"]]
        for job in sorted(changed, key=_since):
            self.states[job["id"]] = job["state"]
            seconds = (instant(_since(job)) - instant(scene.began)).total_seconds()
            line = f"{seconds:5.1f}s  {_called(job):<15} {job['state']:<10} {_news(job, scene)}"
            print(line.rstrip(), flush=True)


def _called(job: Job) -> str:
    name = job["name"] or job["id"]
    return name if job["task"] is None else f"{name} {job['task']}"


def _since(job: Job) -> str:
    """When a job came into the state it is in."""
    return job["ended_at"] or job["started_at"] or job["submitted_at"]


def _news(job: Job, scene: Scene) -> str:
    if job["state"] == "running":
        return f"on GPU {indices(job['gpus'])}"
    if job["state"] == "queued":
        return wants(job) + (f"; {job['reason']}" if job["reason"] else "")
    return job["reason"] or scene.said.get(job["id"], "")


def _picture(scene: Scene) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
    for head, width in (("JOB", 14), ("WANTS", 14), ("STATE", 9), ("GPUS", 5)):
        table.add_column(head, no_wrap=True, min_width=width)
    table.add_column("LAST LINE, OR WHY IT WAITS", no_wrap=True, ratio=1)
    for job in scene.jobs:
        colour = _COLOURS.get(job["state"], "red")
        said = job["reason"] or scene.said.get(job["id"], "")
        state = Text(job["state"], style=colour)
        table.add_row(_called(job), wants(job), state, indices(job["gpus"]) or "-", said)
    return Group(*(Text(line) for line in _gpu_lines(scene)), table)


def _gpu_lines(scene: Scene) -> Iterator[str]:
    running = [job for job in scene.jobs if job["state"] == "running"]
    waiting = sum(job["state"] not in OVER for job in scene.jobs) - len(running)
    for gpu in range(scene.gpus):
        names = [_called(job) for job in running if gpu in job["gpus"]]
        yield f"GPU {gpu}  {' + '.join(names) or 'idle'}"
    yield ""
    yield f"{scene.over} jobs are over, {len(running)} run, {waiting} wait" + (
        f", {scene.to_come} are still to come" if scene.to_come else ""
    )
    yield ""
