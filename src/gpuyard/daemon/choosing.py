"""Which policy a daemon begins with: the configured one, or what people chose since that was last changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gpuyard.core.events import PolicySet
from gpuyard.core.planner import OrderedPlanner
from gpuyard.daemon.journal import Record
from gpuyard.errors import UserError
from gpuyard.policyfile import make_planner

log = logging.getLogger("gpuyard")


def chosen(records: Iterable[Record], configured: str) -> OrderedPlanner | None:
    """The policy that was set last, by records with the latest first; None if the configured one is to begin."""
    latest = ""
    for record in records:
        if not isinstance(record.event, PolicySet):
            continue
        latest = latest or record.event.policy
        if record.details.get("configured"):
            return _remade(latest) if record.event.policy == configured else None
    return None


def _remade(text: str) -> OrderedPlanner | None:
    try:
        return make_planner(text)
    except UserError as error:  # its file is gone, say: the queue must go on
        log.warning("policy %s cannot be used any more; going on with the configured one: %s", text, error)
        return None
