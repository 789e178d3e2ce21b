"""The texts of notifications: the usual ones, and those that people write themselves, with `{fields}` in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter

from gpuyard.errors import UserError, suggest

FIELDS = {
    "id": "the job's id", "name": "its name", "user": "whose it is", "event": "what is told of: start, finish ...",
    "what": "the same in words: `failed with exit code 3`", "state": "its state", "exit_code": "its exit code",
    "duration": "how long it ran", "wait": "how long it waited", "gpus": "the GPUs that it had", "host": "the machine",
    "command": "its command", "directory": "where it ran", "reason": "why it waits or failed, or what to know of it",
    "attempts": "how often it was started", "submitted": "when it was submitted", "started": "when it started",
    "ended": "when it ended", "tasks": "of an array: how many tasks ended how", "log": "the last lines of its output",
}  # fmt: skip
"""What a template may have in braces."""
_MOST_TEMPLATE = 10_000
_MOST_TITLE, _MOST_BODY = 200, 20_000
_LINES, _LINE, _LOG = 20, 500, 8000
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])")
_ROWS = (
    ("State", "state"), ("Exit code", "exit_code"), ("Reason", "reason"), ("Tasks", "tasks"), ("Ran for", "duration"),
    ("Waited", "wait"), ("Attempts", "attempts"), ("On GPUs", "gpus"), ("Host", "host"), ("User", "user"),
    ("Command", "command"), ("Directory", "directory"), ("Submitted", "submitted"), ("Started", "started"),
    ("Ended", "ended"),
)  # fmt: skip


def check_template(text: str) -> str:
    """A template that can be filled in, or what is wrong with it."""
    if len(text) > _MOST_TEMPLATE:
        raise UserError(f"a template has at most {_MOST_TEMPLATE:,} characters")
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise UserError(
            f"the template is not right ({error}); write braces that are to stay twice: {{{{ }}}}"
        ) from None
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in FIELDS:
            raise UserError(f"a template knows no {{{name}}}{suggest(name, FIELDS)}; it knows {', '.join(FIELDS)}")
        if form or conversion:
            raise UserError(f"write {{{name}}} without anything more in the braces")
    return text


def fill(text: str, facts: Mapping[str, str]) -> str:
    """A template with its fields filled in; nothing but the names of fields means anything there."""
    return "".join(
        literal + (facts.get(name, "") if name is not None else "") for literal, name, _, _ in Formatter().parse(text)
    )


def title_of(facts: Mapping[str, str], template: str = "") -> str:
    """One line that says what happened."""
    text = fill(template, facts) if template else f"gpuyard: job {_who(facts)} {facts['what']}"
    return " ".join(text.split())[:_MOST_TITLE]


def body_of(facts: Mapping[str, str], template: str = "") -> str:
    """All that there is to say."""
    if template:
        return fill(template, facts)[:_MOST_BODY]
    rows = [(f"{label}:", facts[name]) for label, name in _ROWS if facts.get(name)]
    lines = [f"Job {_who(facts)} {facts['what']}.", "", *(f"{label:<10} {_one_line(value)}" for label, value in rows)]
    if facts.get("log"):
        lines += ["", "Its last lines of output:", "", *(f"    {line}" for line in facts["log"].split("\n"))]
    return "\n".join(lines)[:_MOST_BODY] + "\n"


def _who(facts: Mapping[str, str]) -> str:
    return f"{facts['id']} ({_one_line(facts['name'])})" if facts.get("name") else facts["id"]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]


def last_lines(data: bytes, cut: bool = False) -> str:
    """The last lines of a job's output, as a person would have seen them; `cut`: the first may be but half a line."""
    text = _ANSI.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]  # bars write over themselves
    lines = lines[1:] if cut and len(lines) > 1 else lines
    while lines and not lines[-1]:
        lines.pop()
    plain = ["".join(c if c.isprintable() else " " for c in line.expandtabs()) for line in lines[-_LINES:]]
    short = [line if len(line) <= _LINE else f"{line[: _LINE - 1]}…" for line in plain]
    while sum(map(len, short)) > _LOG:
        short.pop(0)
    return "\n".join(short)
