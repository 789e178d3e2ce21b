"""The admission webhook as a process of its own, asked by a real API server as deploy/kubernetes/webhook wants it."""

from __future__ import annotations

import base64
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.kubernetes.api_client import Object, core, group
from gpuyard.kubernetes.names import ALIYUN_MEMORY, GPU_MEMORY, INDICES, SEED_MEMORY
from tests.certificates import Certificate, certificate
from tests.conftest import REPOSITORY
from tests.kube.cluster import Cluster
from tests.kube.processes import free_port, kill, spawn
from tests.web import ask
from tests.yard import PATIENCE, until

CONFIGURATIONS = group("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
SHARE = {GPU_MEMORY: "6994Mi"}
LINE = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{INDICES}']"}},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for loopback."""
    return certificate(tmp_path_factory.mktemp("tls") / "one")


class Process:
    """A running `gpuyard kubernetes webhook`."""

    def __init__(self, folder: Path, pair: Certificate, *flags: str) -> None:
        self._pair, self._log, port = pair, folder / "webhook.log", free_port()
        self.url = f"https://127.0.0.1:{port}"
        command = [sys.executable, "-m", "gpuyard", "kubernetes", "webhook", "--listen", f"127.0.0.1:{port}",
                   "--cert", pair.file, "--key", pair.key, *flags]  # fmt: skip
        self._process: subprocess.Popen[bytes] = spawn(command, self._log)
        until(self._answers, "an answer of the webhook")

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit status."""
        self._process.send_signal(number)
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Let nothing be left of it."""
        kill(self._process)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log()
        tls = ssl.create_default_context(cafile=self._pair.file)
        try:
            return ask(self.url, "GET", "/healthz", tls=tls).status == 200
        except ConnectionRefusedError:
            return False


@contextmanager
def asked(cluster: Cluster, pair: Certificate, *flags: str, **changes: Any) -> Iterator[Process]:
    """A webhook that the API server asks, as the manifest says; only where to find it is another place."""
    found = yaml.safe_load((REPOSITORY / "deploy/kubernetes/webhook/webhook.yaml").read_text())
    hook = found["webhooks"][0]
    process = Process(cluster.folder, pair, *flags)
    try:
        where = process.url + hook["clientConfig"]["service"]["path"]
        bundle = base64.b64encode(Path(pair.file).read_bytes()).decode()
        hook |= {"clientConfig": {"url": where, "caBundle": bundle}, **changes}
        cluster.api.post(CONFIGURATIONS, found)
        until(lambda: LINE in env(cluster, pod(SHARE), dryRun="All"), "that the API server asks the webhook")
        yield process
        assert "Traceback" not in process.log()
    finally:
        process.close()
        cluster.api.delete(f"{CONFIGURATIONS}/{found['metadata']['name']}")


def pod(annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> Object:
    """A pod of ours with one container."""
    return {
        "metadata": {"generateName": "pod-", "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"schedulerName": "gpuyard", "containers": [{"name": "main", "image": "train:1"}]},
    }


def made(cluster: Cluster, body: Object, namespace: str = "default", **params: str) -> Object:
    """The specification that the API server has kept."""
    spec: Object = cluster.api.post(core("pods", namespace), body, **params)["spec"]
    return spec


def env(cluster: Cluster, body: Object, namespace: str = "default", **params: str) -> list[Object]:
    """The variables of its container."""
    return made(cluster, body, namespace, **params)["containers"][0].get("env") or []


def test_pods_that_share_a_gpu_are_told_which(cluster: Cluster, pair: Certificate) -> None:
    with asked(cluster, pair) as webhook:
        shared = pod(SHARE)
        other = {"name": "A", "value": "1"}
        shared["spec"]["containers"].append({"name": "beside", "image": "log:1", "env": [other]})
        shared["spec"]["initContainers"] = [{"name": "first", "image": "fetch:1"}]
        spec = made(cluster, shared)
        assert [one.get("env") for one in spec["containers"]] == [[LINE], [other, LINE]]
        assert spec["initContainers"][0]["env"] == [LINE]
        assert "default/pod-: add /spec/initContainers/0/env" in webhook.log()
        assert env(cluster, pod(labels={SEED_MEMORY: "6994"})) == [LINE]
        aliyun = pod()
        aliyun["spec"]["containers"][0]["resources"] = {"limits": {ALIYUN_MEMORY: "7"}}
        assert env(cluster, aliyun) == [LINE]
        own = pod(SHARE)
        own["spec"]["containers"][0]["env"] = [LINE]
        assert env(cluster, own) == [LINE]


def test_the_annotation_of_the_binding_is_what_the_variable_names(cluster: Cluster, pair: Certificate) -> None:
    cluster.node("n1")
    with asked(cluster, pair):
        cluster.pod("a", gpu_memory="6994Mi")
    cluster.bind("a", "n1", "2")
    bound = cluster.get_pod("a")
    field = bound["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert bound["metadata"]["annotations"][field.split("'")[1]] == "2"


def test_other_pods_are_kept_as_they_are(cluster: Cluster, pair: Certificate) -> None:
    cluster.namespace("closed")
    with asked(cluster, pair):
        theirs = pod(SHARE)
        theirs["spec"]["schedulerName"] = "default-scheduler"
        assert made(cluster, theirs)["schedulerName"] == "default-scheduler"
        assert not env(cluster, theirs)
        assert not cluster.pod("whole", gpus=1)["spec"]["containers"][0].get("env")
        assert not env(cluster, pod())
        assert not env(cluster, pod(SHARE, {"gpuyard.dev/webhook": "off"}))
        cluster.api.patch(core("namespaces", name="closed"), {"metadata": {"labels": {"gpuyard.dev/webhook": "off"}}})
        until(lambda: not env(cluster, pod(SHARE), "closed", dryRun="All"), "that a namespace is left out")
        assert env(cluster, pod(SHARE)) == [LINE]


def test_pods_can_be_made_ours(cluster: Cluster, pair: Certificate) -> None:
    with asked(cluster, pair, "--set-scheduler"):
        theirs = pod(SHARE)
        del theirs["spec"]["schedulerName"]
        spec = made(cluster, theirs)
        assert (spec["schedulerName"], spec["containers"][0]["env"]) == ("gpuyard", [LINE])
        assert made(cluster, {**pod(), "spec": {**theirs["spec"]}})["schedulerName"] == "default-scheduler"


def test_an_api_server_that_speaks_the_older_version(cluster: Cluster, pair: Certificate) -> None:
    with asked(cluster, pair, admissionReviewVersions=["v1beta1"]):
        assert env(cluster, pod(SHARE)) == [LINE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_and_pods_go_on_without_it(cluster: Cluster, pair: Certificate, number: int) -> None:
    with asked(cluster, pair) as webhook:
        assert webhook.end(number) == 0
        assert webhook.log().rstrip().endswith("ended")
        assert not env(cluster, pod(SHARE))


def test_what_it_is_given_is_checked(cluster: Cluster, pair: Certificate, tmp_path: Path) -> None:
    missing = cluster.gpuyard("kubernetes", "webhook", "--cert", tmp_path / "none.pem", "--key", pair.key)
    assert (missing.code, missing.out) == (2, "")
    assert "none.pem cannot be read" in missing.err
    mixed = certificate(tmp_path / "other")
    wrong = cluster.gpuyard("kubernetes", "webhook", "--cert", pair.file, "--key", mixed.key)
    assert wrong.code == 2
    assert "is not that of the certificate" in wrong.err
    nowhere = cluster.gpuyard("kubernetes", "webhook", "--cert", pair.file, "--key", pair.key, "--listen", "here")
    assert (nowhere.code, nowhere.err) == (
        2,
        "gpuyard: error: 'here' is no address to listen at; write for example 127.0.0.1:10260\n",
    )
