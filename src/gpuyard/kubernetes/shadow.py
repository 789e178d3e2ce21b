"""Decisions that nobody obeys: what would have been done, and, beside another scheduler, what that one did."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from gpuyard.kubernetes.pods import Pod
from gpuyard.kubernetes.world import Assignment

log = logging.getLogger("gpuyard.kubernetes")


@dataclass(frozen=True, slots=True)
class _Decision:
    node: str
    at: float
    created: float


class Shadow:
    """Remembers what was decided for each pod, and compares it with what happens to it."""

    def __init__(self) -> None:
        self._decided: dict[str, _Decision] = {}
        self.counts: Counter[str] = Counter()
        self.ahead = 0.0
        """Seconds by which we were earlier, over all pods that the other has bound; below 0: later."""

    def decided(self, assignment: Assignment, message: str, now: float) -> None:
        """A pod would have been bound."""
        pod = assignment.pod
        if pod.uid not in self._decided:
            self._decided[pod.uid] = _Decision(assignment.node, now, pod.created)
            self.counts["decided"] += 1
            log.info("would have: %s", message)

    def evicted(self, pod: Pod, why: str) -> None:
        """A pod would have been evicted."""
        self.counts["evicted"] += 1
        log.info("would have: pod %s %s", pod.key, why)

    def heard(self, pod: Pod, waited: bool, now: float) -> None:
        """A pod is otherwise than before, when it may have waited for a node: perhaps the other scheduler bound it."""
        if not pod.node:
            return
        decision = self._decided.pop(pod.uid, None)
        if decision is None:
            if waited:
                self.counts["undecided"] += 1
                log.info("pod %s: %s took %s; we would have let it wait", pod.key, pod.scheduler, pod.node)
            return
        same = decision.node == pod.node
        self.counts["agreed" if same else "differed"] += 1
        self.ahead += now - decision.at
        other = f"{pod.scheduler} took {pod.node}" if not same else f"{pod.scheduler} did the same"
        log.info("pod %s: %s, %.1f s after us", pod.key, other, now - decision.at)
