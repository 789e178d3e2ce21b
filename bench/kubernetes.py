"""How fast pods are bound on a cluster of 1,000 nodes, beside a bare loop that binds and tells, on the same server.

    python -m bench.kubernetes [--nodes 1000] [--pods 2000] [--pending 10000]

Wants the API server of the tests (`bash tests/kube/build-apiserver.sh`). Ratios are what counts: machines differ.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.kube.processes import free_port
from tests.kube.server import KubeServer

from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Api, core

_THREADS = 8


def at_once(call: Callable[[Any], object], many: Iterable[Any], threads: int = _THREADS) -> float:
    """Make calls in several threads; the seconds that it took."""
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(call, many))
    return time.perf_counter() - began


def make_node(api: Api, name: str, gpus: int) -> None:
    """A node with GPUs, ready."""
    has = {"cpu": "128", "memory": "1Ti", "pods": "250", names.GPU: str(gpus)}
    labels = {names.NODE_GPU_MEMORY: "81920", "kubernetes.io/hostname": name}
    api.post(core("nodes"), {"metadata": {"name": name, "labels": labels}})
    ready = [{"type": "Ready", "status": "True"}]
    api.patch(core("nodes", "", name, "status"), {"status": {"capacity": has, "allocatable": has, "conditions": ready}})
    api.patch(core("nodes", "", name), {"spec": {"taints": None}})


def make_pod(api: Api, name: str, scheduler: str, memory: str) -> None:
    """A pod that wants a share of a GPU."""
    requests = {"cpu": "1", "memory": "2Gi"}
    spec = {
        "schedulerName": scheduler,
        "containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}],
    }
    api.post(
        core("pods", "default"), {"metadata": {"name": name, "annotations": {names.GPU_MEMORY: memory}}, "spec": spec}
    )


def bind_bare(api: Api, name: str, node: str) -> None:
    """What a scheduler that thinks of nothing would do."""
    meta = {"name": name, "namespace": "default", "annotations": {names.INDICES: "0"}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    api.post(core("pods", "default", name, "binding"), {"metadata": meta, "target": target})
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": name}
    event = {"metadata": {"name": f"{name}.1", "namespace": "default"}, "involvedObject": about, "type": "Normal",
             "reason": "Scheduled", "message": f"Successfully assigned default/{name} to {node}"}  # fmt: skip
    api.post(core("events", "default"), event)


def metric(port: int, name: str) -> float:
    """One number of /metrics; 0 while nobody answers."""
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    except OSError:
        return 0.0
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


class Scheduling:
    """A scheduler as a process of its own."""

    def __init__(self, server: KubeServer, folder: Path, *flags: str) -> None:
        self.port = free_port()
        self.log = (folder / f"scheduler-{self.port}.log").open("wb")
        command = [
            sys.executable,
            "-m",
            "gpuyard",
            "kubernetes",
            "scheduler",
            "--kubeconfig",
            str(server.kubeconfig("admin")),
        ]
        self.process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{self.port}", "--no-leader-elect", *flags],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def until(self, bound: int, seconds: float) -> tuple[float, float]:
        """When the first and the last of so many pods were bound."""
        first, end = 0.0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            now, count = time.perf_counter(), metric(self.port, "gpuyard_kubernetes_bindings_total")
            if count and not first:
                first, begun = now, count
            if count >= bound and not metric(self.port, "gpuyard_kubernetes_calls_in_flight"):  # events are told, too
                return now - first, bound - begun
            time.sleep(0.1)
        print(Path(self.log.name).read_text()[-3000:], file=sys.stderr)
        raise SystemExit(f"only {count:.0f} of {bound} pods were bound in {seconds:.0f} s")

    def memory(self) -> float:
        """Bytes that it has taken at most."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        return float(found[1]) * 1024 if found else 0.0

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def throughput(server: KubeServer, folder: Path, nodes: int, pods: int) -> dict[str, float]:
    """Pods per second of a bare loop, and of the scheduler."""
    api = server.api("admin")
    at_once(lambda n: make_pod(api, f"bare{n}", "none", "6994Mi"), range(pods))
    at_once(lambda n: make_pod(api, f"ours{n}", names.SCHEDULER, "6994Mi"), range(pods))
    found, third = dict[str, float](), pods // 3
    for turn, threads in enumerate((1, 4, 8)):
        part = range(turn * third, (turn + 1) * third)
        took = at_once(lambda n: bind_bare(api, f"bare{n}", f"node{n % nodes:04d}"), part, threads)
        found[f"bare_{threads}_threads"] = third / took
    scheduler = Scheduling(server, folder)
    try:
        took, bound = scheduler.until(pods, 60.0)
        found["ours"] = bound / took
        found["memory_mb"] = scheduler.memory() / 2**20
    finally:
        scheduler.stop()
    found["ratio_to_best_bare"] = found["ours"] / max(rate for name, rate in found.items() if name.startswith("bare"))
    found["ratio_to_single_bare"] = found["ours"] / found["bare_1_threads"]
    return found


def pending(server: KubeServer, folder: Path, many: int) -> dict[str, float]:
    """With thousands of pods that fit nowhere: what a plan takes, and whether one that fits is bound at once."""
    api = server.api("admin")
    at_once(lambda n: make_pod(api, f"large{n}", names.SCHEDULER, f"{81920 - n % 7}Mi"), range(many))
    nodes = [one["metadata"]["name"] for one in api.list(core("nodes")).items]
    for name in nodes[1:]:
        api.patch(core("nodes", "", name), {"spec": {"unschedulable": True}})
    scheduler = Scheduling(server, folder, "--policy", "fcfs", "--discipline", "skip")
    try:
        while metric(scheduler.port, "gpuyard_kubernetes_pending_pods") < many - 100:
            time.sleep(0.2)
        began = time.perf_counter()
        make_pod(api, "late", names.SCHEDULER, "1Gi")
        while not api.get(core("pods", "default", "late"))["spec"].get("nodeName"):
            time.sleep(0.02)
        return {
            "pending": many, "late_pod_bound_after_s": time.perf_counter() - began,
            "plan_ms": 1000 * metric(scheduler.port, "gpuyard_kubernetes_plan_seconds"),
            "memory_mb": scheduler.memory() / 2**20,
        }  # fmt: skip
    finally:
        scheduler.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--pending", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        server = KubeServer()
        server.start()
        try:
            api = server.api("admin")
            took = at_once(lambda n: make_node(api, f"node{n:04d}", 8), range(asked.nodes))
            print(f"{asked.nodes} nodes x 8 GPUs in {took:.1f} s", file=sys.stderr)
            found: dict[str, Any] = {"throughput": throughput(server, Path(name), asked.nodes, asked.pods)}
            print(json.dumps(found), file=sys.stderr)
            found["pending"] = pending(server, Path(name), asked.pending)
            print(json.dumps(found, indent=2))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
