"""A cluster as tests see it: nodes and pods in a line each, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Object, core, group
from tests.kube.schedulers import Scheduler
from tests.kube.server import ADMIN, KubeServer, make
from tests.kube.statuses import condition, now
from tests.kube.sweeping import POLICY, sweep
from tests.yard import PATIENCE, Done, Yard

DEFAULT = "default"


class Cluster:
    """The nodes and pods of an API server, empty at first."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server, self.api = server, server.api()
        self.folder = folder
        self._namespaces = {DEFAULT}
        (folder / "data").mkdir(mode=0o700)
        self._yard = Yard(folder / "data", folder)

    def clear(self) -> None:
        """Remove everything that is not the server's own."""
        self.server.mend()
        sweep(self.api)
        self._namespaces = {DEFAULT}

    # -- what there is ------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        *,
        gpus: int = 4,
        gpu_memory: str | None = "32510Mi",
        cpus: float = 32,
        memory: str = "256Gi",
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Sequence[Object] = (),
        ready: bool = True,
    ) -> Object:
        """A node as a kubelet and NVIDIA's device plugin would register it; `gpu_memory` None: it does not tell."""
        resources = {"cpu": str(cpus), "memory": memory, "pods": str(pods)} | ({names.GPU: str(gpus)} if gpus else {})
        told = {names.GPU_MEMORY: gpu_memory} if gpus and gpu_memory else {}
        body = {
            "metadata": {
                "name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                "annotations": {**told, **(annotations or {})},
            },
            "status": {"capacity": resources, "allocatable": resources, "conditions": [condition("Ready", ready)]},
        }  # fmt: skip
        made = self.api.post(core("nodes"), body)
        if ready:  # every new node gets a taint that a controller would take away
            return self.api.patch(core("nodes", name=name), {"spec": {"taints": list(taints) or None}})
        return made

    def pod(
        self,
        name: str,
        *,
        gpu_memory: str | None = None,
        gpus: int | None = None,
        scheduler: str = names.SCHEDULER,
        namespace: str = DEFAULT,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        hollow: Mapping[str, object] | None = None,
        cpus: float | str | None = None,
        memory: str | None = None,
        priority_class: str | None = None,
        node_selector: Mapping[str, str] | None = None,
        image: str = "train:1",
        command: Sequence[str] | None = None,
        args: Sequence[str] | None = None,
        limits: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        """A pod with one container. `hollow` says how it would run (tests/kube/hollow.py); all else is of the spec."""
        wanted = {"cpu": cpus, "memory": memory, names.GPU: gpus}
        resources = {key: str(value) for key, value in wanted.items() if value is not None} | dict(limits or {})
        said = {names.GPU_MEMORY: gpu_memory} if gpu_memory else {}
        said |= {f"hollow.dev/{key}": str(value) for key, value in (hollow or {}).items()}
        container = {
            "name": "main", "image": image, "resources": {"limits": resources},
            **({"command": list(command)} if command else {}), **({"args": list(args)} if args else {}),
        }  # fmt: skip
        body = {
            "metadata": {"name": name, "labels": dict(labels or {}), "annotations": {**said, **(annotations or {})}},
            "spec": {
                "schedulerName": scheduler, "restartPolicy": "Never", "containers": [container],
                **({"priorityClassName": priority_class} if priority_class else {}),
                **({"nodeSelector": dict(node_selector)} if node_selector else {}), **spec,
            },
        }  # fmt: skip
        self.namespace(namespace)
        return self.api.post(core("pods", namespace), body)

    def namespace(self, name: str, **annotations: str) -> None:
        """A namespace, if there is none, with annotations of ours: `gpu_quota="2"`."""
        if name not in self._namespaces:
            self._namespaces.add(name)
            make(self.api, core("namespaces"), {"metadata": {"name": name}})
        if annotations:
            said = {f"{names.DOMAIN}/{key.replace('_', '-')}": value for key, value in annotations.items()}
            self.api.patch(core("namespaces", name=name), {"metadata": {"annotations": said}})

    def priority_class(self, name: str, value: int, **more: Any) -> None:
        """A class of pods that go before others."""
        self.api.post(group("scheduling.k8s.io/v1", "priorityclasses"),
                      {"metadata": {"name": name}, "value": value, **more})  # fmt: skip

    def budget(self, name: str, match: Mapping[str, str], namespace: str = DEFAULT, allowed: int = 0) -> None:
        """How many of some pods may be evicted now; a controller would count that."""
        path = group(POLICY, "poddisruptionbudgets", namespace)
        spec = {"maxUnavailable": allowed, "selector": {"matchLabels": dict(match)}}
        made = self.api.post(path, {"metadata": {"name": name}, "spec": spec})
        status = {"disruptionsAllowed": allowed, "observedGeneration": made["metadata"]["generation"],
                  "currentHealthy": 1, "desiredHealthy": 1 - allowed, "expectedPods": 1}  # fmt: skip
        self.api.put(f"{path}/{name}/status", {**made, "status": status})

    # -- what becomes of it -------------------------------------------------------------------------

    def get_pod(self, name: str, namespace: str = DEFAULT) -> Object:
        """A pod as it is now."""
        return self.api.get(core("pods", namespace, name))

    def pods(self, namespace: str = "", **params: str) -> list[Object]:
        """All pods; `fieldSelector` and `labelSelector` may follow."""
        return self.api.list(core("pods", namespace), **params).items

    def events(self, reason: str | None = None, pod: str | None = None) -> list[Object]:
        """What was said of pods, or of one."""
        return [
            event for event in self.api.list(core("events")).items
            if reason in (None, event["reason"]) and pod in (None, event["involvedObject"]["name"])
        ]  # fmt: skip

    def wait_bound(self, wanted: Sequence[str], seconds: float = PATIENCE) -> dict[str, Object]:
        """These pods, by name, once all of them have a node; a failure if that takes longer."""
        end = time.monotonic() + seconds
        while True:
            there = {pod["metadata"]["name"]: pod for pod in self.pods()}
            missing = [name for name in wanted if not there.get(name, {}).get("spec", {}).get("nodeName")]
            if not missing:
                return {name: there[name] for name in wanted}
            if time.monotonic() > end:
                said = [event["message"] for name in missing[:3] for event in self.events(pod=name)]
                raise AssertionError(
                    f"{len(missing)} not bound within {seconds} s: {missing[:10]}; events: {said[-5:]}"
                )
            time.sleep(0.02)

    def bind(self, name: str, node: str, gpus: str | None = None, namespace: str = DEFAULT) -> None:
        """Give a pod a node, as a scheduler does; with the GPUs that it should have, as ours does."""
        meta: Object = {"name": name} | ({"annotations": {names.INDICES: gpus}} if gpus is not None else {})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.api.post(core("pods", namespace, name, "binding"), {"metadata": meta, "target": target})

    def set_phase(self, name: str, phase: str, namespace: str = DEFAULT) -> Object:
        """Let a pod be `Running`, `Succeeded` or `Failed`, as its kubelet would say it."""
        status = {"phase": phase, "startTime": now(), "conditions": [condition("Ready", phase == "Running")]}
        return self.api.patch(core("pods", namespace, name, "status"), {"status": status})

    def delete_pod(self, name: str, namespace: str = DEFAULT, grace: int = 0) -> None:
        """Remove a pod; with a grace, a kubelet has to do it."""
        self.api.delete(core("pods", namespace, name), gracePeriodSeconds=grace)

    def evict(self, name: str, namespace: str = DEFAULT) -> None:
        """Ask for the end of a pod, which a budget may refuse."""
        self.api.post(core("pods", namespace, name, "eviction"),
                      {"apiVersion": POLICY, "kind": "Eviction", "metadata": {"name": name}})  # fmt: skip

    # -- what runs on it ----------------------------------------------------------------------------

    @contextmanager
    def scheduler(self, *flags: str, user: str = ADMIN, ready: bool = True) -> Iterator[Scheduler]:
        """Our scheduler as a process of its own, as somebody; not `ready`: do not wait until it is."""
        process = Scheduler(self.server.kubeconfig(user), self.folder, self._yard.environment, flags)
        try:
            if ready:
                process.wait_ready()
            yield process
            process.stop()
            assert "Traceback" not in process.log(), process.log()
        finally:
            process.kill()

    def gpuyard(self, *arguments: str | Path, user: str = ADMIN) -> Done:
        """Run a command to its end, in this process, as somebody."""
        return self._yard(*arguments, more={"KUBECONFIG": str(self.server.kubeconfig(user))})
