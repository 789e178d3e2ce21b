"""The cluster view without a scheduler, computed from the API server alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpuyard.core.plan import Plan, Snapshot
from gpuyard.errors import GpuyardError, UserError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Api, Relisted, core, group
from gpuyard.kubernetes.cluster.cluster_nodes import node_of
from gpuyard.kubernetes.cluster.pods import Pod, pod_of
from gpuyard.kubernetes.cluster_view import ClusterView, cluster_view
from gpuyard.kubernetes.gpu_usage import GpuUsage
from gpuyard.kubernetes.leader_election import own_namespace
from gpuyard.kubernetes.scheduler import Scheduler
from gpuyard.kubernetes.settings import Settings
from gpuyard.kubernetes.workload_history import WorkloadHistory, read
from gpuyard.policies.resolver import make_planner


class ClusterSnapshot:
    def __init__(self, api: Api, namespace: str | None = None) -> None:
        self._api, namespace = api, namespace or own_namespace(api)
        lease = _lease(api, namespace)
        annotations = (lease.get("metadata") or {}).get("annotations") or {}
        self.leader = (lease.get("spec") or {}).get("holderIdentity") or ""
        self.settings = _settings(annotations)
        learned = WorkloadHistory(self.settings.memory_margin)
        learned.load(read(api, namespace))
        text = annotations.get(f"{names.DOMAIN}/policy") or self.settings.policy
        try:
            planner = make_planner(text, discipline=self.settings.discipline, placement=self.settings.placement)
        except UserError:  # a policy in a file that is elsewhere
            planner = make_planner(Settings.policy, discipline="easy", placement="pack")
        self.scheduler = Scheduler(api, self.settings, planner, GpuUsage(self.settings, learned), identity="look")
        self.world = self.scheduler.world
        now = time.time()
        for kind, read_one in (("namespaces", dict), ("nodes", node_of), ("pods", pod_of)):
            found = [read_one(one) for one in api.list(core(kind)).items]
            self.scheduler.take_in(Relisted(kind, found), now)
        self.world.settle(now)

    def view(self) -> ClusterView:
        messages, known = self.scheduler.messages, dict[Any, str]()
        return cluster_view(
            self.world, self.scheduler.observed, lambda pod: messages.reason(pod, known),
            server=self._api.connection.server, leader=self.leader, counts={},
        )  # fmt: skip

    def pod(self, namespace: str, name: str) -> Pod:
        found = next((pod for pod in self.world.pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)
        if found is not None:
            return found
        return pod_of(self._api.get(core("pods", namespace, name)))  # one that is over

    def plan(self) -> Plan | None:
        """The plan as of now; None without GPUs."""
        engine = self.world.engine
        return None if engine is None else engine.planner.plan(Snapshot(engine.state, time.time()))


def take_snapshot(api: Api, namespace: str | None = None) -> ClusterView:
    return ClusterSnapshot(api, namespace).view()


def _lease(api: Api, namespace: str) -> dict[str, Any]:
    try:
        return api.get(group("coordination.k8s.io/v1", "leases", namespace, names.LEASE))
    except GpuyardError:
        return {}  # no leader, or no right to read the lease


def _settings(annotations: Mapping[str, str]) -> Settings:

    def number(name: str, usual: float) -> float:
        try:
            return float(annotations.get(f"{names.DOMAIN}/{name}") or usual)
        except ValueError:
            return usual

    return Settings(
        scheduler=annotations.get(f"{names.DOMAIN}/scheduler") or names.SCHEDULER,
        default_duration=number("default-duration", Settings.default_duration),
        gpu_memory=number("gpu-memory", 0.0),
        gpu_buffer=number("gpu-buffer", 0.0),
        dry_run=True,
    )
