"""Dependencies as people write them: `afterok:12:13,afterany:prepare`."""

from __future__ import annotations

from typing import NamedTuple

from gpuyard.errors import UserError, suggest

_HOW = {"afterok": "ok", "afterany": "any", "afternotok": "notok", "after": "begun"}
_KINDS = (*_HOW, "singleton")
AFTER = {short: long for long, short in _HOW.items()}
"""What people call a kind of dependency, by what the core calls it."""


class Dependency(NamedTuple):
    """One job, or several under one name, that must end first, or begin (`begun`)."""

    how: str
    who: str


def parse_dependency(text: str) -> list[Dependency]:
    """`afterok:12:13,afterany:prepare`: all of them must hold."""
    if "?" in text:
        raise UserError(f"'{text}': ? (any of these) is not supported; with commas, all must hold")
    found: list[Dependency] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        kind, *who = part.split(":")
        if kind == "singleton" and not who:
            found.append(Dependency(kind, ""))
        elif kind in _HOW and who and all(who):
            found += [Dependency(_HOW[kind], one) for one in who]
        else:
            raise UserError(_complaint(part, kind))
    return found


def _complaint(part: str, kind: str) -> str:
    if kind in _HOW:
        return f"'{part}' does not say which job; write for example {kind}:12"
    return f"'{part}' is not a dependency{suggest(kind, _KINDS)}; write for example afterok:12, or afterany:12:13"
