"""Pods as the API describes them, and what a scheduler makes of that."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpuyard.kubernetes import names
from gpuyard.kubernetes.cluster.pods import Gang, Pod, pod_of

MIB, GIB = 2**20, 2**30


def pod(
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    container = {"name": "main", "image": "train:1", "resources": {"limits": limits or {}}}
    about = {"uid": "u", "namespace": "team", "name": "p", "creationTimestamp": "1970-01-01T00:01:00Z"}
    return pod_of({
        "metadata": {**about, "annotations": annotations, "labels": labels, **(meta or {})},
        "spec": {"schedulerName": "gpuyard", "containers": [container], **spec}, "status": status,
    })  # fmt: skip


def asks(found: Pod) -> tuple[int, float, bool]:
    return found.gpus, found.gpu_memory, found.whole


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0, 0, False)),
        ({"limits": {names.GPU: "2"}}, (2, 0, True)),
        ({"annotations": {names.GPU_MEMORY: "6994Mi"}}, (1, 6994 * MIB, False)),
        ({"labels": {names.GPU_MEMORY: "6994Mi"}}, (1, 6994 * MIB, False)),
        ({"annotations": {names.GPU_MEMORY: "1Gi"}, "labels": {names.GPU_MEMORY: "2Gi"}}, (1, GIB, False)),
        ({"annotations": {names.GPU_MEMORY: "1Gi", names.GPU_COUNT: "3"}}, (3, GIB, False)),
        ({"labels": {names.SEED_MEMORY: "6994"}}, (1, 6994 * MIB, False)),
        ({"limits": {names.ALIYUN_MEMORY: "7"}}, (1, 7 * GIB, False)),
        ({"labels": {names.SEED_MEMORY: "6994", names.GPU_MEMORY: "1Gi"}}, (1, GIB, False)),
        # whole GPUs that have to have so much memory
        ({"limits": {names.GPU: 1}, "annotations": {names.GPU_MEMORY: "16Gi"}}, (1, 16 * GIB, True)),
        ({"limits": {names.GPU: "0"}, "annotations": {names.GPU_MEMORY: "1Gi"}}, (1, GIB, False)),
    ],
)
def test_what_it_asks_for(given: dict[str, Any], expected: tuple[int, float, bool]) -> None:
    found = pod(**given)
    assert asks(found) == expected
    assert not found.trouble
    assert found.shares is bool(expected[0] and not expected[2])


def test_what_containers_ask_for_together() -> None:
    def container(cpu: str, gpus: int = 0, **more: Any) -> dict[str, Any]:
        return {
            "name": cpu,
            "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {names.GPU: gpus}},
            **more,
        }

    both = [container("500m", 1), container("1500m", 1)]
    found = pod(containers=both)
    assert (found.cpus, found.memory, found.gpus) == (2.0, 2 * GIB, 2)
    first = pod(containers=both, initContainers=[container("3"), container("1", 4)])
    assert (first.cpus, first.memory, first.gpus) == (3.0, 2 * GIB, 4)  # one after another, and before the others
    beside = pod(containers=both, initContainers=[container("1", restartPolicy="Always"), container("3")])
    assert (beside.cpus, beside.memory) == (4.0, 3 * GIB)  # it goes on beside them
    assert pod(containers=both, overhead={"cpu": "250m", "memory": "1Gi"}).cpus == 2.25
    assert pod(limits={"cpu": "2"}).cpus == 2.0  # where no request is given


def test_what_it_says_of_how_it_is_to_be_scheduled() -> None:
    said = {
        names.GPU_MEMORY: "1Gi", names.GANG: "g", names.GANG_SIZE: "4", names.GANG_TIMEOUT: "5m",
        names.DURATION: "1h30m", names.ADMISSION: "requests", names.PREEMPTIBLE: "false", names.WORKLOAD: "mine",
    }  # fmt: skip
    found = pod(said, priority=7, preemptionPolicy="Never", activeDeadlineSeconds=60, schedulingGates=[{"name": "x"}])
    assert (found.gang, found.duration, found.usage, found.preemptible) == (Gang("g", 4, 300.0), 5400.0, False, False)
    assert (found.priority, found.patient, found.limit, found.gated) == (7.0, True, 60.0, True)
    assert (found.signature, found.key, found.created) == ("mine", "team/p", 60.0)
    plain = pod({names.GPU_MEMORY: "1Gi"})
    assert (plain.gang, plain.duration, plain.usage, plain.preemptible) == (None, None, True, None)
    assert (plain.priority, plain.patient, plain.limit, plain.gated) == (0.0, False, math.inf, False)
    assert pod({names.GANG: "g"}, limits={names.GPU: 1}).gang == Gang("g", 1, 600.0)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({names.GPU_MEMORY: "lots"}, "'lots' is no quantity"),
        ({names.GPU_MEMORY: "-1Gi"}, "no amount of memory"),
        ({names.GPU_MEMORY: ""}, "is no quantity"),
        ({names.GPU_COUNT: "two"}, f"{names.GPU_COUNT} is a number of GPUs, 1 or more, not two"),
        ({names.GPU_COUNT: "0"}, "1 or more, not 0"),
        ({names.GPU_COUNT: "-1"}, "1 or more, not -1"),
        ({names.GPU_COUNT: "1.5"}, "1 or more, not 1.5"),
        ({names.GANG: "g", names.GANG_SIZE: "x"}, "members, 1 or more, not x"),
        ({names.GANG: "g", names.GANG_SIZE: "0"}, "members, 1 or more, not 0"),
        ({names.GANG: "g", names.GANG_TIMEOUT: "soon"}, "soon"),
        ({names.DURATION: "soon"}, "soon"),
        ({names.DURATION: "0s"}, "above 0"),
        ({names.ADMISSION: "luck"}, "requests or usage, not luck"),
        ({names.PREEMPTIBLE: "yes"}, "true or false, not yes"),
    ],
)
def test_what_makes_no_sense_is_told(said: dict[str, str], why: str) -> None:
    assert why in pod({names.GPU_MEMORY: "1Gi", **said}).trouble


def test_what_others_wrote_may_be_anything() -> None:
    for text in ("x", "0,x", "1;2"):
        assert pod({names.GPU_MEMORY: "1Gi", names.INDICES: text}).indices == ()
    found = pod({names.GPU_MEMORY: "1Gi", names.INDICES: "0,2", names.CHARGED: "1024", names.ADMITTED: "cbp"})
    assert (found.indices, found.charged, found.admitted_by) == ((0, 2), 1024.0, "cbp")
    assert pod({names.GPU_MEMORY: "1Gi", names.CHARGED: "much"}).charged is None


def test_how_it_stands() -> None:
    def state(**how: Any) -> dict[str, Any]:
        return {"restartCount": 2, "state": how}

    started, ended = "1970-01-01T00:02:00Z", "1970-01-01T00:03:00Z"
    waits = pod(limits={names.GPU: 1})
    assert waits.waits
    assert not waits.over
    runs = pod(nodeName="n1", status={"phase": "Running", "startTime": started, "podIP": "10.0.0.1",
                                      "containerStatuses": [state(running={"startedAt": ended})]})  # fmt: skip
    assert (runs.waits, runs.node, runs.started, runs.ended, runs.restarts) == (False, "n1", 180.0, None, 2)
    over = pod(nodeName="n1", status={"phase": "Failed", "containerStatuses": [
        state(terminated={"startedAt": started, "finishedAt": ended})]})  # fmt: skip
    assert (over.over, over.started, over.ended) == (True, 120.0, 180.0)
    assert pod(nodeName="n1", status={"startTime": started}).started == 120.0
    assert not pod(meta={"deletionTimestamp": started}).waits
    owner = {"kind": "Job", "controller": True}
    assert pod(meta={"ownerReferences": [owner]}).controlled
    assert not pod(meta={"ownerReferences": [{"kind": "Job"}]}).controlled
    assert pod(status={"nominatedNodeName": "n2"}).nominated == "n2"


def test_pods_alike_have_one_signature() -> None:
    def signed(image: str, *command: str, **more: Any) -> str:
        container = {"name": "main", "image": image, "command": list(command)}
        return pod({names.GPU_MEMORY: "1Gi"}, containers=[container], **more).signature

    assert signed("train:1", "python", "train.py") == signed("train:1", "python", "train.py")
    assert signed("train:1", "python", "train.py") != signed("train:2", "python", "train.py")
    assert signed("train:1", "python", "train.py") != signed("train:1", "python", "other.py")
    assert signed("train:1") != signed("train:1", meta={"namespace": "other"})
    assert pod().signature == ""
