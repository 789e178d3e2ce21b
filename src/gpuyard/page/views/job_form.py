"""The submit form, read as the command line reads its options: the request to post, and the errors by field."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard.errors import UserError
from gpuyard.page.views import shell_syntax
from gpuyard.spec import kinds
from gpuyard.spec.fields import FIELDS, HOME, MOST_SECONDS
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import Moment as Moment
from gpuyard.units import format_duration, format_size, parse_duration

Form = Mapping[str, str | bool]
RequestBody = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's GPUs; none if they are not known."""

    gpus: tuple[int, ...] = ()
    memory: float = math.inf
    """Of the largest."""


@dataclass(slots=True)
class ParsedForm:
    body: RequestBody = field(default_factory=dict)
    """The body of the request."""
    errors: dict[str, str] = field(default_factory=dict)
    """Sentences by field."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Sentences by field; they do not keep the form from being sent."""
    wrap: str = ""
    """The command wrapped in a shell, if it looks like shell syntax."""


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
    """With a capital and a full stop."""
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
    return {} if field.kind is kinds.VARIABLES and not found[field.name] else found


def _plain(field: JobField, text: str, moment: Moment) -> RequestBody:
    if field.longest and len(text) > field.longest:
        raise UserError(f"a {field.name} has {field.longest} characters at most; this has {len(text)}")
    return field.read(text, moment)


def _number(field: JobField, text: str, moment: Moment) -> RequestBody:
    least, most, form = field.least, field.most, field.form
    complaint = form.complaint.format(text=text, least=least, most=most) if form else ""
    asks = (form.asks if form else "") or "a number"
    try:
        number = field.kind.parse(text.removesuffix("%") if field.unit == "percent" else text, moment)
    except UserError as error:
        raise UserError(complaint or f"{error}; write {asks}, as in {max(least or 0, 2)}") from None
    if not (-math.inf if least is None else least) <= number <= (math.inf if most is None else most):
        raise UserError(complaint or f"{asks} is a number from {least} to {most:,}, not {text}")
    return {field.name: number}


def _seconds(field: JobField, text: str, moment: Moment) -> RequestBody:
    seconds, most = parse_duration(text), field.most or math.inf
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
        raise UserError(f"it is {' or '.join(field.choices)}")
    return {field.name: text}


def _words(field: JobField, text: str, moment: Moment) -> RequestBody:
    words = kinds.split_words(text)
    if field.most_items and len(words) > field.most_items:
        raise UserError(f"these are {len(words)} words; write {field.most_items} at most")
    for word in words:
        if field.choices and word not in field.choices:
            assert field.form is not None
            raise UserError(field.form.complaint.format(text=word, choices=", ".join(field.choices)))
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


_ABOUT = {" follow": "dependency", "subscription": "notify"}
"""Words of the daemon's messages that tell the field."""


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


def program(command: list[str]) -> str:
    """A command's default name."""
    return os.path.basename(command[0]) if command else ""
