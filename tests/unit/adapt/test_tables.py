"""Recordings as trees: what is complete, what is averaged, and what is told of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.growing import leaves, worlds, write_recording

from gpuyard.adapt.agent.decision_trees import read_tables
from gpuyard.adapt.decisions import Option, Situation
from gpuyard.errors import UserError

HEAD = {"format": "gpuyard-adaptation", "version": 1}


def rows(seed: int = 0, environment: str = "e") -> list[dict[str, Any]]:
    """Four runs of two decisions with one option each."""
    seen = [
        Situation(10.0 - k, 10.0, accuracy=0.5 + seed / 10, decision=k, decisions=2, options=(Option(0, "a"),))
        for k in (0, 1)
    ]
    return [
        {
            "environment": environment, "seed": seed, "actions": [a, b], "accuracy": 0.1 * (2 * a + b) + seed / 100,
            "situations": [s.to_json() for s in seen],
        }
        for a in (0, 1)
        for b in (0, 1)
    ]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(lines: list[Any], name: str = "r.jsonl", end: str = "\n") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
        return path

    return make


def test_seeds_are_averaged(write: Callable[..., Path]) -> None:
    reading = read_tables([write([HEAD, *rows(0), *rows(2)])])
    (table,) = reading.tables
    assert reading.notes == ()
    assert table.seeds == (0, 2)
    assert table.sequences == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert table.values == pytest.approx([0.01, 0.11, 0.21, 0.31])
    assert table.errors == pytest.approx([0.01] * 4)
    assert table.noise == pytest.approx(0.02 / np.sqrt(2))
    assert table.sequences[table.never] == (1, 1)
    assert table.typical[()].accuracy == pytest.approx(0.6)
    assert [table.rank(s) for s in table.sequences] == [4, 3, 2, 1]
    assert table.idle((0,)) == (0, 1)


def test_several_files_and_folders_are_one(write: Callable[..., Path], tmp_path: Path) -> None:
    write([HEAD, *rows(0)], "f/a.jsonl")
    write([HEAD, *rows(1)], "f/b.jsonl")
    other = write([HEAD, *rows(0, "other")], "c.jsonl")
    tables = read_tables([tmp_path / "f", other]).tables
    assert {table.name: table.seeds for table in tables} == {"e": (0, 1), "other": (0,)}


def test_incomplete_seeds_and_environments_are_left_out_and_told(write: Callable[..., Path]) -> None:
    reading = read_tables([write([HEAD, *rows(0), *rows(1)[:3], *rows(0, "half")[:2]])])
    assert [table.name for table in reading.tables] == ["e"]
    assert reading.tables[0].seeds == (0,)
    assert any("seed 1 not complete" in note for note in reading.notes)
    assert any("half" in note and "environment" in note for note in reading.notes)
    with pytest.raises(UserError, match="no environment is complete"):
        read_tables([write([HEAD, *rows(0)[:3]], "d.jsonl")])


def test_a_line_cut_off_at_the_end_is_tolerated_elsewhere_not(write: Callable[..., Path]) -> None:
    cut = json.dumps(rows(1)[0])[:50]
    reading = read_tables([write([HEAD, *rows(0), cut], end="")])
    assert reading.tables[0].seeds == (0,)
    assert any("line 6, the last, is cut off" in note for note in reading.notes)
    with pytest.raises(UserError, match="line 3 is damaged"):
        read_tables([write([HEAD, rows(0)[0], cut, *rows(0)[1:]], "b.jsonl")])


def test_what_is_there_twice_counts_once(write: Callable[..., Path]) -> None:
    again = rows(0)[3] | {"accuracy": 0.9}
    reading = read_tables([write([HEAD, *rows(0), again, rows(0)[0]])])
    assert reading.tables[0].values[3] == 0.9
    assert len(reading.notes) == 1
    assert "twice" in reading.notes[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"accuracy": None}, "other kinds"),
        ({"accuracy": "nan"}, "no number"),
        ({"actions": [0]}, "1 actions, but 2 situations"),
        ({"actions": [0, 7]}, "action 7 is none of 0 to 1"),
        ({"situations": [{}, {}]}, "time_left"),
        ({"environment": ...}, "no 'environment'"),
    ],
)
def test_runs_that_are_none_are_told_with_their_line(
    write: Callable[..., Path], change: dict[str, Any], told: str
) -> None:
    run = {key: value for key, value in (rows(0)[0] | change).items() if value is not ...}
    with pytest.raises(UserError, match=f"line 2: .*{told}"):
        read_tables([write([HEAD, run])])


def test_files_that_are_no_recordings_are_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recording"):
        read_tables([write([{"some": "thing"}])])
    with pytest.raises(UserError, match="version 2"):
        read_tables([write([HEAD | {"version": 2}])])
    with pytest.raises(UserError, match="there is no recording"):
        read_tables([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no recording in"):
        read_tables([tmp_path / "empty"])
    (tmp_path / "odd.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not text"):
        read_tables([tmp_path / "odd.jsonl"])


def test_seeds_with_other_choices_are_refused(write: Callable[..., Path]) -> None:
    more = [leaf | {"environment": "e", "seed": 1} for leaf in leaves(worlds()[0], (1,))]
    with pytest.raises(UserError, match="seeds 0 and 1 had other choices"):
        read_tables([write([HEAD, *rows(0), *more])])


def test_environments_are_chosen_by_name(tmp_path: Path) -> None:
    reading = read_tables([write_recording(tmp_path / "a.jsonl", worlds(), seeds=(0,))])
    names = [table.name for table in reading.choose("made-mlp-*").tables]
    assert len(names) == 6
    assert [t.name for t in reading.choose(f"{names[3]}, {names[1]}").tables] == [names[3], names[1]]
    with pytest.raises(UserError, match="did you mean"):
        reading.choose(names[0] + "x")


def test_tables_of_the_seed_are_read(traces: Path) -> None:
    folder = traces / "adaptation"
    if not folder.is_dir():
        pytest.skip(f"no tables of the seed in {folder}")
    tables = {table.name: table for table in read_tables([folder]).tables}
    assert len(tables) == 10
    early = tables["cnn1-early"]
    assert len(early.sequences) == 64
    assert early.sequences[early.best] == (1, 1, 0)
    assert early.values[early.best] == 0.7391
    assert early.rank((3, 3, 3)) == 60
    seen = early.typical[(1, 1)]
    assert seen.grown == 2
    assert seen.options[1].grown == 2
    assert seen.options[0].params_ratio == pytest.approx(38_538 / 29_226)
