"""How long pods of a small cluster wait: for their node, for what another pod had, and for another leader.

    python -m bench.kubetimes

Wants the API server of the tests (`bash tests/kube/build-apiserver.sh`). Promised are a second for the first two, in
the median, and 15 seconds for the last; tests of Kubernetes hold what happens, and not how long it takes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.kube.server import KubeServer
from tests.yard import until


def _bound_after(cluster: Cluster, name: str, act: Callable[[], object]) -> float:
    """Seconds from an act until a pod has a node."""
    began = time.monotonic()
    act()
    until(lambda: cluster.get_pod(name)["spec"].get("nodeName"), f"a node for {name}")
    return time.monotonic() - began


def _bound(cluster: Cluster) -> dict[str, float]:
    cluster.clear()
    cluster.node("n1", gpus=2)
    took, freed = [], []
    with cluster.scheduler():
        for name in map("new{}".format, range(8)):
            took += [_bound_after(cluster, name, partial(cluster.pod, name, gpu_memory="4Gi"))]
        cluster.clear()
        cluster.node("n2", gpus=1)
        cluster.pod("p0", gpus=1)
        cluster.wait_bound(["p0"])
        for number in range(1, 6):
            cluster.pod(f"p{number}", gpus=1)
            message(cluster, f"p{number}")  # so that nothing but the end of the other lets it start
            freed += [_bound_after(cluster, f"p{number}", partial(cluster.delete_pod, f"p{number - 1}"))]
    return {"new_pod_bound_s": median(took), "freed_gpu_bound_s": median(freed)}


def _led(cluster: Cluster) -> dict[str, float]:
    cluster.clear()
    cluster.node("n1", gpus=1)
    with cluster.scheduler("--identity", "a") as first, cluster.scheduler("--identity", "b", ready=False):
        until(lambda: "a leads now" in first.log(), "a leader")
        first.process.kill()
        took = _bound_after(cluster, "p", lambda: cluster.pod("p", gpus=1))
        first.process.wait()
    return {"other_leader_bound_s": took}


def main() -> None:
    server = KubeServer()
    try:
        server.start()
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(server, Path(folder))
            print(json.dumps({**_bound(cluster), **_led(cluster)}, indent=2))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
