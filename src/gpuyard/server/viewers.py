"""Who looks at the page, and the ticket that says so to its process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.datastructures import State
from starlette.types import Scope

from gpuyard.server.admission import PAGE
from gpuyard.server.hosts import address_of
from gpuyard.server.permissions import Caller
from gpuyard.server.tickets import Claim

if TYPE_CHECKING:
    from gpuyard.server.doors import Doors


async def ticket_for(scope: Scope, doors: Doors) -> str:
    """A ticket for whoever the gate found out; empty if that is nobody."""
    caller = scope["state"].get("caller")
    if not isinstance(caller, Caller) or caller.by_page or caller is PAGE:
        return ""
    limits = caller.limits
    if doors.settings.shared and caller.via in ("socket", "loopback"):  # they are looked for in all of /proc
        limits = await asyncio.to_thread(doors.submitters.of_viewer, State(scope["state"]), caller.via)
    return doors.admission.tickets.issue(Claim(caller.via, caller.uid, address_of(scope, doors.settings), limits))
