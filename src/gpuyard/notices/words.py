"""What people can be told of: the events of a job, in the words that options and the API have for them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuyard.errors import UserError, suggest

START, FINISH, FAILURE, TIMEOUT, LONG_WAIT = EVENTS = ("start", "finish", "failure", "timeout", "long-wait")
USUAL = (FINISH, FAILURE, TIMEOUT)
TASKS = "tasks"
"""Not an event: tell of each task of an array by itself, not once of all."""
TEST = "test"
ALL, NONE = "all", "none"
REMOVED = "its subscription was removed"
"""Why something was never sent that nobody waits for."""
OF_STATE = {
    "succeeded": FINISH, "failed": FAILURE, "interrupted": FAILURE, "oom": FAILURE, "cancelled": FAILURE,
    "timeout": TIMEOUT,
}  # fmt: skip
"""What the end of a job is to those who want to be told; a cancelled job is only so if somebody else did that."""
LONG = 3600.0
"""Seconds that are a long wait, if nobody says otherwise."""
MOST_PLACES = 8
"""Different places that one process sends to."""
_NAME = re.compile(r"(?!\d+$)[\w.+-]{1,60}")


def check_events(words: Iterable[str]) -> tuple[str, ...]:
    """Events, each once and in their order; `all` is all of them."""
    given = {word.strip().lower().replace("_", "-") for word in words} - {""}
    for word in sorted(given):
        if word not in (*EVENTS, TASKS, ALL):
            known = ", ".join((*EVENTS, TASKS, ALL))
            raise UserError(f"there is no event '{word}'{suggest(word, (*EVENTS, TASKS)) or f'; there are {known}'}")
    if ALL in given:
        given |= set(EVENTS)
    found = tuple(word for word in (*EVENTS, TASKS) if word in given)
    if not set(found) - {TASKS}:
        raise UserError(f"say of what to tell: some of {', '.join(EVENTS)}")
    return found


def check_name(name: str) -> str:
    """A name for a subscription that cannot be taken for anything else."""
    if name in (ALL, NONE) or not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be the name of a subscription; take letters, digits, dots and dashes, and not only "
            f"digits, nor {ALL} or {NONE}"
        )
    return name
