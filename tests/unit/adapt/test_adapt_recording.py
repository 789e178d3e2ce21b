"""Recording: all ways of a tree, what they share trained once, and taken up wherever it was interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuyard.adapt.decisions import Decision, Situation, grow, nothing
from gpuyard.adapt.training.run_recording import Recording, grow_local, read_rows, savings
from gpuyard.adapt.training.run_trees import Tree, node_name, parse_node
from gpuyard.adapt.training.runner import build
from gpuyard.adapt.training_job import Job, read_job
from gpuyard.errors import UserError

DATA = """
import torch
def data():
    inputs = torch.randn(240, 6, generator=torch.Generator().manual_seed(1))
    labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] * inputs[:, 2] > 0).long()
    return tuple((inputs[k : k + 80], labels[k : k + 80]) for k in (0, 80, 160))
"""
JOB = """
budget = 30
clock = "virtual"
network = { name = "mlp", features = 6, width = 5, classes = 4 }
data = { name = "data.py:data" }
training = { batch_size = 16, learning_rate = 0.02 }
environments = { up = [0.2], decisions = 2 }
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "small.toml").write_text(JOB)
    return read_job(tmp_path / "small.toml")


class Follow:
    """Decides what it is told."""

    def __init__(self, actions: tuple[int, ...]) -> None:
        self.actions = list(actions)

    def decide(self, situation: Situation) -> Decision:
        action = self.actions.pop(0)
        if action == situation.nothing:
            return nothing(situation, "told so")
        return grow(situation, situation.options[action], "told so")


def test_a_tree_has_every_way_and_each_is_what_a_training_of_its_own_gives(job: Job, tmp_path: Path) -> None:
    (one,) = job.to_record()
    tree = Tree(replace(one, seed=3), tmp_path / "tree")
    tree.begin()
    ways = list(tree.walk())
    assert ways == [(a, b) for a in range(3) for b in range(3)]
    rows = {tuple(row["actions"]): row for row in tree.rows()}
    for way in [(2, 2), (0, 1), (1, 2)]:
        alone = build(replace(one, seed=3), Follow(way))
        result = alone.trainer.fit()
        assert rows[way]["validation"] == result.accuracy
        assert rows[way]["accuracy"] == alone.tested()
        assert rows[way]["parameters"][-1] == result.parameters
    assert rows[(2, 2)]["parameters"] == [89, 89, 89]
    assert rows[(0, 1)]["parameters"] == [89, 119, 149]


def test_what_ways_share_is_counted_once(job: Job, tmp_path: Path) -> None:
    tree = Tree(job.to_record()[0], tmp_path / "tree")
    tree.begin()
    list(tree.walk())
    rows = tree.rows()
    spent, alone = savings(rows)
    assert spent < alone
    first = next(row for row in rows if row["actions"] == [0, 0])
    assert first["seconds"] == pytest.approx(first["alone"])  # the first to go there pays for all of its way
    last = next(row for row in rows if row["actions"] == [2, 2])
    assert last["seconds"] < last["alone"]


def test_an_interrupted_tree_goes_on_where_it_was(job: Job, tmp_path: Path) -> None:
    whole = Tree(job.to_record()[0], tmp_path / "whole")
    whole.begin()
    list(whole.walk())
    broken = Tree(job.to_record()[0], tmp_path / "broken")
    broken.begin()
    walk = broken.walk()
    done = [next(walk) for _ in range(4)]
    again = Tree.at(tmp_path / "broken")
    rest = list(again.walk())
    assert not set(done) & set(rest)
    assert len(done) + len(rest) == 9

    def told(tree: Tree) -> list[Any]:
        return [(row["actions"], row["accuracy"], row["situations"]) for row in tree.rows()]

    assert told(again) == told(whole)


def test_recordings_go_on_with_what_is_missing(job: Job, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.jsonl", list[tuple[float, int]]()
    for seeds in (1, 2):
        recording = Recording.begun(out, [job], seeds)
        recording.begin()
        assert len(recording.trees) == 1
        grow_local(recording, 1, lambda done, total: seen.append((done, total)))
        recording.end()
    rows = read_rows(out)
    assert [(row["seed"], len(row["situations"])) for row in rows] == [(0, 2)] * 9 + [(1, 2)] * 9
    assert seen == [(0, 1), (0, 1)]
    assert not recording.parts.exists()
    assert Recording.begun(out, [job], 2).trees == []


def test_what_was_cut_off_is_recorded_again(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    recording = Recording.begun(out, [job], 2)
    recording.begin()
    grow_local(recording, 1, lambda done, total: None)
    whole = [(row["seed"], row["actions"], row["accuracy"]) for row in read_rows(out)]
    out.write_text(out.read_text()[:-100])
    again = Recording.begun(out, [job], 2)
    assert [tree.job.seed for tree in again.trees] == [1]
    again.begin()
    grow_local(again, 1, lambda done, total: None)
    assert [(row["seed"], row["actions"], row["accuracy"]) for row in read_rows(out)] == whole


def test_other_settings_do_not_go_into_the_same_file(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    recording = Recording.begun(out, [job], 1)
    recording.begin()
    grow_local(recording, 1, lambda done, total: None)
    other = replace(job, training=replace(job.training, learning_rate=0.5))
    with pytest.raises(UserError, match="other settings"):
        Recording.begun(out, [other], 1)
    with pytest.raises(UserError, match="two environments are called small-30-up20"):
        Recording.begun(out, [job, job], 1)


@pytest.mark.parametrize(
    ("text", "complaint"), [('{"a": 1}\n', "no recording"), ('{"a": 1}\nnonsense\n{}\n', "line 2")]
)
def test_files_that_are_no_recordings(job: Job, tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "out.jsonl").write_text(text)
    with pytest.raises(UserError, match=complaint):
        Recording.begun(tmp_path / "out.jsonl", [job], 1)


def test_a_folder_of_another_job_is_left_alone(job: Job, tmp_path: Path) -> None:
    Tree(job.to_record()[0], tmp_path / "tree").begin()
    other = replace(job.to_record()[0], seed=8)
    with pytest.raises(UserError, match="begun for another job"):
        Tree(other, tmp_path / "tree").begin()
    with pytest.raises(UserError, match="no recording that was begun"):
        Tree.at(tmp_path)


def test_nodes_have_names() -> None:
    assert [node_name(node) for node in ((), (0,), (2, 1))] == ["root", "0", "2-1"]
    assert [parse_node(word) for word in ("root", "0", "2-1")] == [(), (0,), (2, 1)]
    with pytest.raises(UserError, match="is no node"):
        parse_node("a-b")


def test_a_node_needs_its_parent(job: Job, tmp_path: Path) -> None:
    tree = Tree(job.to_record()[0], tmp_path / "tree")
    tree.begin()
    with pytest.raises(UserError, match="visit that node first"):
        tree.visit((1,))
    tree.visit(())
    with pytest.raises(UserError, match="there is no action 7 here, only 0 to 2"):
        tree.visit((7,))
    assert json.loads((tmp_path / "tree" / "job.json").read_text())["budget"] == 30
