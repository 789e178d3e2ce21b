"""Generated workloads: the same seed always gives the same trace."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.model import DEFAULT_GPU_MEMORY
from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Floats, Trace
from gpuyard.sim.traces.columns import MOST_GPUS, MOST_SECONDS, name_of
from gpuyard.sim.traces.source import open_binary, quoted

POISSON_SIZES: Mapping[int, float] = MappingProxyType({1: 0.7, 2: 0.1, 4: 0.1, 8: 0.1})
_MOST_JOBS = 100_000_000
_MILLI = 1000.0


class Range(NamedTuple):
    """Values from `low` to `high`, both included; whole numbers only if both are ints in the file."""

    low: float
    high: float
    whole: bool = True

    def pick(self, chance: Floats) -> Floats:
        if self.whole:
            return self.low + np.floor(chance * (self.high - self.low + 1))
        return np.clip(np.round(self.low + chance * (self.high - self.low), 3), self.low, self.high)


class Limit(NamedTuple):
    low: float
    high: float
    words: str
    above: bool = False  # `low` itself is not allowed
    whole: bool = False


_SETTINGS = {
    "tasks": Limit(1, _MOST_JOBS, "whole numbers from 1", whole=True),
    "arrival": Limit(0, MOST_SECONDS, "0 seconds or more"),
}
_TYPE = {
    "compute": Limit(0, 100, "percentages above 0, up to 100", above=True),
    "memory": Limit(0, 100, "percentages from 0 to 100"),
    "duration": Limit(0, MOST_SECONDS, "above 0 seconds", above=True),
    "priority": Limit(-MOST_GPUS, MOST_GPUS, "numbers"),
    "gpus": Limit(1, MOST_GPUS, "whole numbers from 1", whole=True),
    "tickets": Limit(0, MOST_GPUS, "above 0", above=True),
}
_WEIGHT = Limit(0, MOST_GPUS, "above 0", above=True)


@dataclass(frozen=True, slots=True)
class TaskType:
    """One kind of task: its ranges by column, its frequency, and its user."""

    name: str
    ranges: dict[str, Range]
    weight: float
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskMix:
    tasks: Range
    arrival: Range
    types: tuple[TaskType, ...]


def generate_tasks(
    seed: int,
    *,
    jobs: int | None = None,
    config: str | Path | None = None,
    gpu_memory: float = DEFAULT_GPU_MEMORY,
) -> Trace:
    """Tasks of the kinds in a TOML file (without `config`: the built-in three kinds of training)."""
    rng = _generator(seed)
    _require(jobs is None or 1 <= jobs <= _MOST_JOBS, f"the number of jobs must be at least 1, not {jobs}")
    _require(0 < gpu_memory < math.inf, f"a GPU's memory must be above 0, not {gpu_memory:g}")
    mix = load_mix(config)
    drawn = int(rng.integers(int(mix.tasks.low), int(mix.tasks.high) + 1))
    count = drawn if jobs is None else jobs
    # One row per task, so that a longer trace of the same seed begins with the shorter one.
    chance = rng.random((count, 3 + len(_TYPE)))
    gaps = mix.arrival.pick(chance[:, 0])
    gaps[0] = 0.0
    shares = np.cumsum([kind.weight for kind in mix.types])
    kinds = np.searchsorted(shares / shares[-1], chance[:, 1], side="right")
    columns, users = _draw(mix, kinds, chance)
    return Trace.of(
        np.round(np.cumsum(gaps), 3),
        columns["duration"],
        columns["gpus"],
        ids=[f"{mix.types[kind].name}-{position}" for position, kind in enumerate(kinds.tolist())],
        users=users,
        source="built-in tasks" if config is None else str(config),
        format="tasks",
        compute=columns["compute"],
        # Whole bytes, rounded down: shares that add up to 100 % then always fit.
        memory=np.floor(columns["memory"] / 100.0 * gpu_memory),
        priority=columns["priority"],
        tickets=columns["tickets"],
    )


def _draw(mix: TaskMix, kinds: Any, chance: Floats) -> tuple[dict[str, Floats], list[str]]:
    neutral = {
        "compute": math.nan,
        "memory": 0.0,
        "priority": 0.0,
        "gpus": 1.0,
        "tickets": 1.0,
        "duration": 0.0,
    }
    columns = {name: np.full(len(kinds), neutral[name]) for name in _TYPE}
    users = [""] * len(kinds)
    for number, kind in enumerate(mix.types):
        chosen = np.flatnonzero(kinds == number)
        for position, name in enumerate(_TYPE, start=3):
            if name in kind.ranges:
                columns[name][chosen] = kind.ranges[name].pick(chance[chosen, position])
        if kind.users:
            for task, owner in zip(chosen.tolist(), (chance[chosen, 2] * len(kind.users)).tolist(), strict=True):
                users[task] = kind.users[int(owner)]
    return columns, users


def load_mix(config: str | Path | None = None) -> TaskMix:
    if config is None:
        name, content = "tasks.toml", (resources.files(__package__) / "tasks.toml").read_bytes()
    else:
        name = str(config)
        with open_binary(Path(config)) as stream:
            content = stream.read()
    try:
        return _mix(tomllib.loads(content.decode()))
    except UnicodeDecodeError:
        raise UserError(f"{name} is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{name}: not valid TOML: {error}") from None
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def _mix(content: dict[str, Any]) -> TaskMix:
    _refuse_unknown(content, (*_SETTINGS, "users", "types"), "")
    types = content.get("types")
    if not isinstance(types, dict) or not types:
        raise UserError("there are no task types; give at least one, as [types.NAME]")
    users = _names(content.get("users", []), "users")
    return TaskMix(
        tasks=_range(content.get("tasks", [40, 50]), "tasks", _SETTINGS["tasks"]),
        arrival=_range(content.get("arrival", 0), "arrival", _SETTINGS["arrival"]),
        types=tuple(_task_type(name, table, users) for name, table in types.items()),
    )


def _task_type(name: str, table: object, users: tuple[str, ...]) -> TaskType:
    where = f"types.{name}"
    if not name_of(name, "types.") or name_of(name, "types.") != name:
        raise UserError(f"{quoted(name)} is not a name for a task type")
    if not isinstance(table, dict):
        raise UserError(f"{where} must be a table of ranges, written as [{where}]")
    _refuse_unknown(table, (*_TYPE, "weight", "users"), where)
    if "duration" not in table:
        raise UserError(f"{where}.duration is missing")
    ranges = {key: _range(table[key], f"{where}.{key}", limit) for key, limit in _TYPE.items() if key in table}
    weight = _range(table.get("weight", 1), f"{where}.weight", _WEIGHT)
    if weight.low != weight.high:
        raise UserError(f"{where}.weight must be one number, not a range")
    own = _names(table["users"], f"{where}.users") if "users" in table else users
    return TaskType(name, ranges, weight.low, own)


def _range(value: object, key: str, limit: Limit) -> Range:
    """`[lo, hi]`, or one number for both."""
    ends = value if isinstance(value, list) else [value, value]
    numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    if len(ends) != 2 or len(numbers) != 2:
        raise UserError(f"{key} must be a number or a range [lowest, highest] of two, not {quoted(str(value))}")
    low, high = numbers
    whole = isinstance(low, int) and isinstance(high, int)
    inside = low >= limit.low and high <= limit.high and not (limit.above and low <= limit.low)
    if low > high:
        raise UserError(f"{key}: the lowest value, {low}, is above the highest, {high}")
    if not inside or (limit.whole and not whole):
        raise UserError(f"{key} must be {limit.words}, not {quoted(str(value))}")
    return Range(float(low), float(high), whole)


def _names(value: object, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise UserError(f"{key} must be a list of names, not {quoted(str(value))}")
    return tuple(name_of(name, key) for name in value)


def _refuse_unknown(table: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            place = f" in {where}" if where else ""
            raise UserError(f"unknown key {quoted(key)}{place}{suggest(key, known)}")


def generate_poisson(
    seed: int,
    *,
    jobs: int,
    gpus: int,
    load: float,
    median_run: float = 600.0,
    sigma: float = 1.5,
    sizes: Mapping[int, float] = POISSON_SIZES,
    users: int = 8,
    overestimate: float = 2.0,
) -> Trace:
    """Poisson arrivals of jobs with log-normal run times that offer `load` of `gpus` GPUs on average."""
    rng = _generator(seed)
    _check_poisson(jobs, gpus, load, median_run, sigma, users, overestimate)
    size, chance = _fitting_sizes(sizes, gpus)
    mean_work = median_run * math.exp(sigma**2 / 2) * float(size @ chance)
    submit = np.cumsum(rng.exponential(mean_work / (load * gpus), jobs))
    run = np.maximum(np.round(rng.lognormal(math.log(median_run), sigma, jobs), 3), 1 / _MILLI)
    wanted = rng.choice(size, jobs, p=chance)
    asked = run * (1.0 + rng.exponential(overestimate, jobs))
    return Trace.of(
        np.round(submit, 3),
        run,
        wanted,
        users=_owners(rng, jobs, users),
        requested=np.maximum(np.ceil(asked * _MILLI) / _MILLI, run),
        source=f"poisson, seed {seed}",
        format="poisson",
        capacity=gpus,
    )


def _check_poisson(
    jobs: int, gpus: int, load: float, median_run: float, sigma: float, users: int, overestimate: float
) -> None:
    _require(1 <= jobs <= _MOST_JOBS, f"the number of jobs must be at least 1, not {jobs}")
    _require(1 <= gpus <= MOST_GPUS, f"the number of GPUs must be at least 1, not {gpus}")
    _require(0 < load < math.inf, f"the load must be above 0, not {load:g}")
    _require(0 < median_run <= MOST_SECONDS, f"the median run time must be above 0, not {median_run:g}")
    _require(0 <= sigma <= 5, f"sigma must be from 0 to 5, not {sigma:g}")  # 5: already 12 orders of magnitude
    _require(0 <= users <= _MOST_JOBS, f"the number of users must be 0 or more, not {users}")
    _require(0 <= overestimate < math.inf, f"the overestimate must be 0 or more, not {overestimate:g}")


def _fitting_sizes(sizes: Mapping[int, float], gpus: int) -> tuple[Floats, Floats]:
    """The job sizes that fit on the cluster, and their chances, which add up to 1 again."""
    for size, chance in sizes.items():
        _require(float(size).is_integer() and size >= 1, f"a job size must be a whole number of GPUs, not {size}")
        _require(0 <= chance < math.inf, f"the chance of a job size must be 0 or more, not {chance:g}")
    kept = {size: chance for size, chance in sizes.items() if size <= gpus and chance > 0}
    _require(bool(kept), f"no job size fits on {gpus} GPUs")
    chances = np.array(list(kept.values()), dtype=np.float64)
    return np.array(list(kept), dtype=np.float64), chances / chances.sum()


def _owners(rng: np.random.Generator, jobs: int, users: int) -> list[str] | None:
    """A few users submit most jobs: user k a share in proportion to 1 / k."""
    if users == 0:
        return None
    share = 1.0 / np.arange(1, users + 1)
    return [f"user{k + 1}" for k in rng.choice(users, jobs, p=share / share.sum()).tolist()]


def _generator(seed: int) -> np.random.Generator:
    _require(seed >= 0, f"a seed must be 0 or more, not {seed}")
    return np.random.default_rng(seed)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise UserError(problem)
