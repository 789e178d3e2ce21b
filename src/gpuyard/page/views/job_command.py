"""The `gpuyard submit` command line that is equivalent to a form."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from gpuyard.page.views.job_form import (
    FORM_FIELDS,
    TICKS,
    Form,
    Moment,
    RequestBody,
    program,
    read_field,
    text_of,
    ticked,
)
from gpuyard.page.views.shell_syntax import split
from gpuyard.spec import kinds
from gpuyard.spec.fields import HOME
from gpuyard.spec.job_field import JobField
from gpuyard.spec.times import is_relative, parse_when

_FIRST = (
    "gpus", "gpu_memory", "profile", "oom_retries", "thread_percentage", "from", "time", "estimate", "name", "priority",
    "tags", "begin", "deadline", "dependency", "array", "retries", "retry_delay", "signal", "grace", "directory",
    "variables", "hold",
)  # fmt: skip
"""The order of a command line; others follow in the order of the options."""
_ORDERED = [*_FIRST, *(name for name in FORM_FIELDS if name not in _FIRST)]
_TEXTS = [name for name in _ORDERED if name not in TICKS]
_TICKS = {name: FORM_FIELDS[name].flag for name in _ORDERED if name in TICKS}


def _values(field: JobField, text: str, moment: Moment) -> list[str]:
    """What the option is given, once or several times."""
    if field.kind is kinds.INSTANT and not is_relative(text):
        at = datetime.fromtimestamp(parse_when(text, moment.now, moment.zone), moment.zone)
        return [at.astimezone(moment.zone).isoformat()]  # with the zone, for a shell may be in another one
    if field.kind is kinds.WORDS:
        return kinds.split_words(text)
    if field.kind is kinds.LIST:
        return [",".join(kinds.split_words(text))]
    if field.kind is kinds.VARIABLES:
        return [f"{name}={value}" for name, value in kinds.parse_variables(text).items()]
    return [text]


def command_line(form: Form, moment: Moment, wrong: frozenset[str] = frozenset()) -> str:
    """`gpuyard submit ...`, quoted for a shell; fields that are wrong are left out."""
    found = ["gpuyard", "submit"]
    for name in _TEXTS:
        field = FORM_FIELDS[name]
        text = text_of(form, name) or (HOME if name == "directory" else "")
        if text and field.form and text != field.form.usual and name not in wrong:
            found += _words(field, text, moment)
    found += [flag for name, flag in _TICKS.items() if ticked(form, name)]
    return shlex.join([*found, "--", *_command(form, wrong)])


def clone_line(id: str, form: Form, former: Form, moment: Moment, wrong: frozenset[str] = frozenset()) -> str:
    """`gpuyard clone ID ...` with the changed fields only."""
    found = ["gpuyard", "clone", id]
    for name in _changed(form, former):
        if name in wrong or name == "command":
            continue
        if name in _TICKS:
            found.append(_TICKS[name] if ticked(form, name) else _TICKS[name].replace("--", "--no-", 1))
        else:
            field = FORM_FIELDS[name]
            text = text_of(form, name)
            found += _words(field, text, moment) if text else [field.flag, field.taken_back]
    if "command" in _changed(form, former) and "command" not in wrong:
        found += ["--", *_command(form, wrong)]
    return shlex.join(found)


def clone_body(form: Form, former: Form, moment: Moment) -> RequestBody:
    """The request for a copy: the changed fields only, null for those that are taken back."""
    found: RequestBody = {}
    for name in _changed(form, former):
        text = text_of(form, name)
        if name in _TICKS:
            found[name] = ticked(form, name)
        elif name == "command":
            found[name] = split(text)
        elif name == "directory":
            found[name] = text or HOME
        elif text:
            found |= read_field(FORM_FIELDS[name], text, moment)
        else:
            found[FORM_FIELDS[name].name] = FORM_FIELDS[name].blank
    return found


def _changed(form: Form, former: Form) -> list[str]:
    """The fields that differ; a copy keeps its environment, and an array its tasks, unless others are named."""
    texts = [name for name in ("command", *_TEXTS) if text_of(form, name) != text_of(former, name)]
    kept = {"variables"} | ({"array"} if not text_of(form, "array") else set())
    return [name for name in texts if name not in kept] + [
        name for name in _TICKS if ticked(form, name) != ticked(former, name)
    ]


def _words(field: JobField, text: str, moment: Moment) -> list[str]:
    found: list[str] = []
    for value in _values(field, text, moment):
        found += [f"{field.flag}={value}"] if value.startswith("-") else [field.flag, value]
    return found


def _command(form: Form, wrong: frozenset[str]) -> list[str]:
    text = text_of(form, "command")
    return split(text) if text and "command" not in wrong else ["COMMAND"]


_NOT_COPIED = ("begin", "deadline", "dependency", "array", "hold", "variables", "oom_retries")
_USUAL = {"retry_delay": 30.0, "grace": 10.0}


def form_of(job: dict[str, Any]) -> dict[str, str | bool]:
    """The form filled from a job, without its begin time, deadline and dependencies."""
    found: dict[str, str | bool] = {"command": shlex.join(job["command"])}
    for form_name, field in FORM_FIELDS.items():
        if form_name not in _NOT_COPIED:
            value = job.get(field.told_as)
            found[form_name] = bool(value) if field.kind is kinds.SWITCH else _text(field, value, job)
    return found


def _text(field: JobField, value: Any, job: dict[str, Any]) -> str:
    """What the form says of a field; nothing where it is as usual."""
    if field.name == "gpu_memory":
        value = job["gpu_memory_asked"]
    elif field.name == "notify":
        value = [ref for ref in value if ref != "url"]
    elif field.name == "signal" and job["notice"]:
        return f"{value}@{kinds.DURATION.format(job['notice'])}"
    unsaid = (
        value == _USUAL.get(field.name, field.default)
        or (field.name == "name" and value == program(job["command"]))
        or (field.name == "estimate" and value == job["time_limit"])
        or (field.name == "retry_delay" and not job["retries"])
    )
    return "" if value is None or unsaid else field.kind.format(value)
