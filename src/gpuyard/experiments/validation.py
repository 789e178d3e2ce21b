"""Checks of keys and values in files; an error names the place of the mistake."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpuyard.errors import UserError, suggest
from gpuyard.units import parse_duration, parse_size

T = TypeVar("T")
_MOST = 1_000_000
_LONGEST = 100 * 365 * 86400.0  # seconds
KINDS = (".yaml", ".yml", ".toml", ".json")


def load(path: Path) -> Any:
    if path.suffix.lower() not in KINDS:
        raise UserError(f"{path}: an experiment is written in YAML, TOML or JSON; its name ends in {', '.join(KINDS)}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    try:
        if path.suffix.lower() == ".toml":
            return tomllib.loads(text)
        if path.suffix.lower() == ".json":
            return json.loads(text, object_pairs_hook=_once)
        return _bounded(yaml.load(text, Loader=_Loader), path)
    except RecursionError:
        raise UserError(f"{path}: this cannot be read: its parts are nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: this cannot be read as YAML: {error.problem or error}") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, yaml.YAMLError, _Twice) as error:
        raise UserError(f"{path}: this cannot be read: {error}") from error


class Keys:
    """A part of a file: keys and values, each of which is taken once."""

    def __init__(self, value: Any, file: Path, place: str = "") -> None:
        self.file, self.place = file, place
        if not isinstance(value, Mapping):
            raise self.error("", f"keys and values are expected here, not {shown(value)}")
        self._given: dict[str, Any] = {str(key): one for key, one in value.items()}
        self._asked: list[str] = []

    def __contains__(self, key: str) -> bool:
        return self._given.get(key) is not None

    def take(self, key: str, read: Callable[[Any], T], default: T) -> T:
        self._asked.append(key)
        return self._read(key, read) if key in self else default

    def need(self, key: str, read: Callable[[Any], T], why: str) -> T:
        self._asked.append(key)
        if key not in self:
            near = next((f" (it says '{one}')" for one in self._given if suggest(one, [key])), "")
            raise self.error("", f"{key} is missing{near}; {why}")
        return self._read(key, read)

    def _read(self, key: str, read: Callable[[Any], T]) -> T:
        try:
            return read(self._given[key])
        except UserError as error:
            raise error if isinstance(error, Misplaced) else self.error(key, str(error)) from None

    def below(self, key: str, read: Callable[[Keys], T], default: T) -> T:
        self._asked.append(key)
        return read(Keys(self._given[key], self.file, self.path(key))) if key in self else default

    def several(self, key: str, why: str) -> Iterator[Keys]:
        """The mappings in a list below a key; at least one."""
        self._asked.append(key)
        found = self._given.get(key)
        if found is None:
            raise self.error("", f"{key} is missing; {why}")
        if not isinstance(found, list) or not found:
            raise self.error(key, f"a list of at least one is expected; {why}")
        for number, one in enumerate(found, 1):
            yield Keys(one, self.file, f"{self.path(key)}[{number}]")

    def done(self) -> None:
        """Refuse keys that were not taken."""
        for key in self._given:
            if key not in self._asked:
                known = ", ".join(dict.fromkeys(self._asked))
                raise self.error(key, f"there is no such key{suggest(key, self._asked)} (there are {known})")

    def path(self, key: str) -> str:
        """Where a key stands, as in `workloads[1].gpu_memory`; the first of a list is 1."""
        return f"{self.place}.{key}".strip(".")

    def error(self, key: str, sentence: str) -> UserError:
        place = self.path(key)
        return Misplaced(f"{self.file}: {place}: {sentence}" if place else f"{self.file}: {sentence}")


class Misplaced(UserError):
    """An error that says where it is already."""


class _Twice(ValueError):
    """A key is given twice."""


def _bounded(value: Any, path: Path) -> Any:
    """The value, unless its aliases (`*name`) make it endless, or nearly so."""
    pending, count = [value], 0
    while pending:
        one = pending.pop()
        count += 1
        if count > _MOST:
            raise UserError(f"{path}: this says more than {_MOST:,} things; use fewer aliases")
        pending += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return value


def shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"a text is expected, not {shown(value)}; put it in quotes")
    if not str(value).strip():
        raise UserError("it is empty")
    return str(value)


def words(value: Any) -> tuple[str, ...]:
    """A list of texts; a single text is a list of one."""
    return tuple(text(one) for one in value) if isinstance(value, list) else (text(value),)


def switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"true or false is expected, not {shown(value)}")
    return value


def whole(least: int = 0, most: int = 10**9) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        found = number(value)
        if found != int(found) or not least <= found <= most:
            raise UserError(f"a whole number from {least:,} to {most:,} is expected, not {shown(value)}")
        return int(found)

    return read


def number(value: Any) -> float:
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"a number is expected, not {shown(value)}")
    return found


def size(value: Any) -> float:
    """Bytes in `6994M`; fewer than 1 MiB are refused, since a unit was forgotten."""
    found = parse_size(str(value)) if not isinstance(value, bool | list | dict) else math.nan
    if not (found == 0 or found >= 2**20):  # NaN too
        raise UserError(f"a size is expected, as in 6994M or 16G, not {shown(value)}")
    return float(int(found))


def duration(value: Any) -> float:
    """Seconds in `20`, `20s` or `5m`."""
    found = parse_duration(str(value)) if not isinstance(value, bool | list | dict) else math.nan
    if not 0 <= found <= _LONGEST:
        raise UserError(f"a time is expected, as in 20s or 5m, not {shown(value)}")
    return found


def above_zero(value: Any) -> float:
    if (found := duration(value)) <= 0:
        raise UserError(f"a time above 0 is expected, not {shown(value)}")
    return found


def percentage(value: Any) -> float:
    """50 in `50` or `50%`."""
    found = number(value.strip().removesuffix("%") if isinstance(value, str) else value)
    if not 0 <= found <= 10_000:
        raise UserError(f"a percentage is expected, as in 50 or 50%, not {shown(value)}")
    return found


def one_of(known: Sequence[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in known:
            word = value if isinstance(value, str) else ""
            raise UserError(f"one of {', '.join(known)} is expected, not {shown(value)}{suggest(word, known)}")
        return str(value)

    return read


def many(read: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:

    def read_all(value: Any) -> tuple[T, ...]:
        found = tuple(read(one) for one in (value if isinstance(value, list) else [value]))
        if not found:
            raise UserError("the list is empty")
        if len(set(found)) < len(found):
            raise UserError(f"something is there twice in {shown(value)}")
        return found

    return read_all


def table(of_key: Callable[[Any], Any], of_value: Callable[[Any], T]) -> Callable[[Any], dict[Any, T]]:
    def read(value: Any) -> dict[Any, T]:
        if not isinstance(value, Mapping):
            raise UserError(f"keys and values are expected here, not {shown(value)}")
        return {of_key(key): of_value(one) for key, one in value.items()}

    return read


def as_it_is(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"keys and values are expected here, not {shown(value)}")
    return {str(key): one for key, one in value.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for key, _ in pairs:
        if sum(key == other for other, _ in pairs) > 1:
            raise _Twice(f"'{key}' is given twice")
    return found


class _Loader(yaml.SafeLoader):
    """YAML without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        seen: list[Any] = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"'{key.value}' is given twice", key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)
