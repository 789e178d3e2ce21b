"""What a query may hold: a filter with a mistake in it must not give everything, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from gpuyard.errors import UserError, suggest
from gpuyard.server.tasks import STATES

_LONGEST = 80  # characters of what is not known, told back


class Asking(APIRoute):
    """A route that takes no parameters but its own."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, behind a look at the query."""
        handle = super().get_route_handler()
        known = sorted(field.alias for field in self.dependant.query_params)

        async def look(request: Request) -> Response:
            check_parameters(request.query_params, known)
            return await handle(request)

        return look


def check_parameters(given: Iterable[str], known: list[str]) -> None:
    """Refuse what a route knows nothing of."""
    for name in given:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise UserError(f"there is no parameter '{name[:_LONGEST]}'{suggest(name[:_LONGEST], known)} ({there})")


def check_states(given: Iterable[str]) -> None:
    """Refuse states that no job can be in."""
    for state in given:
        if state not in STATES:
            near = suggest(state[:_LONGEST], STATES)
            raise UserError(f"there is no state '{state[:_LONGEST]}'{near} (the states are {', '.join(STATES)})")
