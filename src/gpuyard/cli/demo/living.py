"""A queue that goes on: jobs of several people and projects, new ones as others end."""

from __future__ import annotations

import itertools
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuyard.cli.demo import training
from gpuyard.client import OVER, Client, NoDaemon, Refused
from gpuyard.units import parse_size

if TYPE_CHECKING:
    from gpuyard.cli.demo.screen import Show
    from gpuyard.client import Job, Wishes

CROWD = 22
"""Jobs that are open at a time, more or less."""
_LOOK = 1.0
_RECENT = 6
"""Jobs that are over and still told of."""
_SCRIPT = "train.py"


class Coming(NamedTuple):
    """A job that is to come."""

    user: str
    model: str
    arguments: tuple[str, ...]
    wishes: Wishes
    then: str = ""
    """What is to follow it, if it succeeds."""


class _Recipe(NamedTuple):
    """A sort of job, of which many come."""

    user: str
    project: str
    model: str
    gpus: int
    epochs: int
    pace: float
    weight: int
    wishes: Wishes


_SMALL = int(parse_size("5G"))
_RECIPES = (
    _Recipe("ann", "vision", "resnet50", 2, 14, 4.0, 4, {}),
    _Recipe("ann", "vision", "vit-small", 1, 10, 5.0, 4, {}),
    _Recipe("ben", "speech", "conformer", 4, 12, 5.0, 2, {}),
    _Recipe("ben", "speech", "wav2vec", 1, 8, 6.0, 3, {"retries": 1, "retry_delay": 10.0}),
    _Recipe("chen", "protein", "fold", 1, 9, 4.0, 5, {"gpu_memory": _SMALL}),
    _Recipe("dora", "robotics", "ppo", 1, 20, 3.0, 3, {"preemptible": True}),
    _Recipe("dora", "robotics", "sac", 1, 12, 4.0, 3, {}),
    _Recipe("emil", "language", "llm-sft", 6, 8, 6.0, 1, {"priority": 5.0}),
)
PEOPLE = tuple(dict.fromkeys(recipe.user for recipe in _RECIPES))


def stream(seed: int) -> Iterator[Coming]:
    """Jobs without end: the opening, which has one of everything, and then what comes."""
    draw = random.Random(seed)
    yield from _opening()
    for number in itertools.count(len(_RECIPES) + 1):
        [recipe] = draw.choices(_RECIPES, [recipe.weight for recipe in _RECIPES])
        fails = draw.random() < 0.08
        yield _made(recipe, draw, number, fails)


def _opening() -> Iterator[Coming]:
    """What fills the GPUs at once, and leaves some to wait; short, so that something happens soon."""
    draw = random.Random(0)
    array: Wishes = {"array": "0-8%3", "gpu_memory": _SMALL, "tags": ["protein"], "name": "embed", "estimate": 30.0}
    yield Coming("chen", "embed", ("--epochs", "5", "--pace", "3"), array)
    for number, recipe in enumerate(_RECIPES):
        yield _made(recipe._replace(epochs=recipe.epochs // 2), draw, number + 1, False)
    held: Wishes = {"hold": True, "gpus": 8, "tags": ["language"], "name": "llm-full", "time_limit": 7200.0}
    yield Coming("emil", "llm-full", ("--epochs", "20"), held)
    lost: Wishes = {"tags": ["robotics"], "name": "sac-lr1", "priority": 1.0, "time_limit": 300.0}
    yield Coming("dora", "sac", ("--lr", "1", "--epochs", "9", "--fail-at", "2"), lost)


def _made(recipe: _Recipe, draw: random.Random, number: int, fails: bool) -> Coming:
    epochs = max(3, round(recipe.epochs * draw.uniform(0.6, 1.4)))
    rate, seed = draw.choice((0.3, 0.1, 0.03, 0.01)), draw.randrange(5)
    takes = epochs * recipe.pace
    arguments = ["--lr", f"{rate:g}", "--seed", str(seed), "--epochs", str(epochs), "--pace", f"{recipe.pace:g}"]
    if fails:
        arguments += ["--fail-at", str(draw.randint(1, epochs))]
    wishes: Wishes = {
        "name": f"{recipe.model}-{number}", "tags": [recipe.project], "gpus": recipe.gpus, "estimate": takes * 1.1,
        "time_limit": takes * 3, **recipe.wishes,
    }  # fmt: skip
    then = f"eval-{recipe.model}-{number}" if recipe.gpus > 1 and draw.random() < 0.4 else ""
    return Coming(recipe.user, recipe.model, tuple(arguments), wishes, then)


@dataclass(slots=True)
class Living:
    """Keeps the queue alive."""

    client: Client
    people: dict[str, Client]
    """Each with a token of their own: whose a job is, is not for its submitter to say."""
    folder: Path
    coming: Iterator[Coming]
    said: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, client: Client, folder: Path, seed: int) -> Living:
        """Let everybody in who is to submit something."""
        url = client.status()["url"]
        people = {
            name: Client(host=url, token=client.make_token(name, label="demo")["token"]) for name in PEOPLE
        }  # fmt: skip
        shutil.copy(training.__file__, folder / _SCRIPT)
        return cls(client, people, folder, stream(seed))

    def go_on(self, show: Show, gpus: int) -> None:
        """Submit and show, until somebody interrupts."""
        from gpuyard.cli.demo.screen import Scene

        began = ""
        while True:
            self.fill()
            jobs = self.jobs()
            began = began or min(job["submitted_at"] for job in jobs)
            self._listen(jobs)
            over = sum(self.client.status()["jobs"].get(state, 0) for state in OVER)
            show(Scene(gpus, jobs, self.said, 0, began=began, over=over))
            time.sleep(_LOOK)

    def fill(self) -> None:
        """Let new jobs come as others end."""
        counts = self.client.status()["jobs"]
        for _ in range(CROWD - sum(counts.get(state, 0) for state in ("queued", "held", "running"))):
            self.submit(next(self.coming))

    def submit(self, new: Coming) -> str:
        """Queue a job, and what follows it."""
        who = self.people[new.user]
        command = ["python3" if shutil.which("python3") else sys.executable, _SCRIPT, new.model]
        id = who.submit([*command, *new.arguments], directory=self.folder, **new.wishes)
        if new.then:
            tags = new.wishes.get("tags", ())
            after: Wishes = {"name": new.then, "tags": tags, "estimate": 15.0, "dependency": f"afterok:{id}"}
            who.submit([*command, "--epochs", "3", "--pace", "4"], directory=self.folder, **after)
        return id

    def jobs(self) -> list[Job]:
        """The open ones, and those that ended last, as they came."""
        found = {job["id"]: job for job in (*self.client.history(limit=_RECENT), *self.client.jobs())}
        return sorted(found.values(), key=lambda job: (job["submitted_at"], job["id"]))

    def _listen(self, jobs: Sequence[Job]) -> None:
        """The last line of each that runs."""
        from gpuyard.cli.demo.command import last_line

        for job in jobs:
            if job["state"] == "running":
                try:
                    self.said[job["id"]] = last_line(self.client, job["id"])
                except (Refused, NoDaemon):
                    continue  # it went while we looked; the next look tells
