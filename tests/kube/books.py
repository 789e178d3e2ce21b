"""Who has which GPUs of a cluster, by what is written on the pods alone: whether that can be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Object, core
from gpuyard.kubernetes.cluster.quantity import amount, memory
from tests.kube.cluster import Cluster

Place = tuple[str, int]


def indices(pod: Object) -> tuple[int, ...]:
    """The GPUs that a pod was given."""
    text = pod["metadata"].get("annotations", {}).get(names.INDICES, "")
    return tuple(int(word) for word in text.split(",") if word)


def place(pod: Object) -> tuple[str, tuple[int, ...]]:
    """The node of a pod, and its GPUs there."""
    return pod["spec"].get("nodeName", ""), indices(pod)


def whole(pod: Object) -> int:
    """How many GPUs a pod asks to have for itself."""
    limits = [one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]]
    return int(sum(amount(one.get(names.GPU, 0)) for one in limits))


def tenants(pods: Iterable[Object]) -> dict[Place, list[Object]]:
    """The pods on each GPU that are not over."""
    found = defaultdict(list)
    for pod in pods:
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            for index in indices(pod):
                found[pod["spec"]["nodeName"], index].append(pod)
    return dict(found)


def check(cluster: Cluster) -> dict[Place, float]:
    """That no GPU is given away twice, nor more of its memory than it has; the bytes that are given away of each."""
    nodes = {node["metadata"]["name"]: node for node in cluster.api.list(core("nodes")).items}
    given = dict[Place, float]()
    for (name, index), pods in tenants(cluster.pods()).items():
        if name not in nodes:
            continue
        here = f"GPU {index} of {name}: {[pod['metadata']['name'] for pod in pods]}"
        node = nodes[name]
        assert 0 <= index < int(node["status"]["allocatable"][names.GPU]), here
        for pod in pods:
            assert not whole(pod) or (len(pods) == 1 and len(indices(pod)) == whole(pod)), here
        charged = [amount(pod["metadata"]["annotations"].get(names.CHARGED, 0)) for pod in pods]
        size = memory(node["metadata"]["annotations"][names.GPU_MEMORY])
        given[name, index] = size if any(whole(pod) for pod in pods) else sum(charged)
        assert given[name, index] <= size, f"{here} have {charged} of {size}"
    return given
