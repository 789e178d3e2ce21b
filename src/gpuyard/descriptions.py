"""Jobs as a daemon wants to be told of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from gpuyard.errors import UserError
from gpuyard.shapes import Wishes
from gpuyard.units import parse_duration, parse_share

_DURATIONS = ("estimate", "time_limit", "grace", "retry_delay", "notice")


def description(
    command: Sequence[str],
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    **wishes: Unpack[Wishes],
) -> dict[str, Any]:
    """A job for the daemon of this machine: it runs here and with this environment, unless told otherwise."""
    return {
        **described(command, **wishes),
        "directory": os.path.abspath(directory or os.curdir),
        "environment": {**(os.environ if environment is None else environment), **(variables or {})},
        "umask": _umask(),
    }


def remote_description(
    command: Sequence[str],
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    **wishes: Unpack[Wishes],
) -> dict[str, Any]:
    """A job for a daemon elsewhere: nothing of this machine is sent but what is given."""
    found = described(command, **wishes)
    if directory is not None:
        found["directory"] = os.fspath(directory)
    if environment is not None:
        found["environment"] = dict(environment)
    if variables:
        found["variables"] = dict(variables)
    return found


def described(command: Sequence[str], **wishes: Unpack[Wishes]) -> dict[str, Any]:
    """The part of it that has nothing to do with where one is."""
    if isinstance(command, str):
        raise UserError("a command is a list of words; write ['python', 'train.py'], not one string")
    return {"command": list(command), **wanted(wishes)}


def wanted(wishes: Wishes) -> dict[str, Any]:
    """Wishes as JSON has them: times in seconds, sizes in bytes."""
    found: dict[str, Any] = {**wishes}
    if "among" in found:
        found["from"] = found.pop("among")
    for name in ("begin", "deadline"):
        if isinstance(found.get(name), str):
            from gpuyard.times import parse_when  # here, because few say when, and submitting a job is to be quick

            found[name] = parse_when(found[name], time.time())
    for name in _DURATIONS:
        if isinstance(text := found.get(name), str):
            found[name] = _parsed(name, parse_duration, text)
    if isinstance(text := found.get("gpu_memory"), str) and text != "auto":
        found["gpu_memory"] = _parsed("gpu_memory", parse_share, text)
    return found


def _parsed(name: str, parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def encode(body: Mapping[str, Any]) -> bytes:
    """A request's body. Bytes that are not UTF-8, in a file's name say, go as escaped surrogates, and arrive."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise UserError("a number of the request is not finite; leave it out or give another") from error


def _umask() -> int:
    """This process's umask, which can only be read by setting it."""
    former = os.umask(0o077)
    os.umask(former)
    return former
