"""Who a process is, for people to read."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from gpuyard.gpus.base import Device, Gpus, Process, Reading
from gpuyard.units import format_size


class Identity(NamedTuple):
    """What may be shown of a process: only the name of its command, since arguments may hold secrets."""

    name: str
    user: str


def identify(pid: int) -> Identity | None:
    """User and name of a process; None if it is gone, or not visible."""
    folder = Path("/proc", str(pid))
    try:
        name = (folder / "comm").read_text(errors="replace").strip()
        user = folder.stat().st_uid
    except OSError:
        return None
    return Identity(name, _user_name(user))


def describe_process(pid: int) -> str:
    """`process 6512 (python, user ann)`; `process 6512` if it is gone, or not visible."""
    found = identify(pid)
    return f"process {pid}" if found is None else f"process {pid} ({found.name}, user {found.user})"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


State = Literal["free", "ours", "foreign", "unknown"]


@dataclass(frozen=True, slots=True)
class FreeRule:
    """When a GPU without processes counts as free."""

    utilization: float = 10.0  # percent that it may be busy
    memory_share: float = 0.001  # share of its memory that may be taken ...
    memory: float = 50 * 2**20  # ... or less than these bytes, whichever is more
    graphics_share: float = 0.05
    """Processes that only draw do not count while they and all else take less than this share of the memory."""
    settle: float = 5.0
    """Seconds after our job left in which only processes count: memory and utilization take that long to follow."""


@dataclass(frozen=True, slots=True)
class Verdict:
    state: State
    why: str


def judge(
    device: Device,
    reading: Reading,
    owner_of: Callable[[int], object | None],
    *,
    placed: bool,
    since_left: float | None = None,
    rule: FreeRule | None = None,
    describe: Callable[[int], str] = "process {}".format,
) -> Verdict:
    """Whose this GPU is.

    `owner_of` knows our processes, also those of an attempt that is over; `placed` says whether a job of ours is to be
    on this GPU now; `since_left` is how many seconds ago the last one left it; `describe` names a process.
    """
    rule = rule or FreeRule()
    if reading.lost or not device.uuid:
        said = reading.problem if reading.problem != "GPU is lost" else ""
        return Verdict("unknown", f"GPU is lost: {said}" if said else "GPU is lost")
    ours = [process for process in reading.processes if owner_of(process.pid) is not None]
    others = [process for process in reading.processes if process not in ours]
    drawing = _drawing(device, others, rule)
    if foreign := [process for process in others if process not in drawing]:
        return Verdict("foreign", _name(foreign, describe))
    if placed:
        return Verdict("ours", "a job of ours is placed here")
    if ours:
        return Verdict("ours", f"{describe(ours[0].pid)} is of a job of ours that has no place here, or is over")
    if since_left is not None and since_left < rule.settle:
        return Verdict("free", "our job has just left it")
    return _unseen(device, reading, rule, desktop=bool(drawing))


def _drawing(device: Device, others: list[Process], rule: FreeRule) -> list[Process]:
    """Processes that only draw, all of them or none: together they must be small."""
    drawing = [process for process in others if process.graphics]
    small = sum(process.memory for process in drawing) < rule.graphics_share * device.memory
    return drawing if small else []


def _name(foreign: list[Process], describe: Callable[[int], str]) -> str:
    largest = max(foreign, key=lambda process: process.memory)
    uses = f"uses {format_size(largest.memory)}" if largest.memory else "is on it"
    more = f"; {len(foreign) - 1} more" if len(foreign) > 1 else ""
    return f"{describe(largest.pid)} {uses}{more}"


def _unseen(device: Device, reading: Reading, rule: FreeRule, *, desktop: bool) -> Verdict:
    """Without visible processes, by memory and utilization; a desktop takes more than its processes report."""
    busy, taken = reading.utilization or 0, reading.memory_used
    share = max(rule.memory_share, rule.graphics_share) if desktop else rule.memory_share
    if busy <= rule.utilization and (taken <= share * device.memory or taken < rule.memory):
        return Verdict("free", "no process, idle")
    return Verdict("foreign", f"in use: {busy} % busy, {format_size(taken)} taken, by a process that cannot be seen")


class Sampler:
    def __init__(self, gpus: Gpus, rule: FreeRule | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.gpus = gpus
        self.rule = rule or FreeRule()
        self.readings: Sequence[Reading] = ()
        self.at: float | None = None  # when the latest reading began, on the monotonic clock; None before the first
        self.read_seconds = 0.0  # how long it took
        self._clock = clock

    def fresh(self, max_age: float = 0.0) -> Sequence[Reading]:
        """Readings younger than `max_age` seconds; by default new ones."""
        began = self._clock()
        if self.at is None or began - self.at >= max_age:
            self.readings = self.gpus.read()
            self.at = began
            self.read_seconds = self._clock() - began
        return self.readings

    def verdict(
        self, index: int, owner_of: Callable[[int], object | None], *, placed: bool, since_left: float | None = None
    ) -> Verdict:
        device, reading = self.gpus.devices[index], self.readings[index]
        return judge(
            device, reading, owner_of, placed=placed, since_left=since_left, rule=self.rule, describe=describe_process
        )
