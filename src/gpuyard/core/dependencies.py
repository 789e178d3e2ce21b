"""Jobs that wait for others to end, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.core.model import Phase
from gpuyard.core.state import State


def wait_for(state: State, row: int, after: Iterable[str]) -> None:
    """Let a row wait for jobs, in place of those it waited for so far; one that is not open counts as done."""
    state.doomed.pop(row, None)
    left = {wish: None for wish in after if _is_open(state, wish.partition(":")[2])}
    if left:
        state.after[row] = left
    else:
        state.after.pop(row, None)


def settle(state: State, job: str, phase: Phase) -> None:
    """A job is over: who waits for it waits no longer, or can never start."""
    wishes = [f"{how}:{job}" for how in ("ok", "notok", "any")]
    for row, left in list(state.after.items()):
        for wish in wishes:
            if wish not in left:
                continue
            if _is_met(wish.partition(":")[0], phase):
                del left[wish]
            else:
                state.doomed.setdefault(row, wish)
        if not left:
            del state.after[row]


def _is_met(how: str, phase: Phase) -> bool:
    return how == "any" or (how == "ok") == (phase is Phase.SUCCEEDED)


def _is_open(state: State, job: str) -> bool:
    row = state.row_of.get(job)
    return row is not None and not state.phase[row].over
