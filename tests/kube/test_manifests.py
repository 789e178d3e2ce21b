"""deploy/kubernetes on a real API server: it accepts all of it, and the scheduler has the rights it needs, and no more.

kubectl makes and sends it, as people do; any version will do.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.kubernetes import admission_webhook, names
from gpuyard.kubernetes.api_client import Api, ApiError, Object, core, group
from gpuyard.kubernetes.settings import read_file
from tests.conftest import REPOSITORY
from tests.kube.cluster import Cluster
from tests.kube.server import USERS, KubeServer
from tests.yard import PATIENCE, until

FOLDER = REPOSITORY / "deploy" / "kubernetes"
NAMESPACE = "gpuyard-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpuyard-scheduler"
PARTS = [".", *sorted(str(path.parent.relative_to(FOLDER)) for path in FOLDER.glob("*/kustomization.yaml"))]
EXAMPLES = sorted(path.name for path in (FOLDER / "examples").glob("*.yaml"))

# Kinds of others' that this API server has not: what their authors' definitions say of the fields that we use.
_STRINGS = {"type": "array", "items": {"type": "string"}}
_TEXT = {"type": "string"}
_DEFINITIONS: dict[tuple[str, str, str], Object] = {
    ("monitoring.coreos.com", "PodMonitor", "podmonitors"): {
        "selector": {"type": "object", "properties": {
            "matchLabels": {"type": "object", "additionalProperties": _TEXT}}},
        "podMetricsEndpoints": {"type": "array", "items": {"type": "object", "properties": {
            "port": _TEXT, "path": _TEXT, "interval": {"type": "string", "pattern": r"^(0|(([0-9]+)s)?)$"}}}},
    },
    ("cert-manager.io", "Issuer", "issuers"): {"selfSigned": {"type": "object"}},
    ("cert-manager.io", "Certificate", "certificates"): {
        "secretName": _TEXT, "dnsNames": _STRINGS,
        "issuerRef": {"type": "object", "required": ["name"], "properties": {"kind": _TEXT, "name": _TEXT}},
    },
}  # fmt: skip


class Kubectl:
    """The command, for one server."""

    def __init__(self, server: KubeServer) -> None:
        found = shutil.which("kubectl")
        if found is None:
            pytest.skip("no kubectl; apt-get install -y --no-install-recommends kubernetes-client")
        self._command = [found, "--kubeconfig", str(server.kubeconfig())]

    def __call__(self, *words: str, given: str | None = None) -> str:
        """What it prints; a failure if it does not succeed."""
        done = subprocess.run([*self._command, *words], input=given, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def made(self, part: str) -> list[Object]:
        """What kustomize makes of a folder."""
        return [one for one in yaml.safe_load_all(self("kustomize", str(FOLDER / part))) if one]

    def accepted(self, objects: list[Object]) -> list[Object]:
        """What the server would keep of objects, each of which it has to accept."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        found = json.loads(self("apply", "--dry-run=server", "-o", "json", "-f", "-", given=text))
        kept: list[Object] = found["items"] if found["kind"] == "List" else [found]
        return kept


@pytest.fixture
def kubectl(cluster: Cluster, kube_server: KubeServer) -> Kubectl:
    """kubectl on an empty cluster with our namespace, in which the rest can be tried."""
    found = Kubectl(kube_server)
    cluster.namespace(NAMESPACE)
    return found


# -- what the server says -------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_accepted(cluster: Cluster, kubectl: Kubectl, part: str) -> None:
    objects = kubectl.made(part)
    assert objects
    for one in objects:
        _prepare(cluster.api, one)
    for sent, kept in zip(objects, kubectl.accepted(objects), strict=True):
        _check_kept(sent, kept, f"{sent['kind']} {sent['metadata']['name']}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_accepted(kubectl: Kubectl, name: str) -> None:
    objects = list(yaml.safe_load_all((FOLDER / "examples" / name).read_text()))
    for sent, kept in zip(objects, kubectl.accepted(objects), strict=True):
        _check_kept(sent, kept, f"{sent['kind']} {sent['metadata']['name']}")


def _prepare(api: Api, sent: Object) -> None:
    """Let the server know the kind of an object, as those servers do that it is for."""
    version, kind = sent["apiVersion"], sent["kind"]
    if version == "policy/v1" and _lacks(api, version):
        # Before 1.21 budgets were policy/v1beta1, with the same fields; policy/v1 is all that there is from 1.25 on.
        sent["apiVersion"] = "policy/v1beta1"
    for (owner, known, plural), spec in _DEFINITIONS.items():
        if (f"{owner}/v1", known) == (version, kind):
            _define(api, owner, known, plural, spec)
            until(lambda: not _lacks(api, version), f"that there is {version}")


def _lacks(api: Api, version: str) -> bool:
    try:
        api.get(f"/apis/{version}")
    except ApiError as error:
        if error.missing:
            return True
        raise
    return False


def _define(api: Api, owner: str, kind: str, plural: str, spec: Object) -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kinds = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    body = {"metadata": {"name": f"{plural}.{owner}"},
            "spec": {"group": owner, "scope": "Namespaced", "names": kinds, "versions": [version]}}  # fmt: skip
    api.post(group("apiextensions.k8s.io/v1", "customresourcedefinitions"), body)


def _check_kept(sent: Any, kept: Any, where: str) -> None:
    """Nothing of what was sent is lost: API servers drop fields that they do not know without a word."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            assert key in kept, f"{where}: the server dropped '{key}'"
            _check_kept(value, kept[key], f"{where}, {key}")
    elif isinstance(sent, list):
        assert len(sent) == len(kept), where
        for position, (one, other) in enumerate(zip(sent, kept, strict=True)):
            _check_kept(one, other, f"{where}, {position}")
    else:
        assert str(sent) == str(kept), where


# -- what the manifests say -----------------------------------------------------------------------------


def _pods(objects: list[Object]) -> Iterator[Object]:
    for one in objects:
        if one["kind"] == "Deployment":
            yield one["spec"]["template"]["spec"]


@pytest.mark.parametrize("part", [".", "webhook"])
def test_the_pods_are_as_restricted_as_can_be(kubectl: Kubectl, part: str) -> None:
    for spec in _pods(kubectl.made(part)):
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"]:
            inner = container["securityContext"]
            assert (inner["allowPrivilegeEscalation"], inner["readOnlyRootFilesystem"]) == (False, True)
            assert inner["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]) == {"requests", "limits"}
            assert {"livenessProbe", "readinessProbe"} <= set(container)


@pytest.mark.parametrize("part", [".", "webhook"])
def test_the_commands_know_their_flags(cluster: Cluster, kubectl: Kubectl, part: str) -> None:
    for spec in _pods(kubectl.made(part)):
        words = [word for word in spec["containers"][0]["args"] if not word.startswith("--")]
        flags = [word.partition("=")[0] for word in spec["containers"][0]["args"] if word.startswith("--")]
        known = cluster.gpuyard(*words, "--help")
        assert known.code == 0, known
        assert [flag for flag in flags if flag not in known.out] == []


def test_the_settings_can_be_read(tmp_path: Path) -> None:
    text = (FOLDER / "scheduler.yaml").read_text()
    assert read_file(FOLDER / "scheduler.yaml")
    (tmp_path / "all.yaml").write_text(re.sub(r"^# (?=[a-z-]+: )", "", text.partition("\n")[2], flags=re.MULTILINE))
    assert {"prometheus", "gpu_memory", "durations"} <= set(read_file(tmp_path / "all.yaml"))


def test_what_one_part_says_of_another_is_so(kubectl: Kubectl) -> None:
    parts = {part: {one["kind"]: one for one in kubectl.made(part)} for part in PARTS}
    ports = {}
    for name, part in (("scheduler", "."), ("webhook", "webhook")):
        template, service = parts[part]["Deployment"]["spec"]["template"], parts[part]["Service"]["spec"]
        assert service["selector"] == template["metadata"]["labels"]
        ports[name] = [one["name"] for one in template["spec"]["containers"][0]["ports"]]
        assert [one["targetPort"] for one in service["ports"]] == ports[name]
    scheduler, hook = (parts[part]["Deployment"]["spec"] for part in (".", "webhook"))
    monitor = parts["monitoring"]["PodMonitor"]["spec"]
    assert [one["port"] for one in monitor["podMetricsEndpoints"]] == ports["scheduler"]
    for chosen in (monitor["selector"], parts["disruption-budget"]["PodDisruptionBudget"]["spec"]["selector"]):
        assert chosen == scheduler["selector"]
    called = parts["webhook"]["MutatingWebhookConfiguration"]["webhooks"][0]["clientConfig"]["service"]
    assert (called["name"], called["path"]) == (parts["webhook"]["Service"]["metadata"]["name"], admission_webhook.PATH)
    certificate = parts["webhook-certificate"]["Certificate"]
    annotations = parts["webhook"]["MutatingWebhookConfiguration"]["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/{certificate['metadata']['name']}"
    assert f"{called['name']}.{NAMESPACE}.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["secretName"] in [
        one["secret"]["secretName"] for one in hook["template"]["spec"]["volumes"] if "secret" in one
    ]


# -- rights ---------------------------------------------------------------------------------------------

_MAY = [
    *(("", kind, verb, None, None) for kind in ("pods", "nodes", "namespaces") for verb in ("list", "watch")),
    ("", "pods/binding", "create", "team", None),
    ("", "pods/eviction", "create", "team", None),
    ("", "pods/status", "patch", "team", None),
    *(("", "events", verb, "team", None) for verb in ("create", "patch")),
    ("coordination.k8s.io", "leases", "create", NAMESPACE, None),
    *(("coordination.k8s.io", "leases", verb, NAMESPACE, names.LEASE) for verb in ("get", "update")),
    ("", "configmaps", "create", NAMESPACE, None),
    *(("", "configmaps", verb, NAMESPACE, "gpuyard-peaks") for verb in ("get", "update")),
]
_MAY_NOT = [
    *(("", "secrets", verb, space, None) for verb in ("get", "list", "create") for space in ("team", NAMESPACE)),
    *(("", "pods", verb, "team", None) for verb in ("create", "update", "patch", "delete")),
    *(("", "pods", verb, NAMESPACE, None) for verb in ("create", "update", "patch", "delete")),
    *(("", kind, "create", "team", None) for kind in ("pods/exec", "pods/portforward", "serviceaccounts/token")),
    ("", "pods/status", "update", "team", None),
    ("", "pods/log", "get", "team", None),
    *(("", "events", verb, "team", None) for verb in ("list", "delete")),
    ("", "pods/ephemeralcontainers", "patch", "team", None),
    *(("", "nodes", verb, None, None) for verb in ("create", "update", "patch", "delete")),
    ("", "nodes/status", "patch", None, None),
    ("", "nodes/proxy", "get", None, None),
    *(("", "namespaces", verb, None, None) for verb in ("create", "patch", "delete")),
    ("coordination.k8s.io", "leases", "get", "kube-system", names.LEASE),
    ("coordination.k8s.io", "leases", "create", "kube-system", None),
    *(("coordination.k8s.io", "leases", verb, NAMESPACE, "other") for verb in ("get", "update")),
    *(("", "configmaps", verb, NAMESPACE, "other") for verb in ("get", "update", "delete")),
    ("", "configmaps", "create", "team", None),
    ("rbac.authorization.k8s.io", "clusterroles", "create", None, None),
    ("apps", "deployments", "patch", NAMESPACE, None),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "create", None, None),
]  # fmt: skip


@pytest.fixture
def scheduler(kubectl: Kubectl, kube_server: KubeServer, cluster: Cluster) -> Api:
    """Calls with the rights that the manifests give to the scheduler, and nothing else."""
    cluster.namespace("team")
    kubectl("apply", "-k", str(FOLDER))  # all of it: kustomize may change what roles say
    found = kube_server.api(ACCOUNT)
    until(lambda: all(_may(found, *one) for one in _MAY), "that the rights are known")
    return found


def _may(api: Api, owner: str, kind: str, verb: str, namespace: str | None, name: str | None) -> bool:
    resource, _, sub = kind.partition("/")
    asked = {
        "group": owner,
        "resource": resource,
        "subresource": sub,
        "verb": verb,
        "namespace": namespace,
        "name": name,
    }
    path = group("authorization.k8s.io/v1", "selfsubjectaccessreviews")
    return bool(api.post(path, {"spec": {"resourceAttributes": asked}})["status"]["allowed"])


def test_the_scheduler_may_do_what_it_does_and_nothing_else(scheduler: Api) -> None:
    assert not [one for one in _MAY_NOT if _may(scheduler, *one)]


def test_nothing_is_given_by_a_star(kubectl: Kubectl) -> None:
    roles = [one for one in kubectl.made(".") if one["kind"] in ("Role", "ClusterRole")]
    assert len(roles) == 2
    for rule in (rule for role in roles for rule in role["rules"]):
        assert not any("*" in word for words in rule.values() for word in words)
        assert not {"secrets", "pods/exec"} & set(rule["resources"])


def test_with_these_rights_a_pod_is_placed_and_evicted(cluster: Cluster, scheduler: Api) -> None:
    cluster.node("n1")
    cluster.pod("a", gpu_memory="6994Mi", namespace="team")
    assert [one["metadata"]["name"] for one in scheduler.list(core("pods")).items] == ["a"]
    assert next(iter(scheduler.watch(core("nodes"), "0"))).object["metadata"]["name"] == "n1"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    scheduler.patch(core("pods", "team", "a", "status"), {"status": {"conditions": [condition]}})
    meta = {"name": "a", "annotations": {names.INDICES: "0"}}
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    scheduler.post(core("pods", "team", "a", "binding"), {"metadata": meta, "target": target})
    assert cluster.get_pod("a", "team")["metadata"]["annotations"][names.INDICES] == "0"
    about = {"kind": "Pod", "namespace": "team", "name": "a"}
    event = {
        "metadata": {"name": "a.1", "namespace": "team"},
        "involvedObject": about,
        "reason": "Scheduled",
        "count": 1,
    }
    scheduler.post(core("events", "team"), event)
    scheduler.patch(core("events", "team", "a.1"), {"count": 2})
    for path, body in (
        (group("coordination.k8s.io/v1", "leases", NAMESPACE), {"metadata": {"name": names.LEASE}}),
        (core("configmaps", NAMESPACE), {"metadata": {"name": "gpuyard-peaks"}}),
    ):
        made = scheduler.post(path, body)
        assert scheduler.put(f"{path}/{made['metadata']['name']}", made)
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "team"}}
    scheduler.post(core("pods", "team", "a", "eviction"), eviction)
    with pytest.raises(ApiError, match="forbidden"):
        scheduler.delete(core("pods", "team", "a"))
    with pytest.raises(ApiError, match="forbidden"):
        scheduler.list(core("secrets"))


def test_the_scheduler_runs_as_the_deployment_says(cluster: Cluster, kubectl: Kubectl, scheduler: Api) -> None:
    (spec,) = _pods(kubectl.made("."))
    ours = {"/etc/gpuyard": str(FOLDER), "$(NAMESPACE)": NAMESPACE, "$(NAME)": "first"}
    flags = [word for word in spec["containers"][0]["args"][2:] if not word.startswith("--listen")]
    for theirs, here in ours.items():
        flags = [flag.replace(theirs, here) for flag in flags]
    cluster.node("n1", gpus=2)
    cluster.pod("shared", gpu_memory="6994Mi", namespace="team")
    cluster.pod("whole", gpus=1, namespace="team")
    cluster.pod("never", gpus=3, namespace="team")
    with cluster.scheduler(*flags, user=ACCOUNT) as process:
        cluster.wait_bound(["shared", "whole"])
        until(lambda: cluster.events("Scheduled", "whole"), "an event")
        until(lambda: cluster.events("FailedScheduling", "never"), "the other event")
        lease = cluster.api.get(group("coordination.k8s.io/v1", "leases", NAMESPACE, names.LEASE))
        assert lease["spec"]["holderIdentity"] == "first"
        for probe in ("livenessProbe", "readinessProbe"):
            assert process.status(spec["containers"][0][probe]["httpGet"]["path"]) == 200
    assert "forbidden" not in process.log()


def test_viewers_are_told_why_a_pod_waits_and_can_change_nothing(
    cluster: Cluster, kube_server: KubeServer, kubectl: Kubectl
) -> None:
    cluster.node("n1", gpus=1)
    cluster.pod("large", gpus=2)
    refused = cluster.gpuyard("kubernetes", "explain", "pod/large", user="ann")
    assert refused.code == 1
    assert "forbidden" in refused.err
    for one in kubectl.made("viewers"):
        for subject in one.get("subjects", ()):
            subject["name"] = USERS["ann"]
        kubectl("apply", "-f", "-", given=json.dumps(one))
    ann = kube_server.api("ann")
    until(lambda: _may(ann, "", "nodes", "list", None, None), "that the rights are known")
    told = cluster.gpuyard("kubernetes", "explain", "pod/large", user="ann")
    assert (told.code, told.err) == (0, "")
    assert "with fewer than 2 GPUs" in told.out
    assert not [one for one in _MAY_NOT if one[2] != "list" and "event" not in one[1] and _may(ann, *one)]


def test_no_registry_is_named() -> None:
    for path in (*FOLDER.rglob("*.yaml"), Path(FOLDER.parent / "docker" / "Dockerfile")):
        for line in path.read_text().splitlines():
            if line.strip().startswith(("image:", "newName:", "FROM ", "ARG ")):
                word = line.split("#")[0].split()[-1].split("=")[-1]
                assert "." not in word.partition("/")[0].partition(":")[0], f"{path}: {line}"
