"""What the scheduler told last of its cluster, put in order for who looks. It is read from JSON, and never changed."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gpuyard.errors import GpuyardError

Facts = Mapping[str, Any]
WAITING = ("waiting", "gated")
_NUMBER = re.compile(r"(\d+)")


class Unlike(GpuyardError):
    """What answers there is not gpuyard's scheduler."""


class Cluster:
    """Nodes and pods at one instant."""

    def __init__(self, told: Facts) -> None:
        self.facts = told
        self.at: float = told["at"]
        self.nodes: dict[str, Facts] = {
            node["name"]: node for node in sorted(told["nodes"], key=lambda node: natural(node["name"]))
        }
        self.pods: dict[str, Facts] = {key_of(pod): pod for pod in sorted(told["pods"], key=_rank)}
        self._on: defaultdict[str, list[Facts]] = defaultdict(list)
        for pod in self.pods.values():
            if pod["node"]:
                self._on[pod["node"]].append(pod)

    def on(self, node: str) -> list[Facts]:
        """The pods of a node."""
        return self._on.get(node, [])

    def gang_of(self, pod: Facts) -> list[Facts]:
        """All members of its gang; none if it is in none."""
        if not pod["gang"]:
            return []
        same = (pod["namespace"], pod["gang"])
        return [one for one in self.pods.values() if (one["namespace"], one["gang"]) == same]

    def is_ours(self, pod: Facts) -> bool:
        """Whether this scheduler is to place it, or has."""
        return bool(pod["scheduler"] == self.facts["scheduler"])

    @cached_property
    def waiting(self) -> list[Facts]:
        """Those that wait, in the order in which they are to start."""
        return [pod for pod in self.pods.values() if pod["phase"] in WAITING]

    @cached_property
    def namespaces(self) -> list[str]:
        """Those that have pods here."""
        return sorted({pod["namespace"] for pod in self.pods.values()})


def read(content: bytes) -> Cluster:
    """What was answered, if it is a cluster."""
    try:
        told = json.loads(content)
        cluster = Cluster(told)
        for node in cluster.nodes.values():
            node["ready"], node["cordoned"], node["model"]
            for gpu in node["gpus"]:
                gpu["state"], gpu["memory_charged"] + gpu["memory_total"], len(gpu["pods"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unlike from error
    return cluster


def key_of(pod: Facts) -> str:
    """`namespace/name`."""
    return f"{pod['namespace']}/{pod['name']}"


def natural(name: str) -> list[tuple[int, str]]:
    """By which names are put in order as people do it: `node-2` before `node-10`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _NUMBER.split(name)]


def _rank(pod: Facts) -> tuple[int, float, str]:
    """Who waits comes first, in the order of the queue; then who began last."""
    if pod["phase"] in WAITING:
        return 0, pod["position"] or float("inf"), key_of(pod)
    return 1, -(pod["started_at"] or pod["created_at"]), key_of(pod)
