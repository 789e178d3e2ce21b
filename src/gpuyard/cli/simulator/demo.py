"""`gpuyard demo`: a daemon with simulated GPUs, and a queue that lives until Ctrl-C or runs ten jobs."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gpuyard.api.types import OVER
from gpuyard.cli.common_options import option
from gpuyard.cli.simulator import demo_training
from gpuyard.cli.simulator.simulation_options import Seed
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon, Refused
from gpuyard.errors import GpuyardError
from gpuyard.units import parse_size

if TYPE_CHECKING:
    from gpuyard.api.types import Job, Wishes
    from gpuyard.cli.simulator.demo_view import PlannedJob, Scene
    from gpuyard.cli.terminal.live_view import LiveView


GPUS = 8
MEMORY = "16G"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def demo_daemon(tokens: str = "auto") -> Iterator[tuple[Client, Path]]:
    """A daemon in a directory of its own; daemon, directory and all jobs are removed at the end, even on error."""
    from gpuyard.cli.common_options import LocalOptions
    from gpuyard.cli.daemon.up import StartOptions, start

    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-demo-"))
    os.environ |= {"GPUYARD_SINGLE_USER": "true", "GPUYARD_PAGE": "on"}  # of the daemon
    gpus = f"{GPUS}x{MEMORY}"
    options = StartOptions(gpus, "priority", "easy", "pack", bind="127.0.0.1", port="0", tokens=tokens)
    settings = LocalOptions(str(folder), str(folder / "gpuyard.sock")).settings(**options.flags())
    client = Client(settings.socket)
    try:
        start(settings, client, options)
        yield client, folder
    except KeyboardInterrupt:
        output.say("interrupted: the jobs and the daemon are ended")
        raise SystemExit(130) from None
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        _stop_all(client)
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_all(client: Client) -> None:
    from gpuyard.cli.daemon.up import stop

    with suppress(GpuyardError, TimeoutError):  # the daemon must end even if stopping the jobs fails
        left = client.jobs()
        for job in reversed(left):  # those that wait come first: they would take the place of the others
            with suppress(Refused):  # it is over by now
                client.cancel(job["id"], grace=1.0)
        for job in left:
            client.wait(job["id"], timeout=30.0)
    with suppress(NoDaemon):
        stop(client)


CROWD = 22  # open jobs at a time, roughly
_LIVING_LOOK = 1.0
_RECENT = 6  # ended jobs that are still shown
_SCRIPT = "train.py"


class DemoJob(NamedTuple):
    user: str
    model: str
    arguments: tuple[str, ...]
    wishes: Wishes
    then: str = ""  # name of the job that follows if it succeeds


class _Recipe(NamedTuple):
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


def stream(seed: int) -> Iterator[DemoJob]:
    """Jobs without end: first the opening, which has one of everything."""
    draw = random.Random(seed)
    yield from _opening()
    for number in itertools.count(len(_RECIPES) + 1):
        [recipe] = draw.choices(_RECIPES, [recipe.weight for recipe in _RECIPES])
        fails = draw.random() < 0.08
        yield _made(recipe, draw, number, fails)


def _opening() -> Iterator[DemoJob]:
    """Jobs that fill the GPUs at once, and some that wait; short, so that something happens soon."""
    draw = random.Random(0)
    array: Wishes = {"array": "0-8%3", "gpu_memory": _SMALL, "tags": ["protein"], "name": "embed", "estimate": 30.0}
    yield DemoJob("chen", "embed", ("--epochs", "5", "--pace", "3"), array)
    for number, recipe in enumerate(_RECIPES):
        yield _made(recipe._replace(epochs=recipe.epochs // 2), draw, number + 1, False)
    held: Wishes = {"hold": True, "gpus": 8, "tags": ["language"], "name": "llm-full", "time_limit": 7200.0}
    yield DemoJob("emil", "llm-full", ("--epochs", "20"), held)
    lost: Wishes = {"tags": ["robotics"], "name": "sac-lr1", "priority": 1.0, "time_limit": 300.0}
    yield DemoJob("dora", "sac", ("--lr", "1", "--epochs", "9", "--fail-at", "2"), lost)


def _made(recipe: _Recipe, draw: random.Random, number: int, fails: bool) -> DemoJob:
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
    return DemoJob(recipe.user, recipe.model, tuple(arguments), wishes, then)


@dataclass(slots=True)
class LivingQueue:
    client: Client
    people: dict[str, Client]  # each with a token of their own: the daemon takes a job's user from the token
    folder: Path
    coming: Iterator[DemoJob]
    last_lines: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, client: Client, folder: Path, seed: int) -> LivingQueue:
        url = client.status()["url"]
        people = {
            name: Client(host=url, token=client.make_token(name, label="demo")["token"]) for name in PEOPLE
        }  # fmt: skip
        shutil.copy(demo_training.__file__, folder / _SCRIPT)
        return cls(client, people, folder, stream(seed))

    def run(self, view: LiveView[Scene], gpus: int) -> None:
        from gpuyard.cli.simulator.demo_view import Scene

        began = ""
        while True:
            self.fill()
            jobs = self.jobs()
            began = began or min(job["submitted_at"] for job in jobs)
            self._listen(jobs)
            over = sum(self.client.status()["jobs"].get(state, 0) for state in OVER)
            view.show(Scene(gpus, jobs, self.last_lines, 0, began=began, over=over))
            time.sleep(_LIVING_LOOK)

    def fill(self) -> None:
        counts = self.client.status()["jobs"]
        for _ in range(CROWD - sum(counts.get(state, 0) for state in ("queued", "held", "running"))):
            self.submit(next(self.coming))

    def submit(self, new: DemoJob) -> str:
        who = self.people[new.user]
        command = ["python3" if shutil.which("python3") else sys.executable, _SCRIPT, new.model]
        id = who.submit([*command, *new.arguments], directory=self.folder, **new.wishes)
        if new.then:
            tags = new.wishes.get("tags", ())
            after: Wishes = {"name": new.then, "tags": tags, "estimate": 15.0, "dependency": f"afterok:{id}"}
            who.submit([*command, "--epochs", "3", "--pace", "4"], directory=self.folder, **after)
        return id

    def jobs(self) -> list[Job]:
        found = {job["id"]: job for job in (*self.client.history(limit=_RECENT), *self.client.jobs())}
        return sorted(found.values(), key=lambda job: (job["submitted_at"], job["id"]))

    def _listen(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job["state"] == "running":
                try:
                    self.last_lines[job["id"]] = last_line(self.client, job["id"])
                except (Refused, NoDaemon):
                    continue  # it has just ended


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOOK = 0.2  # seconds between two looks at the queue

Out = Annotated[Path, option("--out", "DIR", "Where the report of --exit goes.", file_okay=False)]


def demo(
    exit_: Annotated[
        bool, option("--exit", "For scripts: ten jobs, plain lines, a report; it ends by itself.")
    ] = False,
    out: Out = Path("demo-report"),
    seed: Seed = 1,
) -> None:
    """Let a queue live on 8 simulated GPUs, with its page, until Ctrl-C; or run ten jobs and draw what happened."""
    if exit_:
        _ten_jobs(out, seed)
    else:
        _living_queue(seed)


def _living_queue(seed: int) -> None:
    from gpuyard.cli.simulator import demo_view

    with demo_daemon() as (client, folder):
        _introduce(client, folder)
        with demo_view.demo_view() as view:
            LivingQueue.begin(client, folder, seed).run(view, GPUS)


def _introduce(client: Client, folder: Path) -> None:
    print(
        f"Open {client.status()['url']}/ in a browser.\n\n"
        f"{GPUS} simulated GPUs of {MEMORY} each: no real GPU is used. The jobs are real\n"
        "processes, which print what a training prints, and sleep. In another terminal:\n\n"
        f"    gpuyard --data-dir {folder} top\n\n"
        "Ctrl-C ends it, and leaves nothing behind.\n",
        flush=True,
    )


def _ten_jobs(out: Path, seed: int) -> None:
    from gpuyard.cli.simulator import demo_view
    from gpuyard.cli.simulator.demo_view import PLAN

    out.mkdir(parents=True, exist_ok=True)
    with demo_daemon() as (client, folder):
        print(
            f"The page is at {client.status()['url']}/ while this lasts.\n\n"
            f"{GPUS} simulated GPUs of {MEMORY} each: no real GPU is used. The jobs are real\n"
            "processes that train small models with numpy, on the CPU of this machine.\n"
            "This takes half a minute; Ctrl-C ends it.\n",
            flush=True,
        )
        jobs, last_lines = _run(client, folder, PLAN, seed, demo_view.demo_view(live=False))
        _keep_logs(client, jobs, out / "logs")
        happened = demo_view.what_happened(folder / "gpuyard.db")
    demo_view.print_summary(jobs, last_lines)
    metrics = demo_view.write_happened(happened, out)
    demo_view.print_end(metrics, demo_view.what_if(happened, out), out)
    _check(jobs, PLAN)


def _check(jobs: Sequence[Job], plan: Sequence[PlannedJob]) -> None:
    expected = {planned.name: planned.expected for planned in plan}
    wrong = [job for job in jobs if job["state"] != expected[job["name"] or ""]]
    for job in wrong:
        output.say(f"gpuyard: error: {job['name']} is {job['state']}: {job['reason'] or 'see its output'}")
    if wrong:
        raise typer.Exit(1)


def _run(
    client: Client, folder: Path, plan: Sequence[PlannedJob], seed: int, view: LiveView[Scene]
) -> tuple[list[Job], dict[str, str]]:
    """Submit the jobs at their times, and show the queue until all are over; returns their last lines by id."""
    from gpuyard.cli.simulator.demo_view import Scene

    began = time.monotonic()
    ids: list[str] = []
    last_lines: dict[str, str] = {}
    over: set[str] = set()
    while len(over) < len(plan):
        while len(ids) < len(plan) and time.monotonic() - began >= plan[len(ids)].at:
            ids.append(plan[len(ids)].submit(client, folder, seed))
        jobs = sorted(client.jobs(all=True), key=lambda job: ids.index(job["id"]))
        last_lines |= {
            job["id"]: last_line(client, job["id"]) for job in jobs if job["attempt"] and job["id"] not in over
        }
        over = {job["id"] for job in jobs if job["state"] in OVER}
        view.show(Scene(GPUS, jobs, last_lines, len(plan) - len(ids), len(over), jobs[0]["submitted_at"]))
        time.sleep(_LOOK)
    return jobs, last_lines


def last_line(client: Client, job: str) -> str:
    lines = client.log(job, -200).data.decode(errors="replace").splitlines()
    return _COLOUR.sub("", lines[-1]) if lines else ""


def _keep_logs(client: Client, jobs: Sequence[Job], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        (folder / f"{job['name']}.txt").write_bytes(client.log(job["id"]).data)
