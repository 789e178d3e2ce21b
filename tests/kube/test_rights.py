"""All that a scheduler does, as the service account of deploy/kubernetes and with no other rights."""

from __future__ import annotations

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import ApiError, core, group
from tests.kube.asking import message
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow
from tests.kube.server import KubeServer
from tests.kube.test_manifests import ACCOUNT, FOLDER, NAMESPACE, Kubectl
from tests.yard import until


def test_everything_goes_with_the_rights_of_the_manifests(cluster: Cluster, kube_server: KubeServer) -> None:
    cluster.namespace(NAMESPACE)
    Kubectl(kube_server)("apply", "-k", str(FOLDER))
    until(lambda: _may_list(kube_server), "that the rights are known")
    cluster.priority_class("high", 1000)
    cluster.node("n1", gpus=2)
    cluster.namespace("team", gpu_quota="2")
    with (
        Hollow(cluster.api) as kubelet,
        cluster.scheduler(user=ACCOUNT) as first,
        cluster.scheduler(user=ACCOUNT) as second,
    ):
        cluster.pod("whole", gpus=1, namespace="team")
        cluster.pod("share", gpu_memory="6994Mi", namespace="team", hollow={"run-seconds": 0.5})
        cluster.pod("plain", cpus=1, namespace="team")
        cluster.wait_bound(["whole", "share", "plain"])  # bindings
        assert message(cluster, "whole", "Scheduled")  # events
        cluster.pod("wide", gpus=8, namespace="team")
        said = message(cluster, "wide")
        pod = until(lambda: cluster.get_pod("wide", "team")["status"].get("conditions") and
                    cluster.get_pod("wide", "team"), "a condition")  # statuses  # fmt: skip
        assert pod["status"]["conditions"][0]["message"] == said
        lease = cluster.api.get(group("coordination.k8s.io/v1", "leases", NAMESPACE, names.LEASE))
        assert lease["metadata"]["annotations"][f"{names.DOMAIN}/policy"] == "multifactor@easy@pack"
        until(lambda: _learned(cluster), "what was learned of the one that ended")  # the ConfigMap
        cluster.pod("urgent", gpus=2, namespace="prod", priority_class="high")
        cluster.wait_bound(["urgent"])  # an eviction
        assert message(cluster, "whole", "Preempted") == "Preempted: evicted for prod/urgent"
        assert kubelet.violations == []
        second.wait_ready()
    for process in (first, second):
        assert "forbidden" not in process.log(), process.log()
        assert "cannot" not in process.log(), process.log()


def _may_list(server: KubeServer) -> bool:
    try:
        server.api(ACCOUNT).list(core("nodes"))
    except ApiError:
        return False
    return True


def _learned(cluster: Cluster) -> bool:
    return any(
        one["metadata"]["name"] == "gpuyard-peaks" for one in cluster.api.list(core("configmaps", NAMESPACE)).items
    )
