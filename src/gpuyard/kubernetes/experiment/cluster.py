"""What a cluster says of itself before an experiment: its GPUs, and who else is on them."""

from __future__ import annotations

import math
from typing import NamedTuple

from gpuyard.errors import UserError
from gpuyard.kubernetes.api import Api, ApiError, Object, core
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT
from gpuyard.kubernetes.nodes import node_of
from gpuyard.kubernetes.pods import pod_of


class Machines(NamedTuple):
    """The nodes with GPUs."""

    nodes: tuple[str, ...]
    capacity: float
    """Bytes of the largest GPU; infinity: no node says so."""
    known: bool = True
    """Whether we may look at nodes."""


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
    objects = _allowed(api, core("nodes"))
    if objects is None:
        return Machines((), math.inf, known=False)
    found = [node for node in map(node_of, objects) if node.gpus]
    sizes = [node.gpu_memory for node in found if node.gpu_memory]
    return Machines(tuple(node.name for node in found), max(sizes, default=math.inf))


def others(api: Api) -> int:
    """How many pods hold GPUs that are not of an experiment of ours, as far as we may see them."""
    running = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    there = _allowed(api, core("pods"), fieldSelector=running) or []
    return sum(pod_of(one).gpus > 0 for one in there if EXPERIMENT not in (one["metadata"].get("labels") or {}))


def _allowed(api: Api, path: str, **params: str) -> list[Object] | None:
    """What there is; None if we may not look."""
    try:
        return api.list(path, **params).items
    except ApiError as error:
        if error.status != 403:
            raise
        return None
