"""A job's description in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from gpuyard.cli.terminal import output
from gpuyard.errors import GpuyardError, UserError, suggest
from gpuyard.spec.fields import FIELDS
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import DURATION, INDICES, NUMBER, SHARE, SIGNAL, Moment
from gpuyard.units import format_number

if TYPE_CHECKING:
    from gpuyard.api.types import Job

T = TypeVar("T")
_EDITED = {field.key: field for field in sorted(FIELDS, key=lambda field: field.editor) if field.editor}


def in_editor(job: Job, apply: Callable[[dict[str, Any]], T]) -> T | None:
    """Apply the changes that the user makes to a job's description in an editor; None if there are none.

    What they wrote is kept where it cannot be used.
    """
    before = described(job)
    handle, path = tempfile.mkstemp(".yaml", f"gpuyard-{job['id']}-")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(f"# Job {job['id']}: change what you like, and leave the editor. null takes something back.\n")
        file.write(yaml.safe_dump(before, sort_keys=False, allow_unicode=True))
    try:
        _edit(path)
    except UserError:  # the edit failed: no changes to keep
        os.unlink(path)
        raise
    try:
        changes = _changes(before, _parsed(Path(path).read_text(encoding="utf-8")))
        done = apply(changes) if changes else None
    except GpuyardError:
        output.say(f"what you wrote is kept in {path}")
        raise
    os.unlink(path)
    return done


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    unknown = [key for key in after if key not in before]
    if unknown:
        raise UserError(f"there is no '{unknown[0]}' to be changed{suggest(unknown[0], before)}; nothing was changed")
    changed = {key: after.get(key) for key in before if _text(after.get(key)) != _text(before[key])}
    if "from" in changed:  # by itself it would mean all of these GPUs, but how many there are to be stands there too
        changed["gpus"] = after.get("gpus") or before["gpus"]
    return _body(changed)


def described(job: Job) -> dict[str, Any]:
    return {key: _described(field, job) for key, field in _EDITED.items()}


def _described(field: JobField, job: Mapping[str, Any]) -> Any:
    value = job[field.json_key]
    if field.kind is DURATION:
        return _seconds(value)
    if field.kind is INDICES:
        return field.kind.format(value or ()) or None
    if field.kind is SHARE:
        return "auto" if job["gpu_memory_asked"] == "auto" else _plain(value)
    if field.kind is SIGNAL:
        return value + (f"@{_seconds(job['notice'])}" if job["notice"] else "")
    return _plain(value) if field.kind is NUMBER else value


def _plain(value: float | None) -> float | None:
    return int(value) if value is not None and float(value).is_integer() else value


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{format_number(value)}s"


def _edit(path: str) -> None:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        code = subprocess.run([*editor, path], check=False).returncode
    except OSError as error:
        raise UserError(f"the editor {editor[0]} cannot be started ({error.strerror}); set EDITOR") from error
    if code:
        raise UserError(f"the editor ended with code {code}, so nothing was changed")


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, Loader=yaml.BaseLoader)  # texts only: 16:00 is no number
    except yaml.YAMLError as error:
        raise UserError(f"this is not YAML any more, so nothing was changed: {error}") from error
    if not isinstance(found, dict):
        raise UserError("these are not keys and values any more, so nothing was changed")
    return {key: None if value in ("null", "", "~") else value for key, value in found.items()}


def _text(value: Any) -> Any:
    """A value as the file has it: numbers come back as texts."""
    if isinstance(value, list):
        return [str(part) for part in value] or None
    if value is None or value == "[]":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return format_number(value) if isinstance(value, int | float) else str(value)


def _body(changed: dict[str, Any]) -> dict[str, Any]:
    from gpuyard.cli.jobs.edit import changes_of
    from gpuyard.cli.jobs.job_options import Edits

    options: dict[str, Any] = {}
    cleared: dict[str, Any] = {}
    for key, value in changed.items():
        field = _EDITED[key]
        if value is None:
            cleared[field.name] = field.blank
        elif field.kind.option is list:
            options[field.attribute] = value if isinstance(value, list) else [str(value)]
        else:
            options[field.attribute] = _parsed_option(field, str(value))
    return {**changes_of(Edits(**options)), **cleared}


def _parsed_option(field: JobField, text: str) -> Any:
    if field.kind.option is str:
        return text
    try:
        return field.kind.parse(text, Moment(0.0))
    except UserError:
        raise UserError(f"{field.complaint(text, field.key)}; nothing was changed") from None
