"""Requests with an Idempotency-Key: done once, and answered the same again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuyard.daemon.context import Context
from gpuyard.daemon.store.reader import Answered
from gpuyard.errors import UserError

KEPT = 7 * 86400.0  # seconds for which an answer is kept


class KeyedRequest(NamedTuple):
    user: str
    key: str
    request: str  # a hash of what is asked for


class Idempotency:
    """Makes requests with a key happen once."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def once(self, sent: KeyedRequest, act: Callable[[], Any]) -> tuple[Any, bool]:
        """The answer, and whether it was given before. For the loop's thread, which serialises requests."""
        context = self._context
        known = context.answers.get((sent.user, sent.key)) or context.store.answer(sent.user, sent.key)
        if known is not None:
            return known_answer(sent, known), True
        answer = act()
        now = context.clock.now()
        context.answers[sent.user, sent.key] = Answered(*sent, json.dumps(answer, separators=(",", ":")), now)
        return answer, False


def known_answer(sent: KeyedRequest, known: Answered) -> Any:
    """The earlier answer, if the request is the same."""
    if known.request != sent.request:
        raise UserError(
            f"the Idempotency-Key '{sent.key}' came with another request before; give every request a key of its own"
        )
    return json.loads(known.answer)
