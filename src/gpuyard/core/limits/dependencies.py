"""Jobs that wait for others to end, or to begin, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuyard.core.model import Phase
from gpuyard.core.state import State

_KINDS = ("ok", "notok", "any", "begun")


def wait_for(state: State, row: int, after: Iterable[str]) -> None:
    """Make a row wait for jobs, in place of those it waited for so far; what has happened already counts as done."""
    state.doomed.pop(row, None)
    left = {still: None for wish in after for still in _left_of(state, row, wish)}
    if left:
        state.after[row] = left
        _remember(state, row, left)
    else:
        state.after.pop(row, None)


def _left_of(state: State, row: int, wish: str) -> Iterator[str]:
    """The part of a dependency that is not fulfilled yet, or what replaced it; the chain may be long."""
    handed, wishes = state.handed.get(row, {}), [wish]
    while wishes:
        wish = wishes.pop()
        if _is_ahead(state, wish):
            yield wish
        wishes += reversed(handed.get(wish, ()))


def begin(state: State, job: str) -> None:
    for row in state.followers.get(job, ()):
        left = state.after.get(row)
        if left is not None and left.pop(f"begun:{job}", _ABSENT) is not _ABSENT and not left:
            del state.after[row]


def settle(state: State, job: str, phase: Phase, waited: Iterable[str] = ()) -> None:
    """A job is over: jobs that wait for it wait no longer, or can never start.

    If it never began, those that wait for its start wait for what it waited for: so an order holds when a job drops
    out.
    """
    for row in sorted(set(state.followers.pop(job, ()))):
        left = state.after.get(row)
        if left is None:
            continue
        for wish in [wish for how in _KINDS if (wish := f"{how}:{job}") in left]:
            how = wish.partition(":")[0]
            if how == "begun":
                _hand_on(state, row, wish, waited)
            if how == "begun" or _is_met(how, phase):
                del left[wish]
            else:
                state.doomed.setdefault(row, wish)
        if not left:
            del state.after[row]


def _hand_on(state: State, row: int, wish: str, waited: Iterable[str]) -> None:
    """Make a row wait for what a job waited for that it was to follow, also after its request is edited."""
    handed = [w for w in waited if _is_ahead(state, w) and w.partition(":")[2] != state.ids[row]]
    if handed:
        state.handed.setdefault(row, {})[wish] = handed
        state.after[row].update(dict.fromkeys(handed))
        _remember(state, row, handed)


_ABSENT = object()


def _remember(state: State, row: int, wishes: Iterable[str]) -> None:
    for wish in wishes:
        state.followers.setdefault(wish.partition(":")[2], []).append(row)


def _is_met(how: str, phase: Phase) -> bool:
    return how == "any" or (how == "ok") == (phase is Phase.SUCCEEDED)


def _is_ahead(state: State, wish: str) -> bool:
    how, _, job = wish.partition(":")
    row = state.row_of.get(job)
    if row is None or state.phase[row].over:
        return False
    return how != "begun" or not has_begun(state, row)


def has_begun(state: State, row: int) -> bool:
    """Whether a job that is not over runs, or ran before it was queued again."""
    return state.attempt[row] > (state.phase[row] is Phase.PLACED) or state.phase[row] is Phase.RUNNING
