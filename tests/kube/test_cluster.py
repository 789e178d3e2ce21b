"""The cluster that other tests stand on: it has what they make, and forgets it before the next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuyard.kubernetes.api_client import ApiError, Unreachable, core, group
from gpuyard.kubernetes.names import GPU, INDICES
from tests.kube.cluster import Cluster
from tests.kube.server import KubeServer
from tests.yard import until

ACCOUNT = "system:serviceaccount:gpuyard-system:gpuyard-scheduler"


def test_nodes_and_pods_are_what_a_scheduler_expects(cluster: Cluster) -> None:
    node = cluster.node("n1", gpus=2, labels={"zone": "a"})
    assert (node["status"]["allocatable"][GPU], node["spec"].get("taints")) == ("2", None)
    assert cluster.node("n2", ready=False)["spec"]["taints"][0]["key"] == "node.kubernetes.io/not-ready"
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert cluster.node("n3", taints=[taint])["spec"]["taints"] == [taint]
    cluster.priority_class("high", 1000)
    pod = cluster.pod("a", gpu_memory="6994Mi", priority_class="high", namespace="team")
    assert (pod["spec"]["schedulerName"], pod["spec"]["priority"], pod["status"]["phase"]) == (
        "gpuyard",
        1000,
        "Pending",
    )
    cluster.bind("a", "n1", "1", "team")
    bound = cluster.wait_bound(["a"])["a"]
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"][INDICES]) == ("n1", "1")
    assert cluster.set_phase("a", "Running", "team")["status"]["phase"] == "Running"


def test_an_eviction_asks_the_budget(cluster: Cluster) -> None:
    cluster.node("n1")
    for name, allowed in (("kept", 0), ("spare", 1)):
        cluster.pod(name, gpus=1, labels={"app": name})
        cluster.bind(name, "n1")
        cluster.set_phase(name, "Running")
        cluster.budget(name, {"app": name}, allowed=allowed)
    with pytest.raises(ApiError, match="disruption budget"):
        cluster.evict("kept")
    cluster.evict("spare")
    assert "deletionTimestamp" in cluster.get_pod("spare")["metadata"]


def test_all_of_it_goes_and_the_server_stays_usable(cluster: Cluster) -> None:
    cluster.node("n1")
    for index in range(20):
        cluster.pod(f"a{index}", gpus=1, namespace=f"team{index % 3}")
    cluster.bind("a0", "n1", namespace="team0")
    cluster.priority_class("high", 5)
    cluster.budget("some", {"app": "a"})
    cluster.namespace("default", gpu_quota="3")
    cluster.api.post(
        group("coordination.k8s.io/v1", "leases", "kube-system"), {"metadata": {"name": "gpuyard-scheduler"}}
    )
    cluster.clear()
    assert not cluster.pods()
    for kind in (
        core("nodes"),
        group("coordination.k8s.io/v1", "leases"),
        group("policy/v1beta1", "poddisruptionbudgets"),
    ):
        assert not cluster.api.list(kind).items
    spaces = cluster.api.list(core("namespaces")).items
    assert {one["metadata"]["name"] for one in spaces} == {"default", "kube-node-lease", "kube-public", "kube-system"}
    assert not any(one["metadata"].get("annotations") for one in spaces)
    cluster.pod("again", gpus=1, namespace="team0")


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(
    cluster: Cluster, kube_server: KubeServer
) -> None:
    api = kube_server.api(ACCOUNT)
    with pytest.raises(ApiError, match="cannot list resource"):
        api.list(core("pods"))
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    cluster.api.post(group(f"{rbac}/v1", "clusterroles"), {"metadata": {"name": "look"}, "rules": [rule]})
    cluster.api.post(group(f"{rbac}/v1", "clusterrolebindings"), {
        "metadata": {"name": "look"}, "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "look"},
        "subjects": [{"kind": "ServiceAccount", "name": "gpuyard-scheduler", "namespace": "gpuyard-system"}],
    })  # fmt: skip
    until(lambda: _allowed(lambda: api.list(core("pods"))), "the right to list pods")
    with pytest.raises(ApiError, match="cannot create resource"):
        api.post(core("pods", "default"), {})


def _allowed(call: Callable[[], object]) -> bool:
    try:
        call()
    except ApiError:
        return False
    return True


def test_the_server_goes_and_comes_back_with_all_that_it_knew(cluster: Cluster, kube_server: KubeServer) -> None:
    cluster.node("n1")
    kube_server.stop_api()
    with pytest.raises(Unreachable):
        cluster.api.get(core("nodes"))
    kube_server.start_api()
    assert [node["metadata"]["name"] for node in cluster.api.list(core("nodes")).items] == ["n1"]


def test_the_real_scheduler_of_kubernetes_binds(cluster: Cluster, kube_server: KubeServer) -> None:
    cluster.node("n1", gpus=2)
    cluster.pod("theirs", gpus=1, scheduler="default-scheduler")
    cluster.pod("ours", gpus=1)
    with kube_server.kube_scheduler():
        cluster.wait_bound(["theirs"])
    assert "nodeName" not in cluster.get_pod("ours")["spec"]
