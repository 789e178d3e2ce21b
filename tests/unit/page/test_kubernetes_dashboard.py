"""The pages of a cluster: who may ask, what is shown of nodes, and pods in words."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests import clusters
from tests.clusters import GIB

from gpuyard.page.cluster import cluster_facts
from gpuyard.page.cluster.cluster_app import AllowedHosts, _is_same
from gpuyard.page.cluster.cluster_feed import Cluster, UnexpectedAnswer, natural, read_cluster


def cluster(**facts: Any) -> Cluster:
    return read_cluster(json.dumps(replace(clusters.small(), **facts).to_json()).encode())


def dashboard(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuyard", "kubernetes", "dashboard", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("localhost:10261", True),
        ("LOCALHOST", True),
        ("127.0.0.1:8080", True),  # by kubectl port-forward
        ("[::1]:10261", True),
        ("gpus.example:80", True),
        ("evil.example", False),
        ("10.0.0.7:10261", False),
        ("localhost.evil.example", False),
        ("evil.example@localhost", False),
        ("", False),
        ("localhost:x", False),
    ],
)
def test_it_answers_by_its_own_names_only(host: str, good: bool) -> None:
    assert (host in AllowedHosts(["gpus.example"])) is good


def test_an_address_is_a_name_where_anyone_may_look() -> None:
    assert "10.0.0.7:10261" in AllowedHosts(addresses=True)
    assert "evil.example:10261" not in AllowedHosts(addresses=True)


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:10261", "localhost:10261", True),
        ("https://gpus.example", "gpus.example", True),  # behind a proxy that took TLS off
        ("http://gpus.example:80", "gpus.example", True),
        ("http://localhost:10262", "localhost:10261", False),
        ("http://evil.example", "localhost:10261", False),
        ("null", "localhost:10261", False),
        ("file://localhost:10261", "localhost:10261", False),
    ],
)
def test_a_page_is_ours_if_it_comes_from_where_it_asks(origin: str, host: str, same: bool) -> None:
    assert _is_same(origin, host) is same


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"{}", b'{"at": 1, "nodes": 3, "pods": []}', b"\xff"])
def test_what_is_no_cluster_is_not_taken_for_one(answer: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        read_cluster(answer)


def test_names_are_in_the_order_in_which_people_count() -> None:
    assert sorted(["node-10", "node-2", "a10b3", "a2"], key=natural) == ["a2", "a10b3", "node-2", "node-10"]


def test_who_waits_is_in_the_order_of_the_queue() -> None:
    names = [pod["name"] for pod in cluster().waiting]
    assert names == ["sweep-17", "llama-pretrain-0", clusters.HOSTILE, "nightly"]


def test_a_cluster_in_a_few_numbers() -> None:
    found = cluster_facts.figures(cluster())
    wanted = {"nodes": 4, "ready": 3, "unready": 1, "cordoned": 1, "gpus": 14, "busy": 12, "foreign": 1, "over": 1,
              "running": 6, "bound": 1, "ending": 1, "waiting": 3, "gated": 1}  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert found["totals"] == ["1,234 bound", "3 evicted"]
    assert cluster_facts.figures(cluster(nodes=(), pods=(), counts={}))["used"] is None


def test_how_nodes_stand() -> None:
    found = {name: cluster_facts.standings(node) for name, node in cluster().nodes.items()}
    assert found == {"gpu-a01": {"room"}, "gpu-a02": {"full"}, "gpu-a03": {"room", "foreign"}, "gpu-b01": {"closed"}}


def test_nodes_are_found_by_name_model_and_who_is_there() -> None:
    here = cluster()
    assert [node["name"] for node in cluster_facts.nodes_like(here, "PCIE", "")] == ["gpu-b01"]
    assert [node["name"] for node in cluster_facts.nodes_like(here, "", "serving")] == ["gpu-a03", "gpu-b01"]
    assert cluster_facts.nodes_like(here, "a0", "nobody") == []


def test_a_node_as_a_box_has_a_bar_for_each_gpu() -> None:
    here = cluster()
    assert cluster_facts.node_box(here.nodes["gpu-a01"])["cells"] == [
        ["ours", 100, 76, 1], ["ours", 100, 72, 1], ["ours", 62, 39, 2], ["over", 20, 23, 1],
    ]  # fmt: skip
    unknown = replace(clusters.gpu(0, "a/b"), memory_total=0.0, memory_charged=0.0)
    box = cluster_facts.node_box(cluster(nodes=(clusters.node("n", unknown),)).nodes["n"])
    assert box["cells"] == [["ours", 100, None, 1]]


def test_who_holds_a_gpu_that_nobody_knows_is_told_beside() -> None:
    lost = clusters.pod("lost", node="gpu-a02", gpus=(), gpu_count=1, scheduler="default-scheduler")
    here = cluster(pods=(*clusters.small().pods, lost))
    assert [one["key"] for one in cluster_facts.node_tile(here.nodes["gpu-a02"], here)["elsewhere"]] == ["team-a/lost"]


def said(pod: Any, here: Cluster) -> dict[str, str]:
    return {one.term: one.text for one in cluster_facts.pod_facts(pod, here)}


def test_a_pod_in_words() -> None:
    here = cluster()
    shared = said(here.pods["team-a/resnet-share-a"], here)
    assert shared["Asks for"] == "24 GiB of a GPU's memory, which it shares"
    assert "(history)" in shared["Let in"]
    assert shared["Counted with"] == "9.5 GiB, 14.5 GiB less than it asks for"
    whole = said(here.pods["team-a/bert-finetune-7d4f9c"], here)
    assert (whole["Asks for"], whole["Counted with"]) == ("2 GPUs for itself", "all of its GPUs")
    assert (whole["Expected"], whole["Priority"]) == ("to run for 2h 00m", "100 (higher runs first)")
    assert "1 running, 1 starting" in said(here.pods["research/allreduce-0"], here)["Gang"]
    foreign = said(here.pods["serving/triton-legacy"], here)
    assert foreign["Scheduler"].startswith("default-scheduler, not gpuyard")
    assert "Let in" not in foreign


def test_a_pod_of_which_little_is_known_is_told_all_the_same() -> None:
    plain = clusters.pod("x", admitted_by="by hand", gpus=(), gpu_count=0)
    here = cluster(pods=(plain,))
    told = said(here.pods["team-a/x"], here)
    assert (told["Asks for"], told["Let in"]) == ("no GPU", "by hand")
    wide = clusters.pod("y", gpu_memory=8 * GIB, charged=8 * GIB, gpus=(), gpu_count=3, admitted_by="")
    here = cluster(pods=(wide,))
    told = said(here.pods["team-a/y"], here)
    assert told["Asks for"] == "8 GiB of a GPU's memory on each of 3 GPUs of one node, which it shares"
    assert told["Let in"] == "nothing is written of why"
    assert cluster_facts.gpus_text(here.pods["team-a/y"]) == "3 of its GPUs"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_nobody_elsewhere_can_look_unless_that_is_wanted(listen: str) -> None:
    done = dashboard("--listen", listen)
    assert done.returncode == 2
    assert "add --allow-anyone if they may" in done.stderr


def test_where_it_cannot_listen_it_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = dashboard("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 2
    assert "cannot be listened at (Address already in use)" in done.stderr
    assert "is no address of a scheduler" in dashboard("--scheduler", "ftp://x").stderr
    assert "is no address to listen at" in dashboard("--listen", "here").stderr
