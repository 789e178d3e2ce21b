"""Routes of policies: list, show, preview and change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastapi import Request, Response

from gpuyard.core.columns import COLUMNS
from gpuyard.core.loops.backfill import DISCIPLINES
from gpuyard.core.policies import ALIASES, POLICIES
from gpuyard.core.policy import PLACEMENT_DOCS
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.responses import iso, reply
from gpuyard.server.routes.submissions import PolicyChoice

if TYPE_CHECKING:
    from gpuyard.server.api import Api


class PolicyRoutes:
    """Handlers; `add_to` makes them known."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._one_at_a_time = asyncio.Lock()

    def add_to(self, add: Callable[..., None]) -> None:
        """Make the routes known."""
        add("/policies", self.known, "GET", Permission.EVERYBODY)
        add("/policy", self.policy, "GET", Permission.EVERYBODY)
        add("/policy", self.set_policy, "PUT", Permission.ADMIN, "set the policy")
        add("/policy/preview", self.preview, "POST", Permission.EVERYBODY)

    async def known(self) -> Response:
        """The policies, disciplines and placements that there are, with a line on each, and what can be set."""
        policies = [
            {
                "name": policy.name,
                "doc": policy.doc,
                "settings": dict(policy.defaults) | ({"quantum": policy.quantum} if policy.preemptive else {}),
                "columns": list(policy.columns),
                "preemptive": policy.preemptive,
            }
            for policy in POLICIES.values()
        ]
        others = {name: {"policy": text, "doc": doc} for name, (text, doc) in ALIASES.items()}
        columns = {name: column.doc for name, column in COLUMNS.items()}
        return reply(
            {
                "policies": policies, "aliases": others, "disciplines": DISCIPLINES, "placements": PLACEMENT_DOCS,
                "columns": columns,
            }
        )  # fmt: skip

    async def policy(self) -> Response:
        """How plans are made, and since when."""
        desk = self._api.desk
        planner, since, learned = await self._api.look(lambda: (*desk.policy(), desk.learned()))
        return reply(
            {
                "policy": planner.text, "name": planner.policy.text, "discipline": planner.discipline,
                "placement": planner.placement, "since": iso(since), "admission": self._api.settings.admission,
                "learned": learned,
            }
        )  # fmt: skip

    async def set_policy(self, request: Request, given: PolicyChoice) -> Response:
        """Make plans another way from now on; what is left out stays as it is."""
        api = self._api
        caller = api.permissions.caller(request)
        api.permissions.check_policy(caller, given.policy)
        user = caller.name
        await api.ask(lambda: api.desk.set_policy(given.policy, given.discipline, given.placement, user, given.force))
        return await self.policy()

    async def preview(self, request: Request, given: PolicyChoice) -> Response:
        """What would change now if plans were made another way; nothing does change."""
        api = self._api
        api.permissions.check_policy(api.permissions.caller(request), given.policy)
        async with self._one_at_a_time:
            found = await api.look(lambda: api.desk.preview(given.policy, given.discipline, given.placement))
        return reply({**asdict(found), "order": [moved._asdict() for moved in found.order]})
