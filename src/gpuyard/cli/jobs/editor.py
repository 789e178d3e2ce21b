"""A job's description in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from gpuyard.cli.terminal import output
from gpuyard.errors import GpuyardError, UserError, suggest
from gpuyard.units import format_number

if TYPE_CHECKING:
    from gpuyard.api.types import Job, Wishes
    from gpuyard.cli.jobs.job_options import Edits

T = TypeVar("T")
_SWITCHES = ("adaptive", "preemptible", "requeue")


def in_editor(job: Job, apply: Callable[[Wishes], T]) -> T | None:
    """Apply what somebody changes in a job's description; None if they leave it as it is.

    What they wrote is kept where it cannot be used.
    """
    before = described(job)
    handle, path = tempfile.mkstemp(".yaml", f"gpuyard-{job['id']}-")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(f"# Job {job['id']}: change what you like, and leave the editor. null takes something back.\n")
        file.write(yaml.safe_dump(before, sort_keys=False, allow_unicode=True))
    try:
        _edit(path)
    except UserError:  # nobody meant anything by it
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


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Wishes:
    from gpuyard.cli.jobs.edit import changes_of

    unknown = [key for key in after if key not in before]
    if unknown:
        raise UserError(f"there is no '{unknown[0]}' to be changed{suggest(unknown[0], before)}; nothing was changed")
    changed = {key: after.get(key) for key in before if _text(after.get(key)) != _text(before[key])}
    if "from" in changed:  # by itself it would mean all of these GPUs, but how many there are to be stands there too
        changed["gpus"] = after.get("gpus") or before["gpus"]
    return changes_of(_edits(changed))


def described(job: Job) -> dict[str, Any]:
    """What may be changed of a job, as it is."""
    return {
        "name": job["name"],
        "priority": _plain(job["priority"]),
        "tags": job["tags"],
        "gpus": job["gpu_count"],
        "from": ",".join(map(str, job["among"] or ())) or None,
        "gpu-memory": "auto" if job["gpu_memory_asked"] == "auto" else _plain(job["gpu_memory"]),
        "oom-retries": job["oom_retries"],
        "time": _seconds(job["time_limit"]),
        "estimate": _seconds(job["estimate"]),
        "begin": job["begin_at"],
        "deadline": job["deadline_at"],
        "dependency": job["dependency"],
        "retries": job["retries"],
        "retry-delay": _seconds(job["retry_delay"]),
        "requeue": job["requeue"],
        "preemptible": job["preemptible"],
        "adaptive": job["adaptive"],
        "signal": job["signal"] + (f"@{_seconds(job['notice'])}" if job["notice"] else ""),
        "grace": _seconds(job["grace"]),
        "output": job["output"],
        "error": job["error"],
        "open-mode": job["open_mode"],
    }


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
    """A value as it reads in the file: what was a number is a text when it comes back."""
    if isinstance(value, list):
        return [str(part) for part in value] or None
    if value is None or value == "[]":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return format_number(value) if isinstance(value, int | float) else str(value)


def _edits(changed: dict[str, Any]) -> Edits:
    from gpuyard.cli.jobs.job_options import Edits

    found: dict[str, Any] = {}
    for key, value in changed.items():
        name = {"tags": "tag", "from": "from_"}.get(key, key.replace("-", "_"))
        if name == "tag":
            found[name] = (value if isinstance(value, list) else [str(value)]) if value else ["none"]
        elif name in ("gpus", "retries", "priority"):
            found[name] = _number(key, value)
        elif name in _SWITCHES:
            found[name] = _switch(key, value)
        elif name == "signal":
            found[name] = "TERM" if value is None else str(value)
        else:
            found[name] = "none" if value is None else str(value)
    return Edits(**found)


def _number(key: str, value: Any) -> float | int:
    text = "0" if value is None else str(value)
    try:
        return float(text) if key == "priority" else int(text)
    except ValueError:
        raise UserError(f"{key} is a number, not '{text}'; nothing was changed") from None


def _switch(key: str, value: Any) -> bool:
    text = str(value or "false").lower()
    if text not in ("true", "false", "yes", "no"):
        raise UserError(f"{key} is true or false, not '{text}'; nothing was changed")
    return text in ("true", "yes")
