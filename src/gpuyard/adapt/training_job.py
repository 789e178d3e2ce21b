"""Job description of a training (TOML): budget, changes of resources, network, data, environments to record."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from gpuyard.adapt.clocks import CLOCKS
from gpuyard.errors import UserError, suggest
from gpuyard.units import parse_duration


def read_text(path: Path) -> str:
    """The text of a file; one that ends with .gz is uncompressed."""
    if path.suffix != ".gz":
        return path.read_text()
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except (gzip.BadGzipFile, EOFError) as error:
        raise OSError(0, f"it is not whole, or not compressed by gzip ({error})") from None


OPTIMIZERS = ("adam", "adamw", "sgd")
OPERATIONS = ("deepen", "widen")
_LARGEST = 1_000_000  # bytes of a file


@dataclass(frozen=True, slots=True)
class Training:
    batch_size: int = 64
    learning_rate: float = 0.01
    optimizer: str = "adam"
    weight_decay: float = 0.0
    rate: str = "linear"  # how the learning rate goes to zero; see `rates`
    restart_rate: bool = False  # whether it goes back to the full rate after each growth
    evaluate_every: float = 0.05  # a part of the budget
    threads: int = 1  # CPU threads of torch

    def __post_init__(self) -> None:
        _check(self.batch_size >= 1, f"batch_size must be 1 or more, not {self.batch_size}")
        _check(0 < self.learning_rate < math.inf, f"learning_rate must be above 0, not {self.learning_rate:g}")
        _check(1 <= self.threads <= 1024, f"threads must be 1 to 1,024, not {self.threads}")
        _check(0 <= self.weight_decay < math.inf, f"weight_decay must be 0 or more, not {self.weight_decay:g}")
        _check(0 < self.evaluate_every <= 1, f"evaluate_every is a part of the budget, not {self.evaluate_every:g}")
        _check_known("optimizer", self.optimizer, OPTIMIZERS)


@dataclass(frozen=True, slots=True)
class Environments:
    budget: tuple[float, ...] = ()  # empty: the job's own
    up: tuple[float, ...] = ()  # parts of the budget after which resources go up; empty: as the job says
    decisions: int = 3  # number of decisions, evenly spread over the rest


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    budget: float
    network: Mapping[str, Any]
    data: Mapping[str, Any]
    clock: str = "wall"
    seed: int = 0
    decider: str = "cost-rule"
    gpu_changes: tuple[Mapping[str, Any], ...] = ()
    decisions: int = 3  # most decisions after resources went up, an epoch apart
    decide_at: tuple[float, ...] = ()  # parts of the budget at which a decision is made in any case
    grow_by: tuple[str, ...] = ("deepen",)
    training: Training = field(default_factory=Training)
    environments: Environments = field(default_factory=Environments)
    folder: Path = field(default_factory=Path)  # base of relative paths

    def __post_init__(self) -> None:
        _check(0 < self.budget < math.inf, f"a budget must be above 0, not {self.budget:g}")
        _check_known("clock", self.clock, tuple(CLOCKS))
        _check(bool(self.grow_by), "grow_by needs deepen, widen, or both")
        for word in self.grow_by:
            _check_known("grow_by", word, OPERATIONS)

    def facts(self) -> dict[str, Any]:
        facts = asdict(self)
        del facts["environments"], facts["folder"]
        return facts

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:16]

    def to_record(self) -> list[Job]:
        several = self.environments
        ups = several.up or (_first_up(self),)
        found = []
        for budget, up in product(several.budget or (self.budget,), ups):
            points = tuple(up + (1.0 - up) * k / several.decisions for k in range(several.decisions))
            name = f"{self.name}-{budget:g}-up{100 * up:g}"
            found.append(replace(self, name=name, budget=budget, gpu_changes=(), decide_at=points))
        return found


def _first_up(job: Job) -> float:
    if job.decide_at:
        return min(job.decide_at)
    times = [float(change["time"]) for change in job.gpu_changes if change.get("change") == "up"]
    if not times:
        raise UserError(f"job {job.name} is never given more: say when in gpu_changes, or in up of [environments]")
    return min(times) / job.budget


def read_job(path: Path) -> Job:
    """A job from its file; errors say what to do."""
    try:
        if path.stat().st_size > _LARGEST:
            raise UserError(f"{path} is too large to be a job")
        facts = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None
    try:
        return job_of(facts, path.stem, path.parent)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def job_of(facts: Mapping[str, Any], name: str, folder: Path) -> Job:
    known = {one.name for one in fields(Job)} - {"folder"}
    given = dict(facts)
    for word in given:
        _check(word in known, f"there is no setting '{word}'{suggest(word, known)}")
    for word in ("budget", "network", "data"):
        _check(word in given, f"'{word}' is missing")
    given["budget"] = _time("budget", given["budget"])
    for word in ("network", "data"):
        _check(isinstance(given[word], dict) and isinstance(given[word].get("name"), str), _NAMED.format(word))
    given["training"] = _made(Training, given.get("training", {}), "training")
    given["environments"] = _environments(given.get("environments", {}))
    given["gpu_changes"] = tuple(_change(one) for one in _list("gpu_changes", given.get("gpu_changes", [])))
    given["decide_at"] = _parts("decide_at", given.get("decide_at", []))
    given["grow_by"] = tuple(map(str, _list("grow_by", given.get("grow_by", ["deepen"]))))
    for word, least in (("seed", 0), ("decisions", 1)):
        value = given.get(word, least)
        _check(isinstance(value, int) and value >= least, f"{word} must be a whole number of {least} or more")
    for word in ("name", "clock", "decider"):
        _check(isinstance(given.get(word, ""), str), f"{word} must be a text")
    return Job(**{"name": name, **given, "folder": folder})


_NAMED = '{0} must be a table with a name, as in {0} = {{ name = "..." }}'


def _environments(facts: Any) -> Environments:
    _check(isinstance(facts, dict), "environments must be a table, as in [environments]")
    budgets = tuple(_time("budget", one) for one in _list("budget", facts.get("budget", [])))
    given = {**facts, "budget": budgets, "up": _parts("up", facts.get("up", []))}
    found: Environments = _made(Environments, given, "environments")
    _check(1 <= found.decisions <= 8, f"environments have 1 to 8 decisions, not {found.decisions}")
    return found


def _made(kind: Any, facts: Any, what: str) -> Any:
    _check(isinstance(facts, dict), f"{what} must be a table, as in [{what}]")
    known = {one.name: one.type for one in fields(kind)}
    for word, value in facts.items():
        _check(word in known, f"{what} has no setting '{word}'{suggest(word, known)}")
        _check(_is_a(value, str(known[word])), f"{word} in [{what}] must be a {known[word]}, not {value!r}")
    return kind(**facts)


def _is_a(value: Any, kind: str) -> bool:
    if kind in ("int", "float"):
        return isinstance(value, int if kind == "int" else (int, float)) and not isinstance(value, bool)
    return kind not in ("str", "bool") or isinstance(value, str if kind == "str" else bool)


def _change(facts: Any) -> dict[str, Any]:
    right = isinstance(facts, dict) and set(facts) == {"time", "change"} and facts["change"] in ("up", "down")
    _check(right, 'a change of resources is { time = 70, change = "up" } (or "down")')
    return {"time": _time("time", facts["time"]), "change": facts["change"]}


def _parts(word: str, value: Any) -> tuple[float, ...]:
    parts = _list(word, value)
    right = all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < 1 for one in parts)
    _check(right, f"{word} must be parts of the budget, from 0 to below 1")
    return tuple(sorted(map(float, parts)))


def _time(word: str, value: Any) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    _check(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0, f"{word} must be a time")
    return float(value)


def _list(word: str, value: Any) -> Sequence[Any]:
    _check(isinstance(value, list), f"{word} must be a list")
    return value  # type: ignore[no-any-return]


def _check_known(what: str, word: str, known: Sequence[str]) -> None:
    _check(word in known, f"{what} must be one of {', '.join(known)}, not '{word}'{suggest(word, known)}")


def _check(right: bool, complaint: str) -> None:
    if not right:
        raise UserError(complaint)
