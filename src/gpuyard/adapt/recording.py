"""`gpuyard adapt record`: every way that a training could be decided, for several seeds, into one file.

Trees (`trees`) grow in folders beside that file, so that whatever is interrupted goes on where it was; a tree that is
complete becomes lines of the file, and its folder goes. They are grown by processes of this machine, or by jobs of the
queue, a job for each node.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuyard.adapt.files import read_text
from gpuyard.adapt.jobfile import Job
from gpuyard.adapt.tables import FORMAT, VERSION
from gpuyard.adapt.trees import Row, Tree
from gpuyard.errors import UserError

HEADER = {"format": FORMAT, "version": VERSION}
_LOOK = 0.5  # seconds between looks at how far others are
Watch = Callable[[float, int], None]
"""Told how many trees are complete, and of how many."""


@dataclass
class Recording:
    """A file of rows, and the trees that are still growing."""

    path: Path
    jobs: Sequence[Job]
    seeds: int
    trees: list[Tree] = field(default_factory=list)
    """Those that are not in the file yet."""

    @property
    def parts(self) -> Path:
        """Where trees grow."""
        return self.path.with_name(f"{self.path.name}.parts")

    @staticmethod
    def begun(path: Path, jobs: Sequence[Job], seeds: int) -> Recording:
        """A recording, new or one that goes on; what the file has already is not recorded again."""
        known = _known(path)
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
        """Make the file and the folders."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.path.write_text(json.dumps(HEADER) + "\n")
        for tree in self.trees:
            tree.begin()

    def complete(self, tree: Tree) -> None:
        """Write what came of a tree, all of it or nothing, and forget the tree."""
        text = "".join(json.dumps({**row, "job": tree.job.hash}) + "\n" for row in tree.rows())
        with self.path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(tree.folder)

    def end(self) -> None:
        """Nothing grows any more."""
        if self.parts.exists() and not any(self.parts.iterdir()):
            self.parts.rmdir()


def _known(path: Path) -> dict[tuple[str, int], str]:
    """Which environments and seeds are in a file, and of which job; a line that was cut off is taken away."""
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
    return _whole(path, lines, rows)


def _whole(path: Path, lines: list[str], rows: list[Row]) -> dict[tuple[str, int], str]:
    """What is there in full; trees are written at once, so only the last can be cut off, and is taken away."""
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


def grow_here(recording: Recording, processes: int, watch: Watch) -> None:
    """Grow all trees by processes of this machine."""
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
        done, open_ = wait(open_, timeout=_LOOK, return_when=FIRST_COMPLETED)
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
    """The rows of a recording."""
    return [json.loads(line) for line in read_text(path).splitlines()[1:]]


def savings(rows: Iterable[Row]) -> tuple[float, float]:
    """CPU seconds that were spent, and that would have been with a training of its own for every way."""
    spent = alone = 0.0
    for row in rows:
        spent, alone = spent + float(row["seconds"]), alone + float(row["alone"])
    return spent, alone
