"""What awaits a job: who waits before it, and whom it follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from gpuyard.dependencies import parse_dependency
from gpuyard.page.api import Refused
from gpuyard.page.feed import Feed
from gpuyard.page.parts import STATES
from gpuyard.page.submission import Machine, Wishes
from gpuyard.units import format_duration

_MOST = 20
"""Jobs of a dependency that are looked up."""


def machine_of(gpus: Sequence[Mapping[str, Any]]) -> Machine:
    """The GPUs that there are."""
    memory = [gpu["memory_total"] for gpu in gpus if gpu["memory_total"]]
    return Machine(tuple(gpu["index"] for gpu in gpus), max(memory, default=float("inf")))


def outlook(status: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    """How busy the yard is."""
    free = sum(gpu["state"] == "free" for gpu in gpus)
    waiting = status["jobs"].get("queued", 0)
    if not gpus:
        return "There is no GPU here, so no job can start."
    many = f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"
    room = f"{free} of {many} {'is' if free == 1 else 'are'} free" if free else f"None of {many} is free"
    if not waiting:
        return f"{room}, and no job waits."
    return f"{room}, and {waiting} job{'s wait' if waiting != 1 else ' waits'}; {status['policy']} decides who is next."


def prospect(body: Wishes, status: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    """What would become of this job, where that is plain."""
    if body.get("hold"):
        return "It would wait until it is released."
    if body.get("dependency") or "begin" in body:
        return ""
    scope = body.get("from")
    free = sum(gpu["state"] == "free" and (not scope or gpu["index"] in scope) for gpu in gpus)
    if not status["jobs"].get("queued", 0) and free >= body["gpus"]:
        return "It would start at once."
    if "time_limit" not in body and "estimate" not in body:
        return "With a time limit or an estimate it may go ahead of others, where that delays nobody."
    takes = format_duration(body.get("estimate") or body["time_limit"])
    return f"It may go ahead of others where {takes} on {body['gpus']} GPU{'s' * (body['gpus'] != 1)} delay nobody."


async def followed(text: str, user: str, feed: Feed) -> tuple[str, str]:
    """Whom a dependency names, and what is wrong with that; a name is looked for among the user's own jobs."""
    told: list[str] = []
    for one in parse_dependency(text)[:_MOST]:
        if not one.who:
            continue
        job = await _job(one.who, feed) or await _named(one.who, user, feed)
        if job is None:
            return "", f"There is no job {one.who}, neither by its number nor, of yours, by its name."
        told.append(f"{job['id']} ({job['name'] or job['command'][0]}, {STATES.get(job['state'], job['state'])})")
    return (f"Follows {', '.join(dict.fromkeys(told))}.") if told else "", ""


async def _job(id: str, feed: Feed) -> Any:
    if not id[:1].isdigit():
        return None
    try:
        return await feed.ask(f"/jobs/{quote(id, safe='')}", 5.0)
    except Refused:
        return None


async def _named(name: str, user: str, feed: Feed) -> Any:
    wanted = urlencode({"all": "true", "limit": 1, "name": name, "user": user})
    found = (await feed.ask(f"/jobs?{wanted}", 5.0))["jobs"]
    return found[0] if found else None
