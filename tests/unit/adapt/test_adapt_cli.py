"""`gpuyard adapt learn`, `evaluate` and `plot` from the command line."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.growing import worlds, write_recording

from gpuyard.cli import main


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_recording(tmp_path / "made.jsonl", worlds()[2:5], seeds=(0, 1))
    return "made.jsonl"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, and what was printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gpuyard", "adapt", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    out, error = capsys.readouterr()
    return int(ended.value.code or 0), out, error


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, error = call(capsys, *words, "--json")
    assert code == 0, error
    return json.loads(out)


def test_learn_then_evaluate_then_transfer(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--updates", "40")
    learned = told(capsys, "learn", recording, "--out", "a.json", *quick, "--plot", "curve.png")
    assert Path("curve.png").read_bytes()[:4] == b"\x89PNG"
    digest = hashlib.sha256(Path("a.json").read_bytes()).hexdigest()
    assert learned["policy_hash"] == digest
    found = told(capsys, "evaluate", "a.json", recording, "--bootstrap", "50")
    assert found["policy_hash"] == digest
    assert found["hash"] == json.loads(Path("a.json").read_text())["hash"] == learned["hash"]
    assert found["gap_share"] == pytest.approx(learned["gap_share"])
    assert len(found["environments"]) == 3
    for row in found["environments"]:
        assert {"environment", "rank", "of", "gap_share", "accuracy", "policy_hash"} <= row.keys()
        assert row["of"] == 16
        assert len(row["ranking"]) == 16
    one = found["environments"][0]["environment"]
    alone = told(capsys, "evaluate", "a.json", recording, "--environments", one)
    assert (alone["rank"], alone["of"]) == (found["environments"][0]["rank"], 16)
    told(capsys, "learn", recording, "--from", "a.json", "--out", "b.json", "--temperature", "10", *quick)
    new = told(capsys, "evaluate", "b.json", recording)
    assert new["policy_hash"] == hashlib.sha256(Path("b.json").read_bytes()).hexdigest() != digest


def test_same_seed_same_file(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        told(capsys, "learn", recording, "--out", f"{name}.json", "--updates", "5", "--seed", "7")
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_nothing_is_overwritten_silently(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("learn", recording, "--out", "a.json", "--updates", "2")
    told(capsys, *words)
    before = Path("a.json").read_bytes()
    code, _, error = call(capsys, *words, "--seed", "9")
    assert code == 2
    assert "--force" in error
    assert Path("a.json").read_bytes() == before
    told(capsys, *words, "--seed", "9", "--force")
    assert Path("a.json").read_bytes() != before
    plot = ("plot", "a.json", recording, "--out", "plots", "--no-transfer")
    written = told(capsys, *plot)
    assert sorted(Path(path).name for path in written) == sorted(
        f"{name}.{ending}" for name in ("accuracy", "deciders", "exploration", "objective") for ending in ("png", "svg")
    )
    assert all(Path(path).stat().st_size > 1000 for path in written)
    code, _, error = call(capsys, *plot)
    assert (code, "--force" in error) == (2, True)


def test_transfer_is_drawn(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "learn", recording, "--out", "a.json", "--updates", "3")
    assert "plots/transfer.svg" in told(capsys, "plot", "a.json", recording, "--out", "plots")


def test_rankings_are_printed_with_marks(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "evaluate", "early:site=0", recording)
    assert code == 0
    assert out.count("*** decider") == out.count("*** never") == 3
    assert "SHARE OF ALL GAPS" in out
    assert "the least gain is" in out
    assert len(call(capsys, "evaluate", "never", recording, "--ranking")[1].splitlines()) > 3 * 16


def test_leaving_out_prints_what_was_learned_anew(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "learn", recording, "--out", "a.json", "--updates", "5")
    found = told(capsys, "evaluate", "a.json", recording, "--leave-one-out")
    assert found["leave_one_out"] is True
    assert len({row["policy_hash"] for row in found["environments"]}) == 3
    code, out, _ = call(capsys, "evaluate", "a.json", recording, "--leave-one-out")
    assert (code, "learned anew without the environment" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("evaluate", "nowhere.json", "made.jsonl"), "there is no learned decider"),
        (("evaluate", "erly", "made.jsonl"), "did you mean 'early'"),
        (("evaluate", "never", "made.jsonl", "--leave-one-out"), "learns nothing"),
        (("evaluate", "never", "made.jsonl", "--environments", "x"), "no environment is called 'x'"),
        (("learn", "nowhere.jsonl"), "there is no recording"),
        (("learn", "made.jsonl", "--from", "made.jsonl"), "no learned decider"),
        (("plot", "nowhere.json"), "there is no recording"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    recording: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str
) -> None:
    code, _, said = call(capsys, *words)
    assert code == 2
    assert error in said
    assert "Traceback" not in said
