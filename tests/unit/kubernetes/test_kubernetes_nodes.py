"""Nodes as the API describes them."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.kubernetes import names
from gpuyard.kubernetes.cluster.cluster_nodes import CORDONED, Node, Taint, declared, node_of

MIB, GIB = 2**20, 2**30


def node(
    has: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    **status: Any,
) -> Node:
    meta = {"name": "n1", "labels": labels, "annotations": annotations}
    return node_of({"metadata": meta, "spec": spec, "status": {"allocatable": has or {}, **status}})


@pytest.mark.parametrize(
    ("given", "gpus", "memory"),
    [
        ({}, 0, 0),
        ({"has": {names.GPU: "4"}}, 4, 0),
        ({"has": {names.GPU: "4"}, "labels": {names.NODE_GPU_MEMORY: "32510"}}, 4, 32510 * MIB),
        ({"has": {names.GPU: "4"}, "labels": {names.GPU_MEMORY: "16Gi"}}, 4, 16 * GIB),
        ({"has": {names.GPU: "4"}, "annotations": {names.GPU_MEMORY: "32510"}}, 4, 32510 * MIB),
        (
            {"has": {names.GPU: "4"}, "annotations": {names.GPU_MEMORY: "8Gi"}, "labels": {names.NODE_GPU_MEMORY: "1"}},
            4,
            8 * GIB,
        ),
        # a device plugin that tells each GPU several times, so that pods can share it
        ({"has": {names.GPU: "16"}, "labels": {"nvidia.com/gpu.replicas": "4"}}, 4, 0),
        ({"has": {names.GPU: "16"}, "annotations": {names.GPU_COUNT: "2"}}, 2, 0),
        ({"has": {"aliyun.com/gpu-count": "2", names.ALIYUN_MEMORY: "30"}}, 2, 15 * GIB),
    ],
)
def test_gpus_and_their_memory(given: dict[str, Any], gpus: int, memory: float) -> None:
    found = node(**given)
    assert (found.gpus, found.gpu_memory, found.trouble) == (gpus, memory, "")


def test_what_makes_no_sense_leaves_it_without_gpus() -> None:
    found = node({names.GPU: "4"}, annotations={names.GPU_MEMORY: "plenty"})
    assert (found.gpus, found.gpu_memory) == (0, 0)
    assert "'plenty' is no quantity" in found.trouble


def test_everything_else() -> None:
    found = node(
        {"cpu": "31500m", "memory": "256Gi", "pods": "40"}, {"zone": "a", names.NODE_GPU_MODEL: "A100"},
        spec={"unschedulable": True, "taints": [
            {"key": CORDONED, "effect": "NoSchedule"}, {"key": "team", "value": "red", "effect": "NoSchedule"}]},
        conditions=[{"type": "Ready", "status": "Unknown"}, {"type": "MemoryPressure", "status": "False"}],
        addresses=[{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "box"}],
    )  # fmt: skip
    assert (found.cpus, found.memory, found.pods, found.model) == (31.5, 256 * GIB, 40, "A100")
    assert (found.ready, found.cordoned, found.taints) == (False, True, (Taint("team", "red", "NoSchedule"),))
    assert found.addresses == {"10.0.0.1", "box"}
    assert node().ready
    assert node(conditions=[{"type": "Ready", "status": "True"}]).ready


def test_the_shape_is_what_the_cluster_is_made_of() -> None:
    first = node({names.GPU: "4", "cpu": "8"}, {"zone": "a"})
    assert first.shape == node({names.GPU: "4", "cpu": "8"}, {"zone": "a"}, spec={"unschedulable": True}).shape
    assert first.shape != node({names.GPU: "4", "cpu": "8"}, {"zone": "b"}).shape
    assert first.shape != node({names.GPU: "3", "cpu": "8"}, {"zone": "a"}).shape


def test_an_annotation_counts_more_than_a_label() -> None:
    assert declared({"annotations": {"a": ""}, "labels": {"a": "x"}}, "a") == ""
    assert declared({"labels": {"a": "x"}}, "a") == "x"
    assert declared({}, "a") is None
