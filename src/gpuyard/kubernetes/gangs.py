"""Gangs: pods that start together or not at all, while they wait, and how many of each have a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.kubernetes.pods import Pod

Key = tuple[str, str]


@dataclass(slots=True)
class Unit:
    """The members of a gang that wait."""

    namespace: str
    name: str
    size: int = 1
    timeout: float = 0.0
    since: float = 0.0
    """When the first of them came."""
    members: dict[str, None] = field(default_factory=dict)
    job: str = ""
    """The core's job for all of them; empty: there are too few."""
    begin: float = 0.0
    """Not before this: some could not be bound."""
    told: bool = False
    """Whether it was told that it has been incomplete for long."""

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.namespace, self.name

    def ordered(self, pods: Mapping[str, Pod]) -> list[Pod]:
        """The members, those with the most GPUs first."""
        found = [pods[uid] for uid in self.members if uid in pods]
        return sorted(found, key=lambda pod: (-pod.gpus, pod.created, pod.name))


class Gangs:
    """All gangs of a cluster."""

    def __init__(self) -> None:
        self.waiting: dict[Key, Unit] = {}
        self._unit_of: dict[str, Unit] = {}
        self._bound: dict[Key, set[str]] = {}

    def needs_others(self, pod: Pod) -> bool:
        """Whether a pod may not start by itself: enough of its gang have not."""
        assert pod.gang is not None
        return len(self._bound.get((pod.namespace, pod.gang.name), ())) < pod.gang.size

    def join(self, pod: Pod) -> Unit:
        """One more waits."""
        assert pod.gang is not None
        key = pod.namespace, pod.gang.name
        unit = self.waiting.setdefault(key, Unit(*key, since=pod.created))
        unit.size, unit.timeout = max(unit.size, pod.gang.size), pod.gang.timeout
        unit.since = min(unit.since, pod.created)
        unit.members[pod.uid] = None
        self._unit_of[pod.uid] = unit
        return unit

    def leave(self, uid: str) -> Unit | None:
        """A member waits no longer; the gang that it waited with."""
        for bound in self._bound.values():
            bound.discard(uid)
        unit = self._unit_of.pop(uid, None)
        if unit is not None:
            unit.members.pop(uid, None)
            if not unit.members:
                self.waiting.pop(unit.key, None)
        return unit

    def knows(self, uid: str) -> bool:
        """Whether a pod waits with a gang."""
        return uid in self._unit_of

    def bound(self, pod: Pod) -> None:
        """A member has a node."""
        if pod.gang is not None:
            self._bound.setdefault((pod.namespace, pod.gang.name), set()).add(pod.uid)

    def unbound(self, pod: Pod) -> None:
        """A member has none after all."""
        if pod.gang is not None:
            self._bound.get((pod.namespace, pod.gang.name), set()).discard(pod.uid)

    def running(self, unit: Unit) -> int:
        """How many members have a node."""
        return len(self._bound.get(unit.key, ()))

    def by_job(self, job: str) -> Unit | None:
        """The gang that a job of the core stands for; None if it stands for a pod."""
        if not job.startswith("gang "):
            return None
        return next((unit for unit in self.waiting.values() if unit.job == job), None)
