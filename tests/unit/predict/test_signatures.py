"""Which commands are the same, and which file they run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gpuyard.daemon.jobs.fingerprints import MOST, Fingerprints
from gpuyard.predict.signatures import epochs_of, overridden, shown, sign
from gpuyard.spec.notation import script_of


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python3.11 -u train.py --lr 0.1 --seed 3", "python train.py"),
        ("python train.py --weight_decay=0.1 --lr 3e-4 --batch 8", "python train.py --batch=8"),
        ("/venv/bin/python3 src/train.py --id=12 --epochs=5", "python train.py epochs=#"),
        ("python train.py --model_id bert --max_steps 100", "python train.py --model_id=bert max-steps=#"),
        ("python train.py trainer.max_epochs=5 seed=2 model=big", "python train.py max-epochs=# model=big"),
        ("python train.py hydra.run.dir=out/7", "python train.py"),
        ("python train.py --data /data/set1 --fp16", "python train.py --data=/data/set1 --fp16"),
        ("python train.py --config /tmp/tmpab1/big.yaml", "python train.py --config=/tmp/*/big.yaml"),
        ("python train.py --data /tmp/tmpab1", "python train.py --data=/tmp/*"),
        ("python train.py --since 2026-11-16T15:30:00", "python train.py --since=*"),
        ("python train.py runs/20261116_153000", "python train.py runs/*"),
        ("python train.py 123e4567-e89b-12d3-a456-426614174000", "python train.py *"),
        ("python train.py --layers 12 --width 4096", "python train.py --layers=12 --width=4096"),
        ("./run.sh 7", "run.sh 7"),
        ("sleep 5", "sleep 5"),
    ],
)
def test_commands_are_shown_without_what_belongs_to_one_run(command: str, words: str) -> None:
    assert " ".join(shown(command.split())) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python3 train.py --seed=2 --out=runs/{id} --batch=8\n", "python train.py --batch=8"),
        ("python 'my train.py' --id 3", "python my train.py"),
        ("python train.py --epochs 5", "python train.py epochs=#"),
    ],
)
def test_a_shell_that_only_splits_words_is_looked_through(text: str, words: str) -> None:
    assert " ".join(shown(["/bin/sh", "-c", text])) == words


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --id 1; rm -r x", "python a.py\npython b.py", "SEED=1 python train.py", "python $FILE",
        "python train.py | tee log", "python train.py 'half", "cd x && python train.py", "", "ls *.py", "echo {a,b}",
    ],
)  # fmt: skip
def test_what_a_shell_reads_otherwise_is_taken_as_it_is(text: str) -> None:
    command = ["bash", "-c", text]
    assert shown(command) == command
    assert script_of(command) is None
    assert overridden(command, ["--epochs", "2"])[:3] == command


def test_what_a_shell_runs_is_the_same_as_without_it() -> None:
    bare = ["python", "train.py", "--id", "4", "--epochs", "90"]
    asked = ["/bin/sh", "-c", "python train.py --id 4 --epochs 90"]
    one, other = (sign(command, directory="/", content="x", user="a") for command in (bare, asked))
    assert one == other
    assert script_of(asked) == "train.py"
    assert epochs_of(asked) == 90
    assert overridden(asked, ["--epochs", "2"]) == ["python", "train.py", "--id", "4", "--epochs", "2"]


def test_code_in_a_command_is_taken_as_it_is() -> None:
    one, other = (["python", "-c", f"train(--id={n})"] for n in (1, 2))
    assert shown(one) == one
    assert sign(one, directory="/", content="", user="a") != sign(other, directory="/", content="", user="a")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --x", "train.py"),
        ("python -u -W ignore src/train --x", "src/train"),
        ("python -m torch.distributed.run --nproc 2 train.py", "train.py"),
        ("python -m pkg.train", None),
        ("bash -c true", None),
        ("bash run.sh", "run.sh"),
        ("./train --x", "./train"),
        ("/usr/bin/env python3 train.py", "train.py"),
        ("torchrun --nproc_per_node=2 train.py", "train.py"),
        ("sleep 5", None),
    ],
)
def test_the_file_that_a_command_runs(command: str, script: str | None) -> None:
    assert script_of(command.split()) == script


def test_steps_count_where_there_are_no_epochs() -> None:
    assert epochs_of(["python", "a.py", "--max-steps", "1e3", "--epochs", "4"]) == 4
    assert epochs_of(["python", "a.py", "--max-steps", "1e3"]) == 1000
    assert epochs_of(["python", "a.py", "--epochs", "many"]) == 0


def test_a_command_keeps_what_is_not_overridden() -> None:
    command = ["python", "a.py", "--id=3", "epochs=9", "--fast"]
    assert overridden(command, ["epochs=2", "--limit", "10"]) == [
        "python",
        "a.py",
        "--id=3",
        "epochs=2",
        "--fast",
        "--limit",
        "10",
    ]


def test_likeness_is_for_one_place_and_a_signature_for_one_content() -> None:
    common = {"user": "ann", "tags": ["b", "a"]}
    here = sign(["python", "a.py"], directory="/x", content="1", **common)  # type: ignore[arg-type]
    there = sign(["python", "a.py"], directory="/y", content="1", **common)  # type: ignore[arg-type]
    later = sign(["python", "a.py"], directory="/x", content="2", **common)  # type: ignore[arg-type]
    assert (here.exact == there.exact, here.likeness == there.likeness) == (True, False)
    assert (here.exact == later.exact, here.likeness == later.likeness) == (False, True)
    assert sign(["python", "a.py"], directory="/x", content="1", user="bob", tags=["a", "b"]).exact != here.exact


def test_only_texts_that_may_be_read_have_a_fingerprint(tmp_path: Path) -> None:
    prints, script = Fingerprints(), tmp_path / "a.py"
    script.write_text("print(1)")
    first = prints.of(str(script))
    assert first
    assert prints.of(str(script)) == first
    (tmp_path / "link.py").symlink_to(script)
    assert prints.of(str(tmp_path / "link.py")) == first
    script.write_text("print(2)")
    assert prints.of(str(script)) not in ("", first)
    script.chmod(0o600)
    assert prints.of(str(script), uid=os.getuid() + 1) == ""
    assert prints.of(str(script), uid=os.getuid()) != ""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "large").write_bytes(b"x" * (MOST + 1))
    assert [prints.of(str(tmp_path / name)) for name in ("pipe", "binary", "large", "none", ".")] == [""] * 5
    assert prints.of("/a\0b") == ""


def test_what_lies_behind_a_closed_door_has_no_fingerprint() -> None:
    """Root could read it: but a hash tells whoever guesses what a file holds, or whether there is one."""
    other = os.getuid() + 1
    with tempfile.TemporaryDirectory() as name:
        outer, closed = Path(name), Path(name, "closed")
        closed.mkdir()
        script, link = closed / "a.py", outer / "link.py"
        script.write_text("print(1)")
        link.symlink_to(script)
        for path, mode in ((outer, 0o755), (closed, 0o755), (script, 0o644)):
            path.chmod(mode)
        prints = Fingerprints()
        assert prints.of(str(script), uid=other) == prints.of(str(link), uid=other) != ""
        closed.chmod(0o700)
        assert [prints.of(str(path), uid=other) for path in (script, link)] == ["", ""]
        assert prints.of(str(script), uid=os.getuid()) == prints.of(str(script)) != ""
