"""`gpuyard adapt record`:

every sequence of decisions for several seeds, grown by local processes or by queued jobs.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuyard.adapt.agent.decision_trees import FORMAT, VERSION
from gpuyard.adapt.training.run_trees import Actions, Row, Tree, node_name
from gpuyard.adapt.training_job import Job, read_text
from gpuyard.api.types import OVER, Wishes
from gpuyard.client.client import Client
from gpuyard.errors import UserError

HEADER = {"format": FORMAT, "version": VERSION}
_PROCESS_POLL = 0.5  # seconds between looks at how far others are
Watch = Callable[[float, int], None]  # called with the number of complete trees, and of all


@dataclass
class Recording:
    path: Path
    jobs: Sequence[Job]
    seeds: int
    trees: list[Tree] = field(default_factory=list)  # those that are not in the file yet

    @property
    def parts(self) -> Path:
        return self.path.with_name(f"{self.path.name}.parts")

    @staticmethod
    def begun(path: Path, jobs: Sequence[Job], seeds: int) -> Recording:
        """A new or a continued recording; what the file has already is not recorded again."""
        known = _read_known(path)
        recording = Recording(path, [job for one in jobs for job in one.to_record()], seeds)
        names = [job.name for job in recording.jobs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UserError(f"two environments are called {min(twice)}: give the jobs names that differ")
        for seed in range(seeds):  # a seed of all first, so that what is interrupted has something of everything
            for job in recording.jobs:
                other = known.get((job.name, seed))
                if other is None:
                    folder = recording.parts / f"{job.name}-{seed}"
                    recording.trees.append(Tree(replace(job, seed=seed), folder))
                elif other != replace(job, seed=seed).hash:
                    raise UserError(
                        f"{path} has an environment {job.name} of other settings; record into another file, or name "
                        "the job differently"
                    )
        return recording

    def begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.path.write_text(json.dumps(HEADER) + "\n")
        for tree in self.trees:
            tree.begin()

    def complete(self, tree: Tree) -> None:
        """Write a tree's rows at once, and remove the tree."""
        text = "".join(json.dumps({**row, "job": tree.job.hash}) + "\n" for row in tree.rows())
        with self.path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(tree.folder)

    def end(self) -> None:
        if self.parts.exists() and not any(self.parts.iterdir()):
            self.parts.rmdir()


def _read_known(path: Path) -> dict[tuple[str, int], str]:
    """Environments and seeds of a file with the hash of their job; a line that was cut off is removed."""
    if not path.exists():
        return {}
    if path.is_dir():
        raise UserError(f"{path} is a directory; --out names the file that the recording goes to")
    lines = path.read_text().splitlines(keepends=True)
    rows: list[Row] = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines) - 1:
                break
            raise UserError(f"{path}, line {number + 1}: this is no JSON; record into another file") from None
    if lines and (not rows or rows[0] != HEADER):
        raise UserError(f"{path} is no recording of gpuyard; record into another file")
    return _drop_cut_off(path, lines, rows)


def _drop_cut_off(path: Path, lines: list[str], rows: list[Row]) -> dict[tuple[str, int], str]:
    """What is complete; trees are written at once, so only the last can be cut off, and is removed."""
    known = {(str(row["environment"]), int(row["seed"])): str(row.get("job", "")) for row in rows[1:]}
    if len(rows) == len(lines) and (not lines or lines[-1].endswith("\n")):
        return known
    last = (rows[-1].get("environment"), rows[-1].get("seed")) if len(rows) > 1 else None
    kept = [
        line
        for line, row in zip(lines, rows, strict=False)
        if "environment" not in row or (row["environment"], row["seed"]) != last
    ]
    path.write_text("".join(kept))
    return {key: job for key, job in known.items() if key != last}


def grow_local(recording: Recording, processes: int, watch: Watch) -> None:
    total = len(recording.trees)
    if processes <= 1 or total <= 1:
        for number, tree in enumerate(recording.trees):
            watch(number, total)
            _grow(tree)
            recording.complete(tree)
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not outlive a fork
    with ProcessPoolExecutor(min(processes, total), mp_context=context) as pool:
        futures = {pool.submit(_grow, tree): tree for tree in recording.trees}
        try:
            _gather(recording, futures, watch)
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            for process in list((pool._processes or {}).values()):  # each tree is on disk as far as it has grown
                process.terminate()
            raise


def _gather(recording: Recording, futures: dict[Future[None], Tree], watch: Watch) -> None:
    total, open_ = len(futures), set(futures)
    while open_:
        watch(total - len(open_), total)
        done, open_ = wait(open_, timeout=_PROCESS_POLL, return_when=FIRST_COMPLETED)
        for future in done:
            try:
                future.result()
            except BrokenProcessPool:
                raise UserError("a process that records was killed; run the same command again to go on") from None
            recording.complete(futures[future])


def _grow(tree: Tree) -> None:
    for _ in tree.walk():
        pass


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in read_text(path).splitlines()[1:]]


def savings(rows: Iterable[Row]) -> tuple[float, float]:
    """CPU seconds that were spent, and those with a training of its own for every sequence."""
    spent = alone = 0.0
    for row in rows:
        spent, alone = spent + float(row["seconds"]), alone + float(row["alone"])
    return spent, alone


_JOB_POLL = 1.0  # seconds between looks at the jobs
_MOST_JOBS = 200  # jobs at a time: others use the queue, too


@dataclass
class _QueuedTree:
    tree: Tree
    ready: list[Actions] = field(default_factory=lambda: [()])
    queued: dict[str, Actions] = field(default_factory=dict)  # nodes by the ids of their jobs

    @property
    def grown(self) -> bool:
        return not self.ready and not self.queued

    def look(self) -> None:
        """Skip all nodes that were visited before."""
        waiting, self.ready = self.ready, []
        while waiting:
            actions = waiting.pop()
            if self.tree.row_file(actions).exists():
                continue
            if self.tree.state_file(actions).exists():
                waiting += self.tree.below(actions)
            else:
                self.ready.append(actions)


def grow_queued(recording: Recording, client: Client, wishes: Wishes, watch: Watch) -> None:
    """Grow all trees by jobs of the queue; returns when all are complete."""
    growing = [_QueuedTree(tree) for tree in recording.trees]
    total, open_ = len(growing), list(growing)
    for one in growing:
        one.look()
    while open_:
        room = _MOST_JOBS - sum(len(one.queued) for one in open_)
        for one in open_:
            room -= _queue(one, client, wishes, room)
        for one in [one for one in open_ if one.grown]:
            recording.complete(one.tree)
            open_.remove(one)
        watch(total - len(open_), total)
        if open_:
            time.sleep(_JOB_POLL)
            states = {job["id"]: job["state"] for job in client.jobs()}
            for one in open_:
                _poll_jobs(one, client, states)


def _queue(one: _QueuedTree, client: Client, wishes: Wishes, room: int) -> int:
    """Queue what can begin; returns the number of jobs."""
    now, one.ready = one.ready[: max(room, 0)], one.ready[max(room, 0) :]
    for actions in now:
        one.queued[_submitted(one.tree, actions, client, wishes)] = actions
    return len(now)


def _submitted(tree: Tree, actions: Actions, client: Client, wishes: Wishes) -> str:
    """The job of a node: the one that was queued before if it may still succeed, or else a new one."""
    folder, node = str(tree.folder.resolve()), node_name(actions)
    command = [sys.executable, "-m", "gpuyard", "adapt", "visit", folder, node]
    wishes = {**wishes, "name": f"{tree.folder.name}/{node}"[-200:]}
    key = hashlib.sha256(f"{folder} {tree.job.hash} {node}".encode()).hexdigest()[:32]
    id = client.submit(command, directory=Path.cwd(), key=key, **wishes)
    if client.job(id)["state"] in OVER and not _visited(tree, actions):
        return client.submit(command, directory=Path.cwd(), **wishes)
    return id


def _visited(tree: Tree, actions: Actions) -> bool:
    return tree.row_file(actions).exists() or tree.state_file(actions).exists()


def _poll_jobs(one: _QueuedTree, client: Client, states: dict[str, str]) -> None:
    for id, actions in list(one.queued.items()):
        if id in states and states[id] not in OVER:
            continue
        tree = one.tree
        if not _visited(tree, actions):
            state = client.job(id)["state"]
            if state not in OVER:
                continue
            raise UserError(
                f"job {id}, which records {tree.folder.name} at {node_name(actions)}, ended {state}: see gpuyard logs "
                f"{id}, then run the same command again"
            )
        del one.queued[id]
        one.ready.append(actions)
        one.look()
