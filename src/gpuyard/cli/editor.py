"""A job's description in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import yaml

from gpuyard.errors import UserError, suggest
from gpuyard.units import format_number

if TYPE_CHECKING:
    from gpuyard.cli.wishes import Edits
    from gpuyard.client import Job, Wishes


def in_editor(job: Job) -> Wishes:
    """What somebody changes in a job's description; nothing if they leave it as it is."""
    from gpuyard.cli.edit import changes_of

    before = described(job)
    after = _edited(job["id"], before)
    unknown = [key for key in after if key not in before]
    if unknown:
        raise UserError(f"there is no '{unknown[0]}' to be changed{suggest(unknown[0], before)}; nothing was changed")
    changed = {key: after.get(key) for key in before if _text(after.get(key)) != _text(before[key])}
    return changes_of(_edits(changed))


def described(job: Job) -> dict[str, Any]:
    """What may be changed of a job, as it is."""
    return {
        "name": job["name"],
        "priority": _plain(job["priority"]),
        "tags": job["tags"],
        "gpus": job["gpu_count"],
        "gpu-memory": _plain(job["gpu_memory"]),
        "time": _seconds(job["time_limit"]),
        "estimate": _seconds(job["estimate"]),
        "begin": job["begin_at"],
        "deadline": job["deadline_at"],
        "dependency": job["dependency"],
        "retries": job["retries"],
        "output": job["output"],
        "error": job["error"],
    }


def _plain(value: float | None) -> float | None:
    return int(value) if value is not None and float(value).is_integer() else value


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{format_number(value)}s"


def _edited(id: str, before: dict[str, Any]) -> dict[str, Any]:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    head = f"# Job {id}: change what you like, and leave the editor. null takes something back.\n"
    with tempfile.NamedTemporaryFile("w", prefix=f"gpuyard-{id}-", suffix=".yaml", encoding="utf-8") as file:
        file.write(head + yaml.safe_dump(before, sort_keys=False, allow_unicode=True))
        file.flush()
        try:
            code = subprocess.run([*editor, file.name], check=False).returncode
        except OSError as error:
            raise UserError(f"the editor {editor[0]} cannot be started ({error.strerror}); set EDITOR") from error
        if code:
            raise UserError(f"the editor ended with code {code}, so nothing was changed")
        with open(file.name, encoding="utf-8") as again:  # an editor may have put another file in its place
            return _parsed(again.read())


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, Loader=yaml.BaseLoader)  # texts only: 16:00 is no number
    except yaml.YAMLError as error:
        raise UserError(f"this is not YAML any more, so nothing was changed: {error}") from error
    if not isinstance(found, dict):
        raise UserError("these are not keys and values any more, so nothing was changed")
    return {key: None if value in ("null", "", "~") else value for key, value in found.items()}


def _text(value: Any) -> Any:
    """A value as it reads in the file: what was a number is a text when it comes back."""
    if isinstance(value, list):
        return [str(part) for part in value] or None
    if value is None or value == "[]":
        return None
    return format_number(value) if isinstance(value, int | float) else str(value)


def _edits(changed: dict[str, Any]) -> Edits:
    from gpuyard.cli.wishes import Edits

    found: dict[str, Any] = {}
    for key, value in changed.items():
        name = {"tags": "tag"}.get(key, key.replace("-", "_"))
        if name == "tag":
            found[name] = (value if isinstance(value, list) else [str(value)]) if value else ["none"]
        elif name in ("gpus", "retries", "priority"):
            found[name] = _number(key, value)
        else:
            found[name] = "none" if value is None else str(value)
    return Edits(**found)


def _number(key: str, value: Any) -> float | int:
    text = "0" if value is None else str(value)
    try:
        return float(text) if key == "priority" else int(text)
    except ValueError:
        raise UserError(f"{key} is a number, not '{text}'; nothing was changed") from None
