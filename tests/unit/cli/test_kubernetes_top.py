"""A cluster on the terminal: what is drawn in how much room, whom it asks, and that it goes on without an answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import clusters
from tests.clusters import Scheduler
from tests.terminal import Terminal

from gpuyard.cli.kubernetes.connection import scheduler_at
from gpuyard.cli.kubernetes.top import frame
from gpuyard.cli.terminal.styled_lines import text_of
from gpuyard.cli.terminal.text_table import columns
from gpuyard.errors import UserError

SMALL: dict[str, Any] = clusters.small().to_json()
LARGE: dict[str, Any] = clusters.large(100, 8, 300).to_json()
TOP = [sys.executable, "-m", "gpuyard", "kubernetes", "top"]


def drawn(view: dict[str, Any], width: int = 160, height: int | None = None, **more: Any) -> str:
    return "\n".join(text_of(line) for line in frame(view, width, height, **more))


def top(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *flags], capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@given(st.sampled_from([SMALL, LARGE]), st.integers(1, 200), st.integers(1, 70))
def test_it_fits_into_any_screen(view: dict[str, Any], width: int, height: int) -> None:
    lines = frame(view, width, height)
    assert len(lines) <= height
    assert all(columns(text_of(line)) <= width for line in lines)


def test_every_gpu_is_seen_where_there_is_room() -> None:
    told = drawn(SMALL)
    assert (
        "2  ours       ━━━━━━──── 49.5G/80G  ━━────    31G  100%  team-a/resnet-share-a, research/resnet-share-b"
        in told
    )
    assert "3  over       ━━────────   16G/80G" in told
    assert "2  foreign" in told
    assert " gpu-b01    0  not ready" in told
    assert "4 nodes (1 not ready, 1 cordoned) · 14 GPUs: 1 free, 1 foreign · memory 77% charged, 32% used" in told
    assert "(default-scheduler)" in told


def test_who_waits_is_told_in_order_with_the_reason() -> None:
    lines = drawn(SMALL).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(" WAITING 4"))
    assert lines[first + 1].endswith("0/4 nodes available: 2 insufficient GPU memory, 1 foreign, 1 cordoned")
    assert [line.split()[0] for line in lines[first + 1 : first + 3]] == ["team-b/sweep-17", "team-b/llama-pretrain-0"]
    assert lines[first + 4].endswith("gated")


def test_of_many_nodes_those_come_first_of_which_something_is_wrong() -> None:
    dead = clusters.node("dead", clusters.gpu(0, state="closed"), ready=False)
    view = clusters.large(100, 8, 300)
    told = drawn(replace(view, nodes=(*view.nodes, dead)).to_json(), height=30).splitlines()
    rows = [line for line in told if line.startswith((" dead", " gpu-node"))]
    assert any("not ready" in row for row in rows)
    over = [row for row in rows if " over " in row]
    assert rows[: 1 + len(over)] == [*sorted(over, key=rows.index), rows[len(over)]]
    left = next(line for line in told if " more nodes: " in line)
    assert left.startswith(f" and {101 - len(rows)} more nodes: ")


def test_what_is_unknown_or_missing_is_told() -> None:
    bare = replace(clusters.gpu(0, "a/b"), memory_total=0.0, memory_charged=0.0)
    view = replace(clusters.small(), nodes=(clusters.node("n", bare),), pods=(), leader="", prometheus="no answer")
    told = drawn(view.to_json())
    assert "NOBODY IS ELECTED · PROMETHEUS no answer" in told
    assert "memory unknown" in told
    assert "no pod" in told
    assert "the cluster has no node with GPUs" in drawn(replace(view, nodes=()).to_json())


def test_nothing_that_a_terminal_obeys_is_drawn() -> None:
    view = replace(clusters.small(), pods=(clusters.waiting("x\x1b[2J", 1, "why\x07\nnot"),))
    assert "\x1b" not in drawn(view.to_json())
    assert "why  not" in drawn(view.to_json())


@pytest.mark.parametrize(("text", "url"), [("box:10260", "http://box:10260"), ("https://box/x/", "https://box/x")])
def test_a_scheduler_by_its_address(text: str, url: str) -> None:
    assert scheduler_at(text) == url


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://box", "box:99999", "http://box?x=1", "http://bo x", "http://b\u00f6x"]
)
def test_what_is_no_address_of_a_scheduler(text: str) -> None:
    with pytest.raises(UserError, match="is no address of a scheduler"):
        scheduler_at(text)


def test_where_there_is_no_terminal_it_is_printed_once() -> None:
    scheduler = Scheduler(clusters.small())
    try:
        done = top("--scheduler", scheduler.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert "team-a/resnet-share-a, research/resnet-share-b" in done.stdout
        told = json.loads(top("--scheduler", scheduler.url, "--json").stdout)
        assert told == json.loads(json.dumps(SMALL))
        scheduler.body = b"{}"
        other = top("--scheduler", scheduler.url)
        assert other.returncode == 1
        assert "is not gpuyard's scheduler" in other.stderr
    finally:
        scheduler.end()


def test_whom_it_asks(tmp_path: Path) -> None:
    assert "no scheduler answers at http://127.0.0.1:1;" in top("--scheduler", "127.0.0.1:1").stderr
    named = top("--kubeconfig", str(tmp_path / "none"))
    assert named.returncode == 2
    assert f"there is no kubeconfig {tmp_path / 'none'}" in named.stderr
    assert "--interval must be 0.2s or more" in top("--interval", "0").stderr


@pytest.mark.program
def test_it_is_live_and_waits_for_a_scheduler_that_goes_away(tmp_path: Path) -> None:
    view = clusters.small()
    scheduler = Scheduler(view)
    command = f"{' '.join(TOP)} --scheduler {scheduler.url} --interval 0.2s"
    with Terminal(tmp_path, command, os.environ, 120, 40) as terminal:
        terminal.shows("wfp3@easy@pack", "team-b/sweep-17", "q quit")
        scheduler.show(replace(view, policy="fcfs@strict"))
        terminal.shows("fcfs@strict")
        port = scheduler.end()
        terminal.shows("NO ANSWER for", "this asks on: no scheduler answers", "team-b/sweep-17")
        again = Scheduler(view, port)
        terminal.shows("wfp3@easy@pack")
        terminal.resize(70, 14)
        terminal.shows("and 2 more", "q quit")
        terminal.type("q")
        terminal.hides("q quit")
        again.end()
