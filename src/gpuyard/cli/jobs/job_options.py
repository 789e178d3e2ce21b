"""What a job can ask for:

options of submit, run, clone and edit, lines of a script, keys of a job file. An option that was not given is None,
so that one source can take precedence over another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from gpuyard.errors import UserError
from gpuyard.spec.fields import FIELD, option_fields
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import ARRAY, CHOICE, DEPENDENCY, DURATION, INSTANT, Moment
from gpuyard.units import parse_duration

G = TypeVar("G", bound="OptionGroup")
T = TypeVar("T", bound="Edits")
_SENT_AS_WRITTEN = (DEPENDENCY, ARRAY)
"""Kinds of texts that the daemon checks: a job file names other jobs of the same file in them."""


From = Annotated[str | None, FIELD["from"]]
GpuMemory = Annotated[str | None, FIELD["gpu_memory"]]
Priority = Annotated[float | None, FIELD["priority"]]
Estimate = Annotated[str | None, FIELD["estimate"]]
Tags = Annotated[list[str] | None, FIELD["tags"]]


class OptionGroup:
    """Options with None as their default, as a subclass's annotations declare them.

    No dataclass: to import and make those takes as long as all else that a submit does.
    """

    def __init__(self, **given: Any) -> None:
        if unknown := given.keys() - (names := self.names()).keys():
            raise TypeError(f"there are no options {', '.join(sorted(unknown))}")
        self.__dict__.update(names | given)

    @classmethod
    def names(cls) -> dict[str, None]:
        return {name: None for base in reversed(cls.__mro__) for name in getattr(base, "__annotations__", ())}

    def changed(self: G, **new: Any) -> G:
        return type(self)(**{**self.__dict__, **new})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _made(name: str, base: type, declared: Iterable[JobField]) -> Any:
    kinds = [(field, list[str] if field.kind.option is list else field.kind.option) for field in declared]
    return type(name, (base,), {"__annotations__": {f.attribute: Annotated[kind | None, f] for f, kind in kinds}})


if TYPE_CHECKING:
    _EditOptions = OptionGroup
else:
    _EditOptions = _made("_EditOptions", OptionGroup, option_fields(edits=True))


class Edits(_EditOptions):
    """What may also be changed later."""

    def over(self: T, other: Edits) -> T:
        """These options, and the other's where these were not given."""
        mine = self.names()
        return self.changed(
            **{name: value for name, value in vars(other).items() if name in mine and not given(self, name)}
        )

    def body(self) -> dict[str, Any]:
        """The given options as the API takes them; errors are raised before anything is sent."""
        found: dict[str, Any] = {}
        for field in option_fields():
            if field.option and not field.option.local and given(self, field.attribute):
                found |= _read(field, getattr(self, field.attribute))
        return found


if TYPE_CHECKING:
    _NewJobOptions = Edits
else:
    _NewJobOptions = _made("_NewJobOptions", Edits, option_fields(edits=False))


class Options(_NewJobOptions):
    def directory(self) -> str:
        directory = os.path.abspath(os.path.expanduser(self.chdir)) if self.chdir else os.getcwd()
        if not os.path.isdir(directory):
            raise UserError(f"there is no directory {directory}; give another --chdir")
        return directory

    def environment(self) -> dict[str, str]:
        return _exported(self.export or "ALL") | self._named()

    def variables(self) -> dict[str, str]:
        """The named variables: a job on another machine gets no others of this environment."""
        names = (part for part in (self.export or "").split(",") if part not in ("ALL", "NONE", "NIL"))
        return _exported_too(names) | self._named()

    def _named(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for item in self.env or ():
            name, equals, value = item.partition("=")
            if not name or not (equals or name in os.environ):
                raise UserError(f"--env {item} is not NAME=VALUE, as in SEED=7")
            found[name] = value if equals else os.environ[name]
        return found


_ALWAYS = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ")
"""Variables that a job gets even with `--export NONE`."""


def _exported(text: str) -> dict[str, str]:
    names = [part for part in text.split(",") if part]
    if not names or "ALL" in names:
        found = dict(os.environ)
    else:
        found = {name: os.environ[name] for name in _ALWAYS if name in os.environ}
    return found | _exported_too(names)


def _exported_too(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in names:
        name, equals, value = part.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def given(options: Edits, name: str) -> bool:
    """Whether an option was given; a list that may be repeated is empty if not."""
    value = getattr(options, name, None)
    return value is not None and value != [] and value != ()


def value_of(name: str, text: str | None) -> Any:
    """What the option of a field says; None if it was not given."""
    return None if text is None else _read(FIELD[name], text)[name]


def _read(field: JobField, value: Any) -> dict[str, Any]:
    with named(field.flag):
        return _parsed(field, value)


@contextmanager
def named(flag: str) -> Iterator[None]:
    """Let a message begin with the option that it is about."""
    try:
        yield
    except UserError as error:
        raise (error if str(error).startswith(flag) else UserError(f"{flag}: {error}")) from None


def _parsed(field: JobField, value: Any) -> dict[str, Any]:
    if not isinstance(value, str) or field.kind in _SENT_AS_WRITTEN:
        return {field.name: value}
    if field.kind is DURATION:
        return {field.name: duration(field.flag, value, none=field.above is None, field=field)}
    if field.kind is INSTANT:
        return {field.name: _instant(field, value)}
    if field.kind is CHOICE and value not in field.choices:
        raise UserError(field.complaint(value))
    return field.read(value, Moment(0.0))


def duration(option: str, text: str | None, *, none: bool = True, field: JobField | None = None) -> float | None:
    """Seconds of an option's text, which may be that of a job's field; `none`: whether 0 is allowed."""
    if text is None:
        return None
    with named(option):
        seconds: float = field.parse(text, Moment(0.0)) if field else parse_duration(text)
    if field and seconds > (field.most or seconds):
        raise UserError(field.complaint(text))
    if not 0 <= seconds < float("inf") or not (seconds or none):
        raise UserError(f"{option} must be {'0 or more' if none else 'above 0'}, not {text}")
    return seconds


class InThePast(UserError):
    """That time is over."""


def _instant(field: JobField, text: str) -> float:
    import time

    now = time.time()
    at: float = field.kind.parse(text, Moment(now))
    if field.future and at <= now:
        from gpuyard.spec.times import format_when

        raise InThePast(f"{field.flag} {text} is in the past: {format_when(at, now)}")
    return at
