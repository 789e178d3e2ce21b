"""Files that are written in one step, and CSV."""

from __future__ import annotations

import csv
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard import files
from gpuyard.files import cell, csv_text, replace_file, replacing, without_formula, write_atomically
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import read, write

SOURCES = Path(files.__file__).parent


@pytest.mark.parametrize("write", [write_atomically, replace_file])
def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    victim, target = tmp_path / "victim", tmp_path / "plot.png"
    victim.write_text("mine")
    for name in (f".plot.png.{os.getpid()}.part", f".plot.png.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim)
    assert callable(write)
    write(target, b"new")
    assert (victim.read_text(), target.read_bytes()) == ("mine", b"new")
    monkeypatch.setattr(os, "urandom", bytes)  # as if the name could be foreseen
    (tmp_path / f".plot.png.{bytes(8).hex()}.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(target, b"newer")
    assert (victim.read_text(), target.read_bytes()) == ("mine", b"new")


def test_what_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with suppress(ValueError), replacing(target, mode=0o600) as draft:
        draft.write_text("half")
        assert draft.stat().st_mode & 0o777 == 0o600
        raise ValueError("no")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_no_draft_has_a_name_that_can_be_foreseen() -> None:
    """Whoever writes beside a file uses `replacing`, or a temporary file's random name."""
    bad = re.compile(r"with_name\(f?\"[^\"]*(getpid|\.new)")
    found = [path for path in SOURCES.rglob("*.py") if bad.search(path.read_text())]
    assert found == []


def test_nothing_is_unpickled() -> None:
    unsafe = re.compile(r"^\s*(import|from) (pickle|dill|shelve|marshal|joblib)\b|allow_pickle|yaml\.unsafe")
    loads = re.compile(r"torch\.load\((?!.*weights_only=True)")
    found = [
        f"{path.name}: {line}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(unsafe, line) or loads.search(line)
    ]
    assert found == []


def test_a_table_has_no_formulas_and_keeps_its_numbers() -> None:
    rows = [("=cmd|' /C calc'!A0", cell(-1.5), -2, None), ("@x", cell(1e20), "-", "+a")]
    lines = csv_text(("name", "=a", "n", "m"), rows).splitlines()
    assert lines == ["name,'=a,n,m", "'=cmd|' /C calc'!A0,-1.5,-2,", "'@x,1e+20,'-,'+a"]


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "'=x", "-x", "-1", "'-1", "@", "\uff1dx", "'"])
def test_a_trace_has_no_formulas_and_reads_back_as_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write(Trace.of([0.0], [1.0], [1], ids=["a"], users=[name]), path)
    cells = next(csv.DictReader(path.read_text().splitlines()[-2:]))
    assert without_formula(cells["user"]) == cells["user"]
    assert read(path).users == [name]
