"""A hollow kubelet: everything that a kubelet tells of pods, without containers.

It takes the pods that are bound to nodes, lets them run as their annotations say (tests/kube/machines.py has them), in
time that may pass more quickly, and exports what DCGM would tell of the GPUs. By hand:

    python -m tests.kube.hollow --kubeconfig FILE --metrics-port 9400 --speed 10
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Api, ApiError, Change, Object, Unreachable, Watch, core
from gpuyard.kubernetes.cluster.quantity import amount
from gpuyard.kubernetes.kubeconfig import connect
from tests.kube import statuses
from tests.kube.machines import Ended, Machine, Refused, Task, behaviour
from tests.kube.metrics import MachineExporter
from tests.kube.server import ClosingApi

log = logging.getLogger("hollow")
_WRITERS = 4
_AGAIN = 0.2  # seconds until something is tried again that the server did not answer


class Kill(NamedTuple):
    """A pod that died for want of GPU memory."""

    pod: str
    node: str
    gpu: int


@dataclass(slots=True, eq=False)
class Resident:
    """A pod that is bound to a node of ours."""

    object: Object
    machine: Machine
    task: Task
    restarts: int = 0
    last: Object | None = None
    """How its containers ended the last time."""
    starts_at: float | None = None
    """When they are started again."""
    stops_at: float | None = None
    """When they have stopped, of a pod that somebody deleted."""
    over: bool = False


class Hollow:
    """The kubelets of all nodes, or of some. Pods run `speed` times as fast as they say."""

    def __init__(
        self,
        api: Api,
        *,
        speed: float = 1.0,
        nodes: Collection[str] | None = None,
        gpu_memory: str = "32510Mi",
        backoff: float = 1.0,
        tick: float = 0.02,
        metrics_port: int = 0,
    ) -> None:
        self._api = ClosingApi(api.connection)
        self._speed, self._nodes, self._backoff, self._tick = speed, nodes, backoff, tick
        self._default_memory = amount(gpu_memory)
        self.machines: dict[str, Machine] = {}
        self._residents: dict[str, Resident] = {}
        self._gone: list[str] = []
        self.ooms: list[Kill] = []
        """Who was killed for want of GPU memory."""
        self.restarts: list[str] = []
        """Pods, once for each time that one was started again."""
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._watches: dict[str, Watch] = {}
        self._threads: list[threading.Thread] = []
        self._writers = [ThreadPoolExecutor(1) for _ in range(_WRITERS)]
        self.exporter = MachineExporter(self._page, metrics_port)

    # -- for tests ----------------------------------------------------------------------------------

    @property
    def violations(self) -> list[str]:
        """What a scheduler should not have done."""
        with self._lock:
            return self._gone + [line for machine in self.machines.values() for line in machine.violations]

    @property
    def target(self) -> str:
        """Where Prometheus finds the metrics."""
        return self.exporter.target

    def peak(self, node: str, gpu: int) -> float:
        """The most bytes that were used on a GPU at once."""
        with self._lock:
            return self.machines[node].peaks.get(gpu, 0.0)

    def used(self, node: str, gpu: int) -> float:
        """The bytes that are used on a GPU now."""
        with self._lock:
            return self.machines[node].used(gpu)

    def finish(self, pod: str) -> None:
        """Let a pod end now, as if its time were over."""
        with self._lock:
            task = self._task(pod)
            task.behaviour = replace(task.behaviour, run=task.progress)

    def grow(self, pod: str, size: float, seconds: float) -> None:
        """Let what a pod uses on each GPU grow to this many bytes, from now on, in so many of its seconds."""
        with self._lock:
            task = self._task(pod)
            points = ((0.0, task.held), (task.progress, task.held), (task.progress + seconds, size))
            task.behaviour = replace(task.behaviour, memory=points)

    def _task(self, pod: str) -> Task:
        return next(one.task for one in self._residents.values() if one.task.name == pod)

    # -- running ------------------------------------------------------------------------------------

    def __enter__(self) -> Hollow:
        self._nodes_listed(self._api.list(core("nodes")).items)  # metrics tell of them from the first scrape on
        self.exporter.__enter__()
        for work in (self._follow_nodes, self._follow_pods, self._run):
            self._threads.append(threading.Thread(target=work, daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for watch in self._watches.values():
            watch.close()
        for thread in self._threads:
            thread.join()
        for writer in self._writers:
            writer.shutdown()
        self.exporter.__exit__()
        self._api.close()

    def _follow_nodes(self) -> None:
        self._follow(core("nodes"), self._nodes_listed, self._node_changed)

    def _follow_pods(self) -> None:
        self._follow(core("pods"), self._pods_listed, self._pod_changed, fieldSelector="spec.nodeName!=")

    def _follow(
        self, path: str, listed: Callable[[Sequence[Object]], None], changed: Callable[[Change], None], **params: Any
    ) -> None:
        """Tell of all objects of a kind, and of what happens to them, also after the server was away."""
        while not self._stopping.is_set():
            with contextlib.suppress(ApiError, Unreachable):
                found = self._api.list(path, **params)
                listed(found.items)
                watch = self._watches[path] = self._api.watch(path, found.version, **params)
                if self._stopping.is_set():
                    watch.close()
                for change in watch:
                    if change.kind != "BOOKMARK":
                        changed(change)
            self._stopping.wait(_AGAIN)

    # -- nodes --------------------------------------------------------------------------------------

    def _nodes_listed(self, nodes: Sequence[Object]) -> None:
        with self._lock:
            for name in self.machines.keys() - {node["metadata"]["name"] for node in nodes}:
                self._forget_machine(name)
            for node in nodes:
                self._known(node)

    def _node_changed(self, change: Change) -> None:
        with self._lock:
            if change.kind == "DELETED":
                self._forget_machine(change.object["metadata"]["name"])
            else:
                self._known(change.object)

    def _known(self, node: Object) -> Machine | None:
        """The machine of a node, if it is one of ours."""
        meta = node["metadata"]
        if self._nodes is not None and meta["name"] not in self._nodes:
            return None
        machine = self.machines.setdefault(meta["name"], Machine(meta["name"], 0, 0.0))
        said = meta.get("labels", {}) | meta.get("annotations", {})
        mebibytes = said.get(names.NODE_GPU_MEMORY)
        text = said.get(names.GPU_MEMORY) or (f"{mebibytes}Mi" if mebibytes else "")
        machine.memory = amount(text) if text else self._default_memory
        resources = node["status"].get("allocatable", {})
        machine.gpus = int(resources.get(names.GPU, 0))
        machine.room = {kind: amount(resources[kind]) for kind in ("cpu", "memory", "pods") if kind in resources}
        machine.model = said.get(names.NODE_GPU_MODEL, machine.model)
        return machine

    def _forget_machine(self, name: str) -> None:
        if (machine := self.machines.pop(name, None)) is not None:
            self._gone += machine.violations
            self._residents = {uid: one for uid, one in self._residents.items() if one.machine is not machine}

    # -- pods ---------------------------------------------------------------------------------------

    def _pods_listed(self, pods: Sequence[Object]) -> None:
        with self._lock:
            for uid in self._residents.keys() - {pod["metadata"]["uid"] for pod in pods}:
                self._left(uid)
        for pod in pods:
            self._pod_changed(Change("ADDED", pod))

    def _pod_changed(self, change: Change) -> None:
        pod = change.object
        uid = pod["metadata"]["uid"]
        with self._lock:
            if change.kind == "DELETED":
                self._left(uid)
                return
            resident = self._residents.get(uid) or self._arrived(pod)
            if resident is not None and "deletionTimestamp" in pod["metadata"] and resident.stops_at is None:
                resident.stops_at = time.monotonic() + resident.task.behaviour.stop / self._speed
            if resident is not None and pod["status"]["phase"] in ("Succeeded", "Failed"):
                self._vacate(resident)  # by somebody else's word, such as a test's

    def _left(self, uid: str) -> None:
        if (resident := self._residents.pop(uid, None)) is not None:
            self._vacate(resident)

    def _vacate(self, resident: Resident) -> None:
        """Take a pod off its GPUs."""
        if not resident.over:
            resident.machine.remove(resident.task)
            resident.over = True

    def _arrived(self, pod: Object) -> Resident | None:
        """A pod that was bound: start it, or refuse as a kubelet does."""
        meta, spec = pod["metadata"], pod["spec"]
        machine = self.machines.get(spec["nodeName"]) or self._looked_up(spec["nodeName"])
        if machine is None:
            return None
        annotations = meta.get("annotations", {})
        requests = _requests(spec)
        whole = int(requests.pop(names.GPU, 0))
        task = Task(f"{meta['namespace']}/{meta['name']}", behaviour(annotations), whole, requests)
        resident = self._residents[meta["uid"]] = Resident(pod, machine, task)
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            resident.over = True
            return resident
        told = annotations.get(names.INDICES)
        try:
            machine.place(task, [int(index) for index in told.split(",") if index] if told is not None else None)
        except Refused as refusal:
            resident.over = True
            self._write(resident, statuses.refused(refusal.reason, refusal.message))
            return resident
        task.start()
        self._write(resident, statuses.running(pod, 0, None))
        return resident

    def _looked_up(self, name: str) -> Machine | None:
        """A node of which no word has come yet."""
        try:
            return self._known(self._api.get(core("nodes", name=name)))
        except GpuyardError:
            return None

    # -- time ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopping.wait(self._tick):
            now = time.monotonic()
            with self._lock:
                residents = {id(one.task): one for one in self._residents.values()}
                for machine in self.machines.values():
                    for end in machine.advance((now - before) * self._speed):
                        self._ended(residents[id(end.task)], end, now)
                for resident in self._residents.values():
                    self._due(resident, now)
            before = now

    def _ended(self, resident: Resident, end: Ended, now: float) -> None:
        """The containers are over: that was the pod, or they are started again."""
        pod, task = resident.object, resident.task
        if end.gpu is not None:
            self.ooms.append(Kill(task.name, resident.machine.name, end.gpu))
            log.info("%s: CUDA out of memory on GPU %s of %s", task.name, end.gpu, resident.machine.name)
        resident.last = statuses.terminated(end.code, end.message)
        policy = pod["spec"].get("restartPolicy", "Always")
        if policy == "Always" or (policy == "OnFailure" and end.code):
            resident.restarts += 1
            resident.starts_at = now + self._backoff / self._speed
            self.restarts.append(task.name)
            self._write(resident, statuses.waiting(pod, resident.restarts, resident.last))
            return
        self._vacate(resident)
        self._write(resident, statuses.over(pod, resident.restarts, resident.last))

    def _due(self, resident: Resident, now: float) -> None:
        """What was to happen to a pod by now."""
        if resident.stops_at is not None and now >= resident.stops_at:
            resident.stops_at = math.inf
            self._vacate(resident)
            self._remove(resident)
        elif not resident.over and resident.starts_at is not None and now >= resident.starts_at:
            resident.starts_at = None
            resident.task.start()
            self._write(resident, statuses.running(resident.object, resident.restarts, resident.last))

    # -- words to the server ------------------------------------------------------------------------

    def _write(self, resident: Resident, status: Object) -> None:
        uid = resident.object["metadata"]["uid"]  # another pod may have the name by then: the server checks it
        body = {"metadata": {"uid": uid}, "status": status}
        self._queue(resident, lambda path: self._api.patch(f"{path}/status", body))

    def _remove(self, resident: Resident) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": resident.object["metadata"]["uid"]}}
        self._queue(resident, lambda path: self._api.delete(path, body))

    def _queue(self, resident: Resident, call: Callable[[str], object]) -> None:
        """Tell the server, after what was to be told of this pod before."""
        meta = resident.object["metadata"]
        path = core("pods", meta["namespace"], meta["name"])
        self._writers[hash(meta["uid"]) % _WRITERS].submit(self._told, call, path)

    def _told(self, call: Callable[[str], object], path: str) -> None:
        """Until the server took it, or there is nobody left to tell, or to tell of."""
        while True:
            try:
                call(path)
                return
            except Unreachable:
                pass
            except ApiError as error:
                if error.missing or error.conflict:
                    return
                log.warning("%s: %s", path, error)
                if not error.later:
                    return
            if self._stopping.wait(_AGAIN):
                return

    def _page(self) -> tuple[Sequence[Machine], dict[str, float]]:
        return list(self.machines.values()), {
            "hollow_oom_kills_total": len(self.ooms), "hollow_restarts_total": len(self.restarts),
        }  # fmt: skip


def _requests(spec: Object) -> dict[str, float]:
    """What the containers of a pod want together; the server wrote limits as requests where only these were given."""
    found = {"pods": 1.0}
    for container in spec["containers"]:
        for kind, text in container.get("resources", {}).get("requests", {}).items():
            found[kind] = found.get(kind, 0.0) + amount(text)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until somebody ends it."""
    parser = argparse.ArgumentParser(description="A hollow kubelet: pods run as their annotations say.")
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--metrics-port", type=int, default=0, help="any free one by default")
    parser.add_argument("--speed", type=float, default=1.0, help="how much more quickly time passes for pods")
    parser.add_argument("--nodes", help="names, with commas between; by default all nodes")
    parser.add_argument("--gpu-memory", default="32510Mi", help="of each GPU, where the node does not tell")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    nodes = given.nodes.split(",") if given.nodes else None
    with Hollow(
        Api(connect(given.kubeconfig)), speed=given.speed, nodes=nodes, gpu_memory=given.gpu_memory,
        metrics_port=given.metrics_port,
    ) as hollow:  # fmt: skip
        print(f"metrics at http://{hollow.target}/metrics", flush=True)
        ended.wait()
    for line in hollow.violations:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
