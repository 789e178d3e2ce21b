"""What a cluster says of itself before an experiment: its GPUs, and who else is on them."""

from __future__ import annotations

import math
from typing import NamedTuple

from gpuyard.errors import UserError
from gpuyard.kubernetes.api import Api, ApiError, core
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT
from gpuyard.kubernetes.nodes import node_of
from gpuyard.kubernetes.pods import pod_of


class Machines(NamedTuple):
    """The nodes with GPUs."""

    nodes: tuple[str, ...]
    capacity: float
    """Bytes of the largest GPU; infinity: no node says so."""


def look_at(api: Api, namespace: str) -> Machines:
    """The nodes with GPUs; a `UserError` if there is no such namespace."""
    try:
        api.get(core("namespaces", name=namespace))
    except ApiError as error:
        if error.missing:
            raise UserError(
                f"there is no namespace '{namespace}'; kubectl create namespace {namespace} makes it"
            ) from None
        if error.status != 403:  # who may not look at namespaces may still make pods in one
            raise
    found = [node for node in map(node_of, api.list(core("nodes")).items) if node.gpus]
    sizes = [node.gpu_memory for node in found if node.gpu_memory]
    return Machines(tuple(node.name for node in found), max(sizes, default=math.inf))


def others(api: Api) -> int:
    """How many pods hold GPUs that are not of an experiment of ours."""
    there = api.list(core("pods"), fieldSelector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed").items
    return sum(pod_of(one).gpus > 0 for one in there if EXPERIMENT not in (one["metadata"].get("labels") or {}))
