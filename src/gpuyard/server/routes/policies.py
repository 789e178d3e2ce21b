"""Routes of policies: list, show, preview and change."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import Request, Response

from gpuyard.api import replies, types
from gpuyard.core.columns import COLUMNS
from gpuyard.core.loops.backfill import DISCIPLINES
from gpuyard.core.policies import ALIASES, POLICIES
from gpuyard.core.policy import PLACEMENT_DOCS
from gpuyard.server.context import Context
from gpuyard.server.responses import iso, reply
from gpuyard.server.routes.submissions import PolicyChoice
from gpuyard.server.routing import AT, Route, admin, ok

POLICY: dict[str, Any] = {
    "policy": "multifactor@easy@pack", "name": "multifactor", "discipline": "easy", "placement": "pack", "since": AT,
    "admission": "requests", "learned": None, "warning": None,
}  # fmt: skip
PREVIEW: dict[str, Any] = {
    "policy": "sjf@easy@pack", "starts": ["18"], "stops": [],
    "order": [
        {"id": "18", "name": "eval", "user": "bob", "place": 1, "was": 2},
        {"id": "17", "name": "train", "user": "ann", "place": 2, "was": 1},
    ],
    "moved": 2, "waiting": 2, "note": None,
}  # fmt: skip
KNOWN: dict[str, Any] = {
    "policies": [
        {
            "name": "sjf", "doc": "Shortest job first, by estimate.", "settings": {}, "columns": ["estimate"],
            "preemptive": False,
        }
    ],
    "aliases": {"fifo": {"policy": "fcfs", "doc": "first come, first served, by its other name"}},
    "disciplines": {"skip": "greedy: whatever fits starts, in order"},
    "placements": {"first": "the lowest-numbered GPUs that fit"},
    "columns": {"estimate": "seconds that it should take"},
}  # fmt: skip
POLICY_CHOICES: dict[str, Any] = {
    "by name": {"policy": "sjf"}, "with all that can be said": {"policy": "priority:ageing=2@easy@pack"},
    "a trained one, whatever its gate says": {"policy": "learned:/srv/policies/week.json", "force": True},
}  # fmt: skip
_IN_FORCE = ok("What makes the plans.", replies.PolicyInForce, POLICY)


class PolicyRoutes:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._one_at_a_time = asyncio.Lock()

    @Route(
        "GET /policies", "listPolicies", "List the policies", "Policy", ok("What there is.", replies.Policies, KNOWN)
    )
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

    @Route("GET /policy", "getPolicy", "Which policy decides?", "Policy", _IN_FORCE)
    async def policy(self) -> Response:
        """How plans are made, and since when."""
        commands = self._context.commands
        planner, since, warning, learned = await self._context.look(lambda: (*commands.policy(), commands.learned()))
        return reply(
            {
                "policy": planner.text, "name": planner.policy.text, "discipline": planner.discipline,
                "placement": planner.placement, "since": iso(since), "admission": self._context.settings.admission,
                "learned": learned, "warning": warning or None,
            }
        )  # fmt: skip

    @Route(
        "PUT /policy", "setPolicy", "Set the policy", "Policy", _IN_FORCE, (422, 503), POLICY_CHOICES,
        may=admin("set the policy"),
    )  # fmt: skip
    async def set_policy(self, request: Request, given: PolicyChoice) -> Response:
        """Make plans another way from now on, if that works on the present queue; what is left out is as configured."""
        permissions, commands = self._context.permissions, self._context.commands
        caller = permissions.caller(request)
        permissions.check_policy(caller, given.policy)
        user = caller.name
        await self._context.ask(
            lambda: commands.set_policy(given.policy, given.discipline, given.placement, user, given.force)
        )
        return await self.policy()

    @Route(
        "POST /policy/preview", "previewPolicy", "What would another policy change?", "Policy",
        ok("What.", types.PolicyPreview, PREVIEW), (422,), POLICY_CHOICES,
    )  # fmt: skip
    async def preview(self, request: Request, given: PolicyChoice) -> Response:
        """What would change now if plans were made another way; nothing does change."""
        permissions, commands = self._context.permissions, self._context.commands
        permissions.check_policy(permissions.caller(request), given.policy)
        async with self._one_at_a_time:
            found = await self._context.look(lambda: commands.preview(given.policy, given.discipline, given.placement))
        return reply({**asdict(found), "order": [moved._asdict() for moved in found.order]})
