"""The submit form, read as the command line reads its options: the request to post, and the errors by field."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuyard.errors import UserError
from gpuyard.page.views import shell_syntax
from gpuyard.page.views.shell_syntax import split
from gpuyard.spec import kinds
from gpuyard.spec.fields import FIELDS, HOME, MOST_SECONDS
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import Moment as Moment
from gpuyard.spec.notation import is_default_name
from gpuyard.spec.times import is_relative, parse_when
from gpuyard.units import format_duration, format_size

Form = Mapping[str, str | bool]
RequestBody = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's GPUs; none if they are not known."""

    gpus: tuple[int, ...] = ()
    memory: float = math.inf  # of the largest


@dataclass(slots=True)
class ParsedForm:
    body: RequestBody = field(default_factory=dict)  # the body of the request
    errors: dict[str, str] = field(default_factory=dict)  # sentences by field
    warnings: dict[str, str] = field(default_factory=dict)
    """Sentences by field; they do not keep the form from being sent."""
    wrap: str = ""  # the command wrapped in a shell, if it looks like shell syntax


def text_of(form: Form, name: str) -> str:
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def ticked(form: Form, name: str) -> bool:
    return form.get(name) is True


def parse_form(form: Form, moment: Moment, machine: Machine | None = None) -> ParsedForm:
    """The request that a form describes, with its errors, including what this machine cannot do."""
    found = ParsedForm({"command": [], "gpus": 1})
    _read_command(form, found)
    found.body["directory"] = text_of(form, "directory") or HOME
    for name, declared in FORM_FIELDS.items():
        if name != "directory" and name not in TICKS and (text := text_of(form, name)):
            try:
                found.body |= read_field(declared, text, moment)
            except UserError as error:
                found.errors[name] = sentence(str(error))
    for name in TICKS:
        if ticked(form, name):
            found.body[name] = True
    _check_together(found, moment)
    _check_machine(found, machine or Machine())
    return found


def sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!", "…")) else ".")


def _read_command(form: Form, found: ParsedForm) -> None:
    text = text_of(form, "command")
    if not text:
        found.errors["command"] = "Say what to run, for example: python train.py --epochs 10"
        return
    try:
        words = shell_syntax.split(text)
    except UserError as error:
        found.errors["command"] = sentence(str(error))
        return
    found.body["command"] = words
    if sign := shell_syntax.shell_operator(text):
        found.errors["command"] = (
            f"A command is a list of words, and no shell reads it: {sign} would mean nothing. "
            + ("Let a shell read it, or write it in one line." if " " in sign else "Let a shell read it, or quote it.")
        )
        found.wrap = shell_syntax.shell_command(text)
    elif not words[0] or (any(blank in words[0] for blank in " \t\n") and not words[0].startswith("/")):
        found.errors["command"] = f"There is no program '{words[0]}': leave out the quotes around its first words."
    elif variable := shell_syntax.leading_assignment(words):
        found.errors["command"] = (
            f"{variable} is no program: variables have a field of their own below, or let a shell read it."
        )
        found.wrap = shell_syntax.shell_command(text)
    elif (what := shell_syntax.unexpanded(text)) and not shell_syntax.is_shell(words):
        found.warnings["command"] = f"{what} stays as it is written, since no shell reads it."
        found.wrap = shell_syntax.shell_command(text)


def read_field(field: JobField, text: str, moment: Moment) -> RequestBody:
    """What the text of a field says; raises `UserError` where that is nothing, or beyond the field's limits."""
    found = _CHECKS.get(field.kind, _plain)(field, text, moment)
    value = found.get(field.name)
    texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    if field.longest and any(isinstance(one, str) and len(one) > field.longest for one in texts):
        raise UserError(f"{field.name} has {field.longest:,} characters at most")
    return {} if field.kind is kinds.VARIABLES and not found[field.name] else found


def _plain(field: JobField, text: str, moment: Moment) -> RequestBody:
    if field.longest and len(text) > field.longest:
        raise UserError(f"a {field.name} has {field.longest} characters at most; this has {len(text)}")
    return field.read(text, moment)


def _number(field: JobField, text: str, moment: Moment) -> RequestBody:
    least, most = field.least, field.most
    try:
        number = field.parse(text.removesuffix("%") if field.unit == "percent" else text, moment)
    except UserError:
        raise UserError(field.complaint(text, "it")) from None
    if not (-math.inf if least is None else least) <= number <= (math.inf if most is None else most):
        raise UserError(field.complaint(text, "it"))
    return {field.name: number}


def _seconds(field: JobField, text: str, moment: Moment) -> RequestBody:
    seconds, most = field.parse(text, moment), field.most or math.inf
    if seconds < 0 or (not seconds and field.above is not None):
        raise UserError("it must be more than 0; leave it empty if there is none")
    if not seconds <= most:
        longest = "an hour" if most == 3600 else format_duration(most)
        raise UserError("that is longer than anything takes" if most == MOST_SECONDS else f"it is at most {longest}")
    return {field.name: seconds}


def _instant(field: JobField, text: str, moment: Moment) -> RequestBody:
    found = field.read(text, moment)
    if field.future and found[field.name] <= moment.now:
        raise UserError("that is in the past")
    return found


def _choice(field: JobField, text: str, moment: Moment) -> RequestBody:
    if text not in field.choices:
        raise UserError(field.complaint(text, "it"))
    return {field.name: text}


def _words(field: JobField, text: str, moment: Moment) -> RequestBody:
    words = kinds.split_words(text)
    if field.most_items and len(words) > field.most_items:
        raise UserError(f"these are {len(words)} words; write {field.most_items} at most")
    for word in words:
        if field.choices and word not in field.choices:
            raise UserError(field.complaint(word, "it"))
    return {field.name: words}


_CHECKS = {
    kinds.WHOLE: _number, kinds.NUMBER: _number, kinds.DURATION: _seconds, kinds.INSTANT: _instant,
    kinds.CHOICE: _choice, kinds.WORDS: _words, kinds.LIST: _words,
}  # fmt: skip
FORM_FIELDS = {field.form_name: field for field in FIELDS if field.form}
"""By what the form calls them, in the order of the command line's options."""
TICKS = tuple(name for name, field in FORM_FIELDS.items() if field.kind is kinds.SWITCH)


def _check_together(found: ParsedForm, moment: Moment) -> None:
    body = found.body
    directory = body["directory"]
    if not directory.startswith(("/", HOME)) or (directory.startswith(HOME) and directory[1:2] not in ("", "/")):
        found.errors["directory"] = "Write a path from the root, as in /data/run, or ~/run for one in your home."
    if body.get("notice", 0.0) >= body.get("time_limit", math.inf):
        found.errors["signal"] = "The signal would come before the job begins: give less notice, or a longer limit."
    takes = body.get("estimate") or body.get("time_limit") or 0.0
    if max(moment.now, body.get("begin", 0.0)) + takes > body.get("deadline", math.inf):
        found.warnings["deadline"] = "It cannot be done by then, even if it starts as soon as it may."
    if "retry_delay" in body and not body.get("retries"):
        found.warnings["retry_delay"] = "This matters only to a job with retries."
    if "thread_percentage" in body and not body.get("mps"):
        found.errors["thread_percentage"] = "This is for clients of MPS: tick that as well, or leave this empty."
    if "open_mode" in body and "output" not in body and "error" not in body:
        found.warnings["open_mode"] = "This matters only to a job with a file for its output or errors."


def _check_machine(found: ParsedForm, machine: Machine) -> None:
    count, known = found.body["gpus"], set(machine.gpus)
    named = found.body.get("from", ())
    if known and (strange := [index for index in named if index not in known]):
        there = f"{min(known)} to {max(known)}" if len(known) > 1 else f"{min(known)}"
        found.errors["from"] = f"There is no GPU {strange[0]} here; there are {there}."
    elif named and count > len(named):
        found.errors["gpus"] = f"Only {len(named)} are named under “Only on these GPUs”; name more, or ask for fewer."
    elif known and count > len(known):
        found.errors["gpus"] = f"This machine has {len(known)} GPU{'s' * (len(known) != 1)}; ask for fewer."
    if (wanted := found.body.get("gpu_memory")) not in (None, "auto") and wanted > machine.memory:
        found.errors["gpu_memory"] = f"The largest GPU here has {format_size(machine.memory)}; ask for less."


_BY_REQUEST = {"notice": "signal", "environment": "variables"} | {
    field.name: form_name for form_name, field in FORM_FIELDS.items()
}
"""What the form calls a part of a request."""


_ABOUT = {" follow": "dependency", "subscription": "notify"}  # words of the daemon's messages that tell the field


def field_of(where: str) -> str:
    """The form's field that a part of a request belongs to; empty if there is none."""
    name = where.partition(".")[0].removesuffix("_")
    return _BY_REQUEST.get(name, name if name in ("command", *FORM_FIELDS) else "")


def errors_by_field(detail: str, errors: list[dict[str, str]]) -> dict[str, str]:
    """The daemon's errors by field; those about no field under an empty name."""
    found: dict[str, str] = {}
    where = next((name for word, name in _ABOUT.items() if word in detail), re.split(r"[\s:]", detail, maxsplit=1)[0])
    for error in errors or [{"where": where, "message": detail}]:
        name = field_of(error["where"])
        found.setdefault(name, sentence(error["message"]))
    return found


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
            found += _option_words(field, text, moment)
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
            found += _option_words(field, text, moment) if text else [field.flag, field.taken_back]
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


def _option_words(field: JobField, text: str, moment: Moment) -> list[str]:
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
    for form_name, one in FORM_FIELDS.items():
        if form_name not in _NOT_COPIED:
            value = job.get(one.json_key)
            found[form_name] = bool(value) if one.kind is kinds.SWITCH else _text(one, value, job)
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
        or (field.name == "name" and is_default_name(value, job["command"]))
        or (field.name == "estimate" and value == job["time_limit"])
        or (field.name == "retry_delay" and not job["retries"])
    )
    return "" if value is None or unsaid else field.kind.format(value)
