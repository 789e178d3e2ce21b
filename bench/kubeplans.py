"""What a plan takes on a cluster of 1,000 nodes x 8 GPUs with 5,000 pods that wait, without any server.

    python -m bench.kubeplans [--nodes 1000] [--pending 5000]

Empty: every plan starts 64 pods. Full: a few pods end, and others take their place. Times are of this thread's CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from gpuyard.core.engine import validate
from gpuyard.core.model import Rules
from gpuyard.core.plan import Snapshot
from gpuyard.kubernetes import names
from gpuyard.kubernetes.cluster.cluster_nodes import node_of
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.pods import Pod, pod_of
from gpuyard.kubernetes.scheduler import MOST
from gpuyard.kubernetes.settings import Settings
from gpuyard.policies.resolver import make_planner

POLICIES = ("multifactor@easy@pack", "fcfs@skip@pack", "sjf@easy@spread")


def node(n: int) -> Mapping[str, Any]:
    """A node, as the API describes it."""
    name = f"node{n:04d}"
    has = {"cpu": "128", "memory": "1Ti", "pods": "250", names.GPU: "8"}
    labels = {names.NODE_GPU_MEMORY: "81920", "pool": "a" if n % 2 else "b"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": has}}


def pod(n: int, kind: int) -> Mapping[str, Any]:
    """A pod of one of eleven kinds: shares, whole GPUs, with and without a node selector, of several namespaces."""
    wants = [("4Gi", 0), ("6994Mi", 0), ("10Gi", 0), ("16Gi", 0), ("40Gi", 0), ("", 1), ("", 2), ("", 4), ("", 8)]
    memory, gpus = wants[kind % len(wants)]
    resources: dict[str, Any] = {"requests": {"cpu": "2", "memory": "8Gi"}}
    if gpus:
        resources["limits"] = {names.GPU: str(gpus)}
    annotations = {names.DURATION: f"{60 + 60 * (kind % 7)}s"} | ({names.GPU_MEMORY: memory} if memory else {})
    spec: dict[str, Any] = {
        "schedulerName": names.SCHEDULER,
        "containers": [{"image": f"i{kind}", "resources": resources}],
    }
    if kind % 11 == 10:
        spec["nodeSelector"] = {"pool": "a"}
    meta = {"uid": f"u{n}", "namespace": f"team{n % 5}", "name": f"p{n}", "annotations": annotations,
            "creationTimestamp": f"2026-01-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z"}  # fmt: skip
    return {"metadata": meta, "spec": spec}


def world(policy: str, nodes: int, pods: list[Pod]) -> ClusterState:
    """A cluster with these pods."""
    settings = Settings()
    found = ClusterState(make_planner(policy), settings, lambda one: one.duration or 3600.0)
    found.set_rules(Rules(86400.0, for_shares=False), 0.0)
    for n in range(nodes):
        found.put_node(node_of(node(n)), 0.0)
    for one in pods:
        found.put_pod(one, 0.0)
    found.settle(0.0)
    return found


def passes(found: ClusterState, count: int, at: float) -> list[tuple[float, int]]:
    """The milliseconds of some plans, and how many each started."""
    rows = []
    for n in range(count):
        found.settle(at + n)
        engine = found.engine
        assert engine is not None
        began = time.thread_time()
        plan = engine.planner.plan(Snapshot(engine.state, at + n, most=MOST))
        validate(engine.state, plan)
        rows.append((1000 * (time.thread_time() - began), len(plan.starts)))
        for start in plan.starts:
            found.start(start, at + n)
    return rows


def churned(found: ClusterState, count: int, ends: int, at: float) -> list[tuple[float, int]]:
    """The same on a full cluster, with some pods that end before every plan."""
    rows = []
    for n in range(count):
        state = found.state
        assert state is not None
        for row in state.running.array[:: max(1, len(state.running) // ends)][:ends].tolist():
            one = found.pods[found.uid_of[state.ids[row]]]
            found.drop_pod(one, at + n)
        rows += passes(found, 1, at + n)
    return rows


def told(rows: list[tuple[float, int]]) -> dict[str, float]:
    """Numbers of some plans."""
    times = sorted(ms for ms, _ in rows)
    return {
        "median_ms": statistics.median(times), "p95_ms": times[int(0.95 * (len(times) - 1))],
        "starts": sum(starts for _, starts in rows) / len(rows),
    }  # fmt: skip


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pending", type=int, default=5000)
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    for policy in POLICIES:
        pods = [pod_of(pod(n, n % 11)) for n in range(asked.pending)]
        found = world(policy, asked.nodes, pods)
        at = 1_767_300_000.0
        passes(found, 2, at)
        rows = passes(found, 15, at)
        results[policy] = {"empty": told(rows)}
        extra = [pod_of(pod(n, n % 11)) for n in range(asked.pending, asked.pending + 12_000)]
        full = world(policy, asked.nodes, extra)
        while passes(full, 1, at)[0][1]:
            continue
        for one in [pod_of(pod(n, n % 11)) for n in range(asked.pending)][: max(0, asked.pending - len(full.job_of))]:
            full.put_pod(one, at)
        assert full.state is not None
        results[policy]["full"] = {**told(churned(full, 15, 8, at)), "pending": float(len(full.state.waiting))}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
