"""How far running jobs are, by what they report or print. Read on demand, and never by the loop itself.

A job says it by its file (`gpuyard.progress`), by a line `progress 37/100` in its output, or without meaning to: by a
line that begins with `Epoch 3/10`, or by a bar of tqdm. What is said on purpose counts more than what is guessed, and
epochs more than bars, since a bar may be one of many. The file and the output belong to the job's user, who may put
anything there: reads are short, follow no link and wait for nothing.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict

from gpuyard.client.progress import AMOUNT, NUMBER, amount, numbers
from gpuyard.daemon.store.views import JobView, run_seconds

_TAIL = 4096
_LINE = 256
_MOST = 4096  # jobs that are remembered
_CLOCKS = 0.1  # seconds by which the time of a file may be before that of the attempt which made it

BAR, EPOCH, SAID, REPORTED = range(4)  # what a reading comes from; larger ones count more

_SAID = re.compile(rf"(?:^|[\s:>\]])progress[:=]?\s{{1,9}}{AMOUNT}(?![\w/%])", re.IGNORECASE)
_EPOCH = re.compile(r"\W{0,9}epoch\W{0,3}(\d{1,9})\s?(?:/|of)\s?(\d{1,9})(?![\w/.])", re.IGNORECASE)
_INSIDE = re.compile(r"epoch\W{0,3}\d", re.IGNORECASE)
_BAR = re.compile(
    rf"\d{{1,3}}%\|[^|]*\|\s?({NUMBER})([kMGTPEZY]?)/({NUMBER})([kMGTPEZY]?)"
    r" \[[\d:]{1,15}<([\d:]{1,15}|\?),[^\]]*\]"
)
_UP = "\x1b[A"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,9}[A-Za-z]")
_SCALE = {unit: 1000.0**power for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E", "Z", "Y"))}


class Progress(TypedDict):
    done: float
    total: float
    fraction: float
    remaining: float | None


_FORESEEABLE = 3e9  # seconds, about a century: who has hardly begun may seem to need longer


class Expected(NamedTuple):
    """When a running job should end, never in the past; None: nobody knows."""

    at: float | None = None
    by: str = ""  # progress, estimate, runs, limit (then at the latest), or overdue: it takes longer than it should


class Reading(NamedTuple):
    kind: int
    done: float
    total: float
    left: float | None = None  # seconds, where it said that as well


class Logs(Protocol):
    """Reads output; every engine does."""

    def read_log(self, job: str, attempt: int, offset: int, size: int) -> tuple[int, bytes]:
        """Bytes of an attempt's output."""
        ...

    def log_size(self, job: str, attempt: int) -> int:
        """How many bytes of output there are."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    attempt: int
    size: int = 0
    file: tuple[int, int] | None = None
    reading: Reading | None = None
    at: float = 0.0  # when it said so, or was first seen to have


class ProgressReader:
    """How far jobs are. For any thread."""

    def __init__(self, logs: Logs, work: Path) -> None:
        self._logs, self._work = logs, work
        self._jobs: dict[str, _Seen] = {}

    def of(self, view: JobView, now: float) -> Progress | None:
        """How far a job is; None if it does not run, or does not tell."""
        said = self.said(view, now)
        if said is None or view.started is None:
            return None
        return estimate(said[0], run_seconds(view, said[1]), now - said[1])

    def ends(self, views: Iterable[JobView], now: float) -> dict[str, Expected]:
        """When running jobs should end."""
        return {view.id: expected_end(view, self.of(view, now), now) for view in views if view.state == "running"}

    def said(self, view: JobView, now: float) -> tuple[Reading, float] | None:
        """A job's last progress, and its time; None if it does not run, or reports none."""
        if view.state != "running" or view.started is None:
            self._jobs.pop(view.id, None)
            return None
        seen = self._jobs.get(view.id)
        if seen is None or seen.attempt != view.attempt:
            seen = _Seen(view.attempt)
        seen = self._look(view, view.started, seen, now)
        if len(self._jobs) >= _MOST:
            self._jobs = {}
        self._jobs[view.id] = seen
        return None if seen.reading is None else (seen.reading, seen.at)

    def report(self, view: JobView, done: float, total: float, now: float) -> None:
        seen = self._jobs.get(view.id)
        if seen is None or seen.attempt != view.attempt:
            seen = _Seen(view.attempt)
        self._jobs[view.id] = replace(seen, reading=Reading(REPORTED, done, total), at=now)

    def _look(self, view: JobView, started: float, seen: _Seen, now: float) -> _Seen:
        """Read its file; if that has no progress, its output. What has not changed is not read again."""
        try:
            seen = self._look_at_file(view.id, started, seen)
            if seen.reading is not None and seen.reading.kind == REPORTED:
                return seen
            size = self._logs.log_size(view.id, view.attempt)
            if size == seen.size:
                return seen
            reading = scan(self._logs.read_log(view.id, view.attempt, -_TAIL, _TAIL)[1])
        except OSError:  # whatever is wrong with its files, it is not known how far the job is
            return seen
        seen = replace(seen, size=size)
        if reading is None or reading == seen.reading or (seen.reading and reading.kind < seen.reading.kind):
            return seen
        return replace(seen, reading=reading, at=now)

    def _look_at_file(self, job: str, started: float, seen: _Seen) -> _Seen:
        path = self._work / job / "progress"
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return seen
        mark = found.st_mtime_ns, found.st_ino
        if mark == seen.file or found.st_mtime < started - _CLOCKS or not stat.S_ISREG(found.st_mode):
            return seen  # known, or of an earlier attempt, or a trap
        parsed = amount(_first_line(path))
        reading = Reading(REPORTED, *parsed) if parsed else seen.reading
        return replace(seen, file=mark, reading=reading, at=max(found.st_mtime, started) if parsed else seen.at)


def _first_line(path: Path) -> str:
    """The first line of a file, which may be no file at all by now."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = os.read(file, _LINE) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)
    return data.decode(errors="replace").partition("\n")[0]


def estimate(reading: Reading, ran: float, since: float) -> Progress:
    """How far a job is that said so after it `ran`, and how long it will take, seen `since` seconds later.

    Once that time is over, nobody knows: a job that stalls would be about to end for ever.
    """
    _, done, total, left = reading
    if left is None and done > 0:
        left = max(ran, 0.0) * max(total - done, 0.0) / done
    remaining = None if left is None or left < since else round(left - max(since, 0.0), 1)
    return {"done": done, "total": total, "fraction": round(min(done / total, 1.0), 6), "remaining": remaining}


def expected_end(view: JobView, progress: Progress | None, now: float) -> Expected:
    """When a running job should end: by its progress, else its estimate, else similar runs, else its time limit."""
    if view.state != "running" or view.started is None:
        return Expected()
    work, limit = view.work, view.work.get("time_limit")
    left = None if progress is None else progress["remaining"]
    ends = [] if left is None else [Expected(now + left, "progress")]
    if not view.preemptions:  # how much is left after a preemption is not known
        said = work["estimate"] if work.get("estimated", True) and work["estimate"] != limit else None
        learned = (work.get("predicted") or (0.0, 0.0))[1]
        ends += [Expected(view.started + span, by) for span, by in ((said, "estimate"), (learned, "runs")) if span]
    ends = [end for end in ends if (end.at or 0.0) - now < _FORESEEABLE]
    last = math.inf if limit is None else view.started + limit
    found = next((end for end in ends if end.at is not None and now < end.at < last), None)
    if found is None and now < last < math.inf:
        return Expected(last, "limit")
    return found or Expected(None, "overdue" if ends or limit else "")


def scan(tail: bytes) -> Reading | None:
    """The last progress in the end of an output; of several kinds the one that counts most."""
    *lines, last = re.split(r"[\r\n]+", tail.decode(errors="replace"))
    found: dict[int, Reading] = {}
    for line in lines:
        if reading := _said(line) or _epoch(line) or _bar(line):
            found[reading.kind] = reading
    if reading := _bar(last):  # a bar ends where it ends; any other line may be half written
        found[reading.kind] = reading
    return found[max(found)] if found else None


def _said(line: str) -> Reading | None:
    match = _SAID.search(line)
    parsed = numbers(match[1], match[2]) if match else None
    return Reading(SAID, *parsed) if parsed else None


def _epoch(line: str) -> Reading | None:
    """An epoch of a number of epochs. It may be printed at its start or end: those before it are over."""
    if "%|" in line or not (match := _EPOCH.match(line)):
        return None
    number, total = int(match[1]), int(match[2])
    return Reading(EPOCH, max(number - 1.0, 0.0), float(total)) if number <= total and total else None


def _bar(line: str) -> Reading | None:
    """A bar of tqdm. That of an epoch is a part of it; without the number of epochs nothing is known.

    What goes up a line at its end is a bar below another one, which counts.
    """
    if line.endswith(_UP):
        return None
    line = _ESCAPE.sub("", line)
    match = _BAR.search(line)
    if match is None:
        return None
    done, total = float(match[1]) * _SCALE[match[2]], float(match[3]) * _SCALE[match[4]]
    if total <= 0:
        return None
    title = line[: match.start()]
    if epoch := _epoch(title):
        return epoch._replace(done=epoch.done + min(done / total, 1.0))
    if _INSIDE.search(title):
        return None
    return Reading(BAR, done, total, None if match[5] == "?" else _seconds(match[5]))


def _seconds(clock: str) -> float:
    """Seconds in `1:02:03`."""
    found = 0.0
    for part in clock.split(":"):
        found = 60 * found + float(part or 0)
    return found
