"""A typed command: its words, and the shell syntax that it contains."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from gpuyard.errors import UserError

_QUOTED_OR_JOINED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\\n|\\.""", re.DOTALL)
_OPERATOR = re.compile(r"&&|\|\||;;|>>|<<|\|&|[|&;<>()]")
_EXPANSION = re.compile(r"\$[A-Za-z_{(0-9@*#?!]|`")
_PATTERN = re.compile(r"(?:^|\s)(~[\w/]?\S*)|(?:^|\s)(?!-)(\S*[*?]\S*|\S*\[[^\s\]]+\]\S*)")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish"))
_FLAG = re.compile(r"-[a-z]*c")
_SETTING = re.compile(r"[A-Za-z_]\w*=")


class _Scan(NamedTuple):
    """A text, character by character, with a mark in place of what is quoted."""

    bare: str
    """Without anything in quotes."""
    live: str
    """The same, but with what stands in double quotes, where a shell replaces variables."""
    unclosed: int
    """Where a quote begins that does not end; -1 if there is none."""


def split(text: str) -> list[str]:
    """The words, by the rules of a shell's quotes; an unbalanced quote is told with its place."""
    joined = _joined(text)
    scan = _scan(joined)
    if scan.unclosed >= 0:
        quote, rest = joined[scan.unclosed], joined[scan.unclosed :]
        raise UserError(
            f"the quote that begins at {_short(rest)} is not closed; add another {quote}, or write \\{quote} for one "
            "that is part of a word"
        )
    try:
        return shlex.split(joined)
    except ValueError:
        raise UserError("the command ends with a backslash, which quotes nothing; leave it out") from None


def shell_operator(text: str) -> str:
    """The first sign that only a shell understands, as in `a | b`; empty if there is none."""
    scan = _scan(_joined(text))
    found = _OPERATOR.search(scan.bare)
    if found is not None:
        return found[0]
    return "a line break" if "\n" in scan.bare.strip() else ""


def unexpanded(text: str) -> str:
    """What a shell would have replaced, as in `$HOME` or `*.py`; empty if there is nothing of the kind."""
    joined = _joined(text)
    scan = _scan(joined)
    if found := _EXPANSION.search(scan.live):
        return joined[found.start() :].split()[0].rstrip("\"'")
    for found in _PATTERN.finditer(scan.bare):
        if "://" not in found[0]:
            return joined[found.start() : found.end()].strip()
    return ""


def is_shell(words: list[str]) -> bool:
    """Whether a shell reads it after all."""
    return len(words) > 1 and words[0].rpartition("/")[2] in _SHELLS and any(_FLAG.fullmatch(word) for word in words)


def leading_assignment(words: list[str]) -> str:
    """The variable that is set before a command, as in `A=1 python`; empty if there is none."""
    return words[0] if words and _SETTING.match(words[0]) else ""


def shell_command(text: str) -> str:
    """The same, read by a shell."""
    return f"bash -c {shlex.quote(_joined(text).strip())}"


def _joined(text: str) -> str:
    """Lines that end with a backslash go on in the next, as in a shell."""
    return _QUOTED_OR_JOINED.sub(lambda found: "" if found[0] == "\\\n" else found[0], text.replace("\r\n", "\n"))


def _scan(text: str) -> _Scan:
    bare, live, quote, began, at = "", "", "", -1, 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            masked = "x" * len(text[at : at + 2])
            bare, live, at = bare + masked, live + masked, at + 2
            continue
        if quote:
            bare, live = bare + "x", live + (char if quote == '"' else "x")
            if char == quote:
                quote, began = "", -1
        else:
            opens = char in "'\""
            bare, live = bare + ("x" if opens else char), live + ("x" if opens else char)
            if opens:
                quote, began = char, at
        at += 1
    return _Scan(bare, live, began)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:23]}…"
