"""The `gpuyard submit` command line that is equivalent to a form."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from gpuyard.page.views.job_form import (
    HOME,
    READERS,
    Form,
    Moment,
    RequestBody,
    program,
    text_of,
    ticked,
    variables_in,
    words_in,
)
from gpuyard.page.views.shell_syntax import split
from gpuyard.spec.times import is_relative, parse_when
from gpuyard.units import format_number, format_size, parse_size

_Values = Callable[[str, Moment], list[str]]


def _as_typed(text: str, moment: Moment) -> list[str]:
    return [text]


def _instant(text: str, moment: Moment) -> list[str]:
    """With the zone, for a shell may be in another one than who looks."""
    if is_relative(text):
        return [text]
    return [
        datetime.fromtimestamp(parse_when(text, moment.now, moment.zone), moment.zone)
        .astimezone(moment.zone)
        .isoformat()
    ]


def _each(text: str, moment: Moment) -> list[str]:
    return words_in(text)


def _assignments(text: str, moment: Moment) -> list[str]:
    return [f"{name}={value}" for name, value in variables_in(text).items()]


class _Option(NamedTuple):
    flag: str
    values: _Values = _as_typed
    usual: str = ""
    """What it says if it is left out."""
    cleared: str = "none"
    """What takes it back, of a copy."""


OPTIONS: dict[str, _Option] = {
    "gpus": _Option("--gpus", usual="1", cleared="1"),
    "gpu_memory": _Option("--gpu-memory"),
    "profile": _Option("--profile"),
    "oom_retries": _Option("--oom-retries"),
    "thread_percentage": _Option("--thread-percentage"),
    "from": _Option("--from"),
    "time": _Option("--time"),
    "estimate": _Option("--estimate"),
    "name": _Option("--name"),
    "priority": _Option("--priority", cleared="0"),
    "tags": _Option("--tag", _each),
    "begin": _Option("--begin", _instant),
    "deadline": _Option("--deadline", _instant),
    "dependency": _Option("--dependency"),
    "array": _Option("--array"),
    "retries": _Option("--retries", cleared="0"),
    "retry_delay": _Option("--retry-delay"),
    "signal": _Option("--signal", cleared="TERM"),
    "grace": _Option("--grace"),
    "directory": _Option("--chdir", cleared=HOME),
    "variables": _Option("--env", _assignments),
    "output": _Option("--output"),
    "error": _Option("--error"),
    "open_mode": _Option("--open-mode"),
    "notify": _Option("--notify", _each, cleared="all"),
    "notify_on": _Option("--notify-on", lambda text, moment: [",".join(words_in(text))]),
}  # fmt: skip
_TICKS = {
    "hold": "--hold", "preemptible": "--preemptible", "adaptive": "--adaptive", "requeue": "--requeue",
    "cap": "--cap", "mps": "--mps",
}  # fmt: skip


def command_line(form: Form, moment: Moment, wrong: frozenset[str] = frozenset()) -> str:
    """`gpuyard submit ...`, quoted for a shell; fields that are wrong are left out."""
    found = ["gpuyard", "submit"]
    for name, option in OPTIONS.items():
        text = text_of(form, name) or (HOME if name == "directory" else "")
        if text and text != option.usual and name not in wrong:
            found += _words(option, text, moment)
    found += [flag for name, flag in _TICKS.items() if ticked(form, name)]
    return shlex.join([*found, "--", *_command(form, wrong)])


def clone_line(id: str, form: Form, former: Form, moment: Moment, wrong: frozenset[str] = frozenset()) -> str:
    """`gpuyard clone ID ...`: only what is to be different."""
    found = ["gpuyard", "clone", id]
    for name in _changed(form, former):
        if name in wrong or name == "command":
            continue
        if name in _TICKS:
            found.append(_TICKS[name] if ticked(form, name) else _TICKS[name].replace("--", "--no-", 1))
        else:
            option = OPTIONS[name]
            text = text_of(form, name)
            found += _words(option, text, moment) if text else [option.flag, option.cleared]
    if "command" in _changed(form, former) and "command" not in wrong:
        found += ["--", *_command(form, wrong)]
    return shlex.join(found)


def clone_body(form: Form, former: Form, moment: Moment) -> RequestBody:
    """What is to be posted for a copy: only what is to be different, null for what is taken back."""
    found: RequestBody = {}
    for name in _changed(form, former):
        text = text_of(form, name)
        if name in _TICKS:
            found[name] = ticked(form, name)
        elif name == "command":
            found[name] = split(text)
        elif name == "directory":
            found[name] = text or HOME
        elif text or OPTIONS[name].cleared != "none":
            found |= READERS[name](text or OPTIONS[name].cleared, moment)
        else:
            found |= _CLEARED.get(name) or {name: None}
    return found


_CLEARED: dict[str, RequestBody] = {"time": {"time_limit": None}, "tags": {"tags": []}}


def _changed(form: Form, former: Form) -> list[str]:
    """The fields that differ; a copy keeps its environment, and an array its tasks, unless others are named."""
    texts = [name for name in ("command", *OPTIONS) if text_of(form, name) != text_of(former, name)]
    kept = {"variables"} | ({"array"} if not text_of(form, "array") else set())
    return [name for name in texts if name not in kept] + [
        name for name in _TICKS if ticked(form, name) != ticked(former, name)
    ]


def _words(option: _Option, text: str, moment: Moment) -> list[str]:
    found: list[str] = []
    for value in option.values(text, moment):
        found += [f"{option.flag}={value}"] if value.startswith("-") else [option.flag, value]
    return found


def _command(form: Form, wrong: frozenset[str]) -> list[str]:
    text = text_of(form, "command")
    return split(text) if text and "command" not in wrong else ["COMMAND"]


def form_of(job: dict[str, Any]) -> dict[str, str | bool]:
    """The form as it would have been filled for a job; when it was to begin, and after whom, was for that one."""
    name = job["name"] or ""
    signal = "" if job["signal"] == "TERM" and not job["notice"] else job["signal"]
    limit, estimate = job["time_limit"], job["estimate"]
    return {
        "command": shlex.join(job["command"]),
        "gpus": str(job["gpu_count"]),
        "name": "" if name == program(job["command"]) else name,
        "directory": job["directory"],
        "gpu_memory": "auto" if job["gpu_memory_asked"] == "auto" else _size(job["gpu_memory_asked"]),
        "profile": job["profile"] or "",
        "thread_percentage": format_number(job["thread_percentage"]) if job["thread_percentage"] else "",
        "cap": job["cap"],
        "mps": job["mps"],
        "from": ",".join(map(str, job["among"] or ())),
        "time": _span(limit),
        "estimate": "" if estimate == limit else _span(estimate),
        "priority": format_number(job["priority"]) if job["priority"] else "",
        "retries": str(job["retries"] or ""),
        "retry_delay": _span(job["retry_delay"]) if job["retries"] and job["retry_delay"] != _USUAL_DELAY else "",
        "signal": f"{signal}@{_span(job['notice'])}" if job["notice"] else signal,
        "grace": "" if job["grace"] == _USUAL_GRACE else _span(job["grace"]),
        "tags": ", ".join(job["tags"]),
        "output": job["output"] or "",
        "error": job["error"] or "",
        "open_mode": job["open_mode"] or "",
        "notify": ", ".join(ref for ref in job["notify"] if ref != "url"),
        "notify_on": ", ".join(job["notify_on"]),
        "preemptible": job["preemptible"],
        "adaptive": job["adaptive"],
        "requeue": job["requeue"],
    }


_USUAL_DELAY, _USUAL_GRACE = 30.0, 10.0


def _span(seconds: float | None) -> str:
    """A duration as people write it, and exactly."""
    if seconds is None:
        return ""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{format_number(seconds)}s"


def _size(size: float | None) -> str:
    if size is None:
        return ""
    short = format_size(size)
    return short if parse_size(short) == size else format_number(size)
