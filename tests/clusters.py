"""Clusters that are made up, and what answers at `/cluster` as a scheduler does."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuyard.kubernetes.cluster_view import ClusterView, GpuView, NodeView, PodView

GIB = 2.0**30
HOSTILE = "<img src=x onerror=alert(1)>"
NOW = time.time()


def pod(name: str, namespace: str = "team-a", **facts: Any) -> PodView:
    """A pod that runs on a GPU for itself, unless something else is said."""
    usual: dict[str, Any] = {
        "uid": f"uid-{namespace}-{name}", "scheduler": "gpuyard", "phase": "running", "reason": "", "node": "",
        "gpus": (), "gpu_count": len(facts.get("gpus", (0,))), "gpu_memory": 0.0, "charged": 0.0, "admitted_by": "fit",
        "priority": 0.0, "gang": "", "estimate": None, "created_at": NOW - 400, "started_at": NOW - 300,
    }  # fmt: skip
    return PodView(namespace, name, **{**usual, **facts})


def share(name: str, node: str, gpu: int, asked: float, charged: float, by: str, namespace: str) -> PodView:
    """A pod that shares a GPU; sizes are in GiB."""
    shared = {"gpu_memory": asked * GIB, "charged": charged * GIB, "admitted_by": by}
    return pod(name, namespace, node=node, gpus=(gpu,), **shared)


def waiting(name: str, position: int | None, reason: str, namespace: str = "team-b", **facts: Any) -> PodView:
    """A pod that waits."""
    usual = {"phase": "waiting", "started_at": None, "admitted_by": "", "position": position, "reason": reason}
    return pod(name, namespace, **{**usual, **facts})


def node(name: str, *gpus: GpuView, **facts: Any) -> NodeView:
    """A node that is ready."""
    usual: dict[str, Any] = {
        "model": "NVIDIA-A100-SXM4-80GB", "ready": True, "cordoned": False, "cpus": 64.0, "cpus_free": 20.5,
        "memory": 512 * GIB, "memory_free": 180 * GIB,
    }  # fmt: skip
    return NodeView(name, gpus=gpus, **{**usual, **facts})


def gpu(index: int, *pods: str, charged: float = 0.0, used: float | None = None, state: str = "") -> GpuView:
    """A GPU of 80 GiB, all of it charged if pods are there and nothing else is said; sizes are in GiB."""
    whole = 80.0 if pods and not charged else charged
    load = None if used is None else min(100.0, 13.0 * used % 101)
    taken = None if used is None else used * GIB
    return GpuView(index, 80 * GIB, whole * GIB, taken, load, state or ("ours" if pods else "free"), pods)


def small() -> ClusterView:
    """Four nodes in which everything is that can be seen."""
    lacking = "0/4 nodes available: 2 insufficient GPU memory, 1 foreign, 1 cordoned"
    incomplete = "needs 8 GPUs of one node; the gang llama has 1 of 2 members"
    pods = (
        pod("bert-finetune-7d4f9c", node="gpu-a01", gpus=(0, 1), estimate=7200.0, priority=100.0),
        share("resnet-share-a", "gpu-a01", 2, 24, 9.5, "history", "team-a"),
        share("resnet-share-b", "gpu-a01", 2, 40, 40, "fit", "research"),
        share("notebook-anna", "gpu-a01", 3, 20, 16, "cbp", "research"),
        pod("allreduce-0", "research", node="gpu-a02", gpus=(0, 1, 2, 3), gang="allreduce"),
        pod("allreduce-1", "research", node="gpu-a03", gpus=(0, 1), gang="allreduce", phase="bound", started_at=None),
        pod("triton-legacy", "serving", node="gpu-a03", gpus=(2,), scheduler="default-scheduler"),
        pod("leftover", "serving", node="gpu-b01", gpus=(0,), phase="ending"),
        waiting("sweep-17", 1, lacking, gpu_memory=48 * GIB),
        waiting("llama-pretrain-0", 2, incomplete, gpu_count=8, gang="llama", created_at=NOW - 5000, priority=1000.0),
        waiting("nightly", None, "", phase="gated"),
        waiting(HOSTILE, 3, HOSTILE),
    )
    both = "research/allreduce-1"
    nodes = (
        node(
            "gpu-a01",
            gpu(0, "team-a/bert-finetune-7d4f9c", used=61),
            gpu(1, "team-a/bert-finetune-7d4f9c", used=58),
            gpu(2, "team-a/resnet-share-a", "research/resnet-share-b", charged=49.5, used=31),
            gpu(3, "research/notebook-anna", charged=16, used=18.5),
        ),
        node("gpu-a02", *(gpu(index, "research/allreduce-0", used=44 + index) for index in range(4))),
        node("gpu-a03", gpu(0, both, used=0.4), gpu(1, both, used=0.4), gpu(2, "serving/triton-legacy", used=12,
             state="foreign"), gpu(3, used=0)),
        node("gpu-b01", gpu(0, "serving/leftover", state="closed"), gpu(1, state="closed"), cordoned=True, ready=False,
             model="NVIDIA-A100-PCIE-80GB"),
    )  # fmt: skip
    counts = {"waiting": 4, "running": 7, "bound_total": 1234, "evicted_total": 3}
    return ClusterView(
        NOW, "https://10.0.0.1:6443", "gpuyard", "wfp3@easy@pack", "usage", "gpuyard-scheduler-7c9f-x2k", "ok",
        nodes, pods, counts,
    )  # fmt: skip


def large(nodes: int = 1000, gpus: int = 8, pods: int = 2000, seed: int = 4) -> ClusterView:
    """As many nodes and pods as are wanted; a tenth of the pods wait."""
    draw = random.Random(seed)
    queue = pods // 10
    why = f"0/{nodes:,} nodes available: {nodes - 9} insufficient GPU memory, 9 foreign"
    made = [
        waiting(f"sweep-{place}", place, why, f"team-{place % 7}", gpu_count=draw.choice((1, 1, 2, 4, 8)))
        for place in range(1, queue + 1)
    ]
    taken: dict[tuple[int, int], list[tuple[str, float]]] = {}
    made += [_placed(f"job-{n}", f"team-{n % 7}", nodes, gpus, taken, draw) for n in range(pods - queue)]
    found = tuple(_drawn(at, gpus, taken, draw) for at in range(nodes))
    return replace(small(), nodes=found, pods=tuple(made), counts={"bound_total": 48211, "evicted_total": 17})


def _placed(
    name: str, namespace: str, nodes: int, gpus: int, taken: dict[tuple[int, int], list[tuple[str, float]]],
    draw: random.Random,
) -> PodView:  # fmt: skip
    """A pod on some node that has room for it."""
    while True:
        at, wide = draw.randrange(nodes), draw.choice((1, 1, 1, 2, 4, 8))
        memory = draw.choice((8.0, 12.0, 24.0, 40.0, 80.0)) if wide == 1 else 80.0
        places = [(at, draw.randrange(gpus))] if wide == 1 else [(at, index) for index in range(min(wide, gpus))]
        if all(sum(size for _, size in taken.get(place, ())) + memory <= 80 for place in places):
            break
    for place in places:
        taken.setdefault(place, []).append((f"{namespace}/{name}", memory))
    asked = 0.0 if memory == 80 else memory * GIB
    return pod(
        name, namespace, node=f"gpu-node-{at:04}", gpus=tuple(index for _, index in places), gpu_memory=asked,
        charged=asked, started_at=NOW - draw.randrange(90000), estimate=draw.choice((None, 3600.0)),
    )  # fmt: skip


def _drawn(at: int, gpus: int, taken: dict[tuple[int, int], list[tuple[str, float]]], draw: random.Random) -> NodeView:
    """A node with who is on it; one in a hundred is cordoned, or holds pods of others."""
    shut, foreign = draw.random() < 0.01, draw.random() < 0.01
    boxes = []
    for index in range(gpus):
        names = [name for name, _ in taken.get((at, index), ())]
        full = sum(size for _, size in taken.get((at, index), ()))
        state = "closed" if shut else "foreign" if foreign and not names else ""
        used = full * draw.uniform(0.3, 0.95) if draw.random() < 0.98 or not full else min(80, full + 3)
        boxes.append(gpu(index, *names, charged=80 if state == "foreign" else full, used=used, state=state))
    return node(f"gpu-node-{at:04}", *boxes, cordoned=shut)


class Scheduler(ThreadingHTTPServer):
    """Answers `/cluster` with a view; it can be told to be away, and to be something else."""

    def __init__(self, view: ClusterView, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answer)
        self.body = b""
        self.asked = 0
        self.show(view)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def show(self, view: ClusterView) -> None:
        """This is the cluster now."""
        self.body = json.dumps(view.to_json()).encode()

    def end(self) -> int:
        """Answer no longer; the port, for one that comes after it."""
        self.shutdown()
        self.server_close()
        return int(self.server_address[1])


class _Answer(BaseHTTPRequestHandler):
    server: Scheduler

    def do_GET(self) -> None:
        self.server.asked += 1
        known = self.path == "/cluster"
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.server.body) if known else 0))
        self.end_headers()
        if known:
            self.wfile.write(self.server.body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
