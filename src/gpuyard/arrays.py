"""Arrays of jobs as people write them: `0-99%4` for tasks, `12_3` for one of them, `12_[3-5]` for some."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuyard.errors import UserError

MOST_TASKS = 100_000
MOST_NUMBER = 2**31 - 1
_RANGE = re.compile(r"(\d{1,20})(?:-(\d{1,20})(?::(\d{1,20}))?)?")
_TASK = re.compile(r"(\d+)_(\d+)")
_SOME = re.compile(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]")


@dataclass(frozen=True, slots=True)
class Array:
    """The numbers of an array's tasks, ascending, and how many may run at once (0: any number)."""

    tasks: tuple[int, ...]
    at_most: int = 0


def parse_array(text: str) -> Array:
    """`0-99%4`: a hundred tasks, four at once; `1,3,7`; `0-20:5` is 0, 5, 10, 15, 20."""
    numbers, percent, most = text.replace(" ", "").partition("%")
    if percent and not (most.isdecimal() and len(most) <= 20 and int(most) >= 1):
        raise UserError(f"'{_short(text)}': after % stands how many tasks may run at once, 1 or more")
    return Array(_numbers(numbers, text), int(most) if percent else 0)


def _numbers(text: str, whole: str) -> tuple[int, ...]:
    found: set[int] = set()
    named = 0  # also those that were named before, or a short text would mean endless work
    whole = _short(whole)
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (match[3] is not None and int(match[3]) < 1):
            raise UserError(
                f"'{whole}' is not an array; write for example 0-99, 0-99%4 (four at once), 1,3,7 or 0-20:5"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first:
            raise UserError(f"'{whole}': {first}-{last} goes backwards; write {last}-{first}")
        if last > MOST_NUMBER:
            raise UserError(f"'{whole}': the number of a task is at most {MOST_NUMBER}")
        named += (last - first) // step + 1
        if named > MOST_TASKS:
            raise UserError(f"'{whole}' has more than {MOST_TASKS:,} tasks, which is the most; use several arrays")
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:99]}…"


def task_id(array: str, task: int) -> str:
    """`12_3`."""
    return f"{array}_{task}"


def number_of(id: str) -> int:
    """The number that an id begins with, 0 if none: 12 of `12` and of `12_3`."""
    first = id.partition("_")[0]
    return int(first) if first.isdecimal() else 0


def some_of(text: str) -> tuple[str, tuple[int, ...]] | None:
    """The array and the tasks of `12_[3-5]`; None if it is nothing of the kind."""
    match = _SOME.fullmatch(text)
    return (match[1], _numbers(match[2], text)) if match else None


def array_of(id: str) -> str:
    """The array of a task's id; empty if it is no such id."""
    match = _TASK.fullmatch(id)
    return match[1] if match else ""


def ranges(tasks: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for task in sorted(tasks):
        if runs and task == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], task]
        else:
            runs.append([task, task])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def folded(array: str, tasks: Sequence[int], at_most: int = 0) -> str:
    """`12_[7-99%4]`: many tasks in one word."""
    if len(tasks) == 1:
        return task_id(array, tasks[0])
    return f"{array}_[{ranges(tasks)}{f'%{at_most}' if at_most else ''}]"
