"""What tests ask a cluster again and again."""

from __future__ import annotations

from collections.abc import Callable

from gpuyard.kubernetes.api_client import ApiError
from tests.kube.cluster import Cluster
from tests.yard import until


def message(cluster: Cluster, pod: str, reason: str = "FailedScheduling") -> str:
    """What a pod was told last."""
    found = until(lambda: cluster.events(reason, pod), f"a {reason} of {pod}")
    return str(max(found, key=lambda event: int(event["metadata"]["resourceVersion"]))["message"])


def is_bound(cluster: Cluster, name: str, namespace: str = "default") -> bool:
    """Whether a pod has a node."""
    return "nodeName" in cluster.get_pod(name, namespace)["spec"]


def conflicts(call: Callable[[], object]) -> bool:
    """Whether somebody else was faster."""
    try:
        call()
    except ApiError as error:
        if not error.conflict:
            raise
        return True
    return False
