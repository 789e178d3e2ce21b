"""The submit form, read as the command line reads its options: the request to post, and the errors by field."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from gpuyard.errors import UserError
from gpuyard.page.views import shell_syntax
from gpuyard.spec.notation import parse_array, parse_dependency
from gpuyard.spec.times import parse_when
from gpuyard.units import format_size, parse_duration, parse_indices, parse_share, parse_signal

Form = Mapping[str, str | bool]
RequestBody = dict[str, Any]
HOME = "~"
_NOTICES = ("start", "finish", "failure", "timeout", "long-wait", "tasks")
_LONGEST_DELAY = 3600.0
_MOST_SECONDS = 1e10
_LONGEST_NAME = 200
_MOST_OOMS = 100
_NAME = re.compile(r"[^=\s]+")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a form is read, and where: `16:00` means another instant elsewhere."""

    now: float
    zone: tzinfo | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs that there are; none if nobody knows."""

    gpus: tuple[int, ...] = ()
    memory: float = math.inf
    """Of the largest."""


@dataclass(slots=True)
class ParsedForm:
    """What a form says."""

    body: RequestBody = field(default_factory=dict)
    """What is to be posted."""
    errors: dict[str, str] = field(default_factory=dict)
    """What is wrong, as a sentence, by field."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What may not be meant so."""
    wrap: str = ""
    """The command as a shell would be given it, where it looks as if that was meant."""


Reader = Callable[[str, Moment], RequestBody]


def text_of(form: Form, name: str) -> str:
    """What a field holds, without blanks around it."""
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def ticked(form: Form, name: str) -> bool:
    """Whether a box is ticked."""
    return form.get(name) is True


def parse_form(form: Form, moment: Moment, machine: Machine | None = None) -> ParsedForm:
    """What a form says, as of a moment; what is wrong is told, and what cannot be on this machine."""
    found = ParsedForm({"command": [], "gpus": 1})
    _read_command(form, found)
    found.body["directory"] = text_of(form, "directory") or HOME
    for name, reader in READERS.items():
        if text := text_of(form, name):
            try:
                found.body |= reader(text, moment)
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


def _gpus(text: str, moment: Moment) -> RequestBody:
    return {"gpus": _whole(text, 1, 1_000_000, "how many GPUs")}


def _retries(text: str, moment: Moment) -> RequestBody:
    return {"retries": _whole(text, 0, 1000, "how often it may run again")}


def _whole(text: str, least: int, most: int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise UserError(f"'{text}' is not a whole number; write {what}, as in {max(least, 2)}") from None
    if not least <= number <= most:
        raise UserError(f"{what} is a number from {least} to {most:,}, not {text}")
    return number


def _priority(text: str, moment: Moment) -> RequestBody:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"'{text}' is not a priority; write a number: higher goes first, and 0 is usual")
    return {"priority": number}


def _seconds(name: str, *, none: bool, most: float = _MOST_SECONDS) -> Reader:
    def reading(text: str, moment: Moment) -> RequestBody:
        seconds = parse_duration(text)
        if seconds < 0 or (not seconds and not none):
            raise UserError("it must be more than 0; leave it empty if there is none")
        if not seconds <= most:
            raise UserError("it is at most an hour" if most == _LONGEST_DELAY else "that is longer than anything takes")
        return {name: seconds}

    return reading


def _begin(text: str, moment: Moment) -> RequestBody:
    return {"begin": parse_when(text, moment.now, moment.zone)}


def _deadline(text: str, moment: Moment) -> RequestBody:
    at = parse_when(text, moment.now, moment.zone)
    if at <= moment.now:
        raise UserError("that is in the past")
    return {"deadline": at}


def _name(text: str, moment: Moment) -> RequestBody:
    if len(text) > _LONGEST_NAME:
        raise UserError(f"a name has {_LONGEST_NAME} characters at most; this has {len(text)}")
    return {"name": text}


def _from(text: str, moment: Moment) -> RequestBody:
    return {"from": parse_indices(text)}


def _gpu_memory(text: str, moment: Moment) -> RequestBody:
    return {"gpu_memory": text if text == "auto" else parse_share(text)}


def _oom_retries(text: str, moment: Moment) -> RequestBody:
    if not text.isdecimal() or int(text) > _MOST_OOMS:
        raise UserError(f"'{text}' is no number of attempts, 0 to {_MOST_OOMS}")
    return {"oom_retries": int(text)}


def _thread_percentage(text: str, moment: Moment) -> RequestBody:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 1 <= percent <= 100:
        raise UserError(f"'{text}' is no percentage, 1 to 100")
    return {"thread_percentage": percent}


def _dependency(text: str, moment: Moment) -> RequestBody:
    parse_dependency(text)
    return {"dependency": text}


def _array(text: str, moment: Moment) -> RequestBody:
    parse_array(text)
    return {"array": text}


def _signal(text: str, moment: Moment) -> RequestBody:
    signal, notice = parse_signal(text)
    return {"signal": signal} | ({} if notice is None else {"notice": notice})


def words_in(text: str) -> list[str]:
    """Words between commas and blanks, each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def _tags(text: str, moment: Moment) -> RequestBody:
    return {"tags": words_in(text)}


def _notify(text: str, moment: Moment) -> RequestBody:
    return {"notify": words_in(text)}


def _notify_on(text: str, moment: Moment) -> RequestBody:
    words = words_in(text)
    for word in words:
        if word not in _NOTICES:
            raise UserError(f"'{word}' is nothing to be told of; write some of {', '.join(_NOTICES)}")
    return {"notify_on": words}


def variables_in(text: str) -> dict[str, str]:
    """`NAME=VALUE` lines."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not equals or not _NAME.fullmatch(name):
            raise UserError("each line is NAME=VALUE; this one is not: " + _hidden(line))
        found[name] = value
    return found


def _hidden(line: str) -> str:
    """The beginning of a line, which may hold a secret."""
    return line[:12] + ("…" if len(line) > 12 else "")


def _variables(text: str, moment: Moment) -> RequestBody:
    return {"variables": found} if (found := variables_in(text)) else {}


def _text(name: str) -> Reader:
    return lambda text, moment: {name: text}


def _open_mode(text: str, moment: Moment) -> RequestBody:
    if text not in ("append", "truncate"):
        raise UserError("it is append or truncate")
    return {"open_mode": text}


READERS: dict[str, Reader] = {
    "gpus": _gpus, "name": _name, "gpu_memory": _gpu_memory, "from": _from,
    "time": _seconds("time_limit", none=False), "estimate": _seconds("estimate", none=False),
    "begin": _begin, "deadline": _deadline, "priority": _priority, "dependency": _dependency, "array": _array,
    "retries": _retries, "retry_delay": _seconds("retry_delay", none=True, most=_LONGEST_DELAY),
    "signal": _signal, "grace": _seconds("grace", none=True), "tags": _tags, "variables": _variables,
    "output": _text("output"), "error": _text("error"), "open_mode": _open_mode, "notify": _notify,
    "notify_on": _notify_on, "profile": _text("profile"), "oom_retries": _oom_retries,
    "thread_percentage": _thread_percentage,
}  # fmt: skip
"""What each field of text says."""
TICKS = ("hold", "preemptible", "adaptive", "requeue", "cap", "mps")


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
    """What can never be, on this machine."""
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


_FIELDS = {"time_limit": "time", "notice": "signal", "from_": "from", "environment": "variables"}


_ABOUT = {" follow": "dependency", "subscription": "notify"}
"""Fields that a complaint is about which begins with another word."""


def field_of(where: str) -> str:
    """The field that a complaint of the daemon is about; empty if it is none of the form's."""
    name = where.partition(".")[0]
    name = _FIELDS.get(name, name)
    return name if name in READERS or name in TICKS or name in ("command", "directory") else ""


def errors_by_field(detail: str, errors: list[dict[str, str]]) -> dict[str, str]:
    """What the daemon refused, by field; under no name what is about no field."""
    found: dict[str, str] = {}
    where = next((name for word, name in _ABOUT.items() if word in detail), re.split(r"[\s:]", detail, maxsplit=1)[0])
    for error in errors or [{"where": where, "message": detail}]:
        name = field_of(error["where"])
        found.setdefault(name, sentence(error["message"]))
    return found


def program(command: list[str]) -> str:
    """What a command is called if nobody says."""
    return os.path.basename(command[0]) if command else ""
