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
    bare: str  # without quoted parts
    live: str  # with the parts in double quotes, in which a shell expands variables
    unclosed: int  # where an unclosed quote begins; -1 if there is none


def split(text: str) -> list[str]:
    """Words by the rules of shell quotes; raises with the position of an unbalanced quote."""
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
    """The first operator that only a shell understands, as in `a | b`; else empty."""
    scan = _scan(_joined(text))
    found = _OPERATOR.search(scan.bare)
    if found is not None:
        return found[0]
    return "a line break" if "\n" in scan.bare.strip() else ""


def unexpanded(text: str) -> str:
    """What a shell would have expanded, as in `$HOME` or `*.py`; else empty."""
    joined = _joined(text)
    scan = _scan(joined)
    if found := _EXPANSION.search(scan.live):
        return joined[found.start() :].split()[0].rstrip("\"'")
    for found in _PATTERN.finditer(scan.bare):
        if "://" not in found[0]:
            return joined[found.start() : found.end()].strip()
    return ""


def is_shell(words: list[str]) -> bool:
    return len(words) > 1 and words[0].rpartition("/")[2] in _SHELLS and any(_FLAG.fullmatch(word) for word in words)


def leading_assignment(words: list[str]) -> str:
    """The variable set before a command, as in `A=1 python`; else empty."""
    return words[0] if words and _SETTING.match(words[0]) else ""


def shell_command(text: str) -> str:
    return f"bash -c {shlex.quote(_joined(text).strip())}"


def _joined(text: str) -> str:
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
