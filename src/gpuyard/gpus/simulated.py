"""Simulated GPUs, and what jobs are declared to use of them second by second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from gpuyard.errors import UserError
from gpuyard.gpus.base import Device, Reading
from gpuyard.units import format_size, parse_duration, parse_size

VARIABLE = "GPUYARD_SIMULATE_USE"  # the variable that declares a job's use
_PARTS = re.compile(r"[;\n]")
_BUSY = "util="
_MOST_VALUES = 10_000  # values of a ramp
_SHORTEST = 0.01  # seconds
_LARGEST = 2**50
_HELP = "write for example 2G, ramp:391M,713M,1045M or spikes:500M,3G,10s,1s, with ;util=40 behind it if you like"


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes that a job takes on each of its GPUs over time, and how busy it keeps them."""

    values: tuple[int, ...]  # of a ramp one for each step; of spikes what is taken between them, and in them
    step: float = 1.0
    every: float = 0.0  # of spikes: seconds from the beginning of one to that of the next; 0: there are none
    length: float = 0.0
    utilization: float | None = None  # percent; None where that was not said

    def at(self, seconds: float) -> int:
        if self.every:
            return self.values[seconds >= self.every and seconds % self.every < self.length]
        return self.values[min(len(self.values) - 1, int(max(0.0, seconds) / self.step))]

    @property
    def peak(self) -> int:
        return max(self.values)


@lru_cache(maxsize=4096)
def parse_use(text: str) -> Use:
    first, *more = (part.strip() for part in text.split(";"))
    try:
        busy = _busy(more)
        kind, colon, values = first.rpartition(":")
        name, _, step = kind.partition("/")
        if name in ("", "constant") and not step and bool(colon) == bool(name):
            return Use((_bytes(values),), utilization=busy)
        if name == "ramp":
            return Use(_ramp(values), _seconds(step) if "/" in kind else 1.0, utilization=busy)
        if kind == "spikes":
            return _spikes(values, busy)
    except UserError as error:
        raise UserError(f"'{text}' does not say what a job uses: {error}; {_HELP}") from error
    raise UserError(f"'{text}' does not say what a job uses; {_HELP}")


def use_of(text: str, command: Sequence[str]) -> str:
    """What a variable says of a command: `a.py=2G;b*.py=ramp:1G,2G;512M` is 2G of `a.py`, and 512M of what is neither.

    Patterns are those of the shell, for any word of the command or the last part of its path; the first that fits
    counts. Empty where none does. A text without patterns is of every command.
    """
    words = {word for one in command for word in (one, one.rpartition("/")[2]) if word}
    otherwise = ""
    for pattern, use in _choices(text):
        if not pattern:
            otherwise = otherwise or use
        elif any(fnmatchcase(word, pattern) for word in words):
            return use
    return otherwise


def said_use(use: str | None, environment: Mapping[str, str], command: Sequence[str], *, simulated: bool) -> str:
    """What a job declares itself, or by its environment; empty if neither does, or GPUs are real."""
    if use:
        parse_use(use)
    if not simulated or use:
        return (use or "") if simulated else ""
    check_variable(said := environment.get(VARIABLE, ""))
    return use_of(said, command)


def check_variable(text: str) -> None:
    for _, use in _choices(text):
        try:
            parse_use(use)
        except UserError as error:
            raise UserError(f"{VARIABLE}: {error}") from error


def _choices(text: str) -> list[tuple[str, str]]:
    """Patterns with their uses; `util=` belongs to the use before it."""
    found: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in _PARTS.split(text))):
        if part.startswith(_BUSY) and found:
            pattern, use = found[-1]
            found[-1] = pattern, f"{use};{part}"
        else:
            pattern, _, use = part.rpartition("=")
            found.append((pattern.strip(), use.strip()))
    return found


def _busy(parts: Iterable[str]) -> float | None:
    busy = None
    for part in filter(None, parts):
        try:
            busy = float(part.removeprefix(_BUSY)) if part.startswith(_BUSY) else -1.0
        except ValueError:
            busy = -1.0
        if not 0.0 <= busy <= 100.0:
            raise UserError(f"'{part}' is not a percentage like util=40")
    return busy


def _bytes(text: str) -> int:
    size = parse_size(text)
    if size > _LARGEST:
        raise UserError(f"'{text}' is more than any GPU has")
    return int(size)


def _ramp(text: str) -> tuple[int, ...]:
    values = text.split(",")
    if len(values) > _MOST_VALUES:
        raise UserError(f"it has more than {_MOST_VALUES} values")
    return tuple(map(_bytes, values))


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if not _SHORTEST <= seconds < float("inf"):
        raise UserError(f"'{text}' is not a time of 0.01 s or more")
    return seconds


def _spikes(text: str, busy: float | None) -> Use:
    values = text.split(",")
    if len(values) != 4:
        raise UserError("spikes have a base, a peak, how often they come and how long they last")
    every, length = map(_seconds, values[2:])
    if length > every:
        raise UserError("spikes cannot last longer than it takes until the next comes")
    return Use((_bytes(values[0]), _bytes(values[1])), every=every, length=length, utilization=busy)


class Demand(NamedTuple):
    job: str
    wanted: int
    promised: int  # bytes that it said it needs at most, by which it was placed
    grew_at: float = 0.0  # when it came to want as much as it does
    capped: bool = False  # whether it may never have more than it promised

    @property
    def excess(self) -> int:
        return max(0, self.wanted - self.promised)


def run_out(memory: int, demands: Iterable[Demand]) -> list[Demand]:
    """The processes that run out of memory and die: as with CUDA, but those within their promise are served first.

    So the processes above their promise die, the largest excess first, until the others fit. If all are within their
    promise, the promises exceed the memory: then the process that grew last dies, as on a real GPU.
    """
    demands = list(demands)
    dead = [demand for demand in demands if demand.capped and demand.excess]
    left = [demand for demand in demands if demand not in dead]
    while left and sum(demand.wanted for demand in left) > memory:
        unlucky = max(left, key=lambda demand: (demand.excess, demand.grew_at, demand.wanted))
        left.remove(unlucky)
        dead.append(unlucky)
    return dead


_PART = re.compile(r"([0-9]{1,6})(?:\s*[xX]\s*(.+))?")
_MEMORY = "16G"
_MOST = 1024


class SimulatedGpus:
    """Idle GPUs that never fail."""

    simulated = True

    def __init__(self, memories: Sequence[int]) -> None:
        self.devices: Sequence[Device] = tuple(
            Device(index, f"SIMULATED-{index}", f"Simulated GPU {format_size(memory)}", memory, simulated=True)
            for index, memory in enumerate(memories)
        )

    @classmethod
    def parse(cls, text: str) -> SimulatedGpus:
        """The GPUs in `4x16G`, `2x16G,1x80G` or `8`, which is 8x16G."""
        memories: list[int] = []
        for part in text.split(","):
            count, memory = _parse_part(part, text)
            if len(memories) + count > _MOST:
                raise UserError(f"'{text}' is more than {_MOST} simulated GPUs; write for example 4x16G")
            memories += [memory] * count
        return cls(memories)

    def read(self) -> list[Reading]:
        return [Reading(device.index, utilization=0) for device in self.devices]

    def close(self) -> None:
        """Nothing is held."""


def _parse_part(part: str, text: str) -> tuple[int, int]:
    match = _PART.fullmatch(part.strip())
    count, memory = (int(match[1]), parse_size(match[2] or _MEMORY)) if match else (0, 0.0)
    if count < 1 or not 1 <= memory <= _LARGEST:
        raise UserError(f"'{text}' does not say which GPUs to simulate; write for example 4x16G, 2x16G,1x80G or 8")
    return count, int(memory)
