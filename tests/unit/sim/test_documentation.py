"""What the documentation of the simulator says in Python runs, and names every field."""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from gpuyard.sim.simulate import Options

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "simulating.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{n},{7 * n},{10 + 13 * n % 40},{1 + n % 3}\n" for n in range(40))
    (tmp_path / "work.csv").write_text("job,submit,run,gpus\n" + rows)
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text().partition("## From Python")[2]
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, flags=re.MULTILINE)
    code = textwrap.dedent("".join(blocks)).replace("jobs=4", "jobs=1")
    assert "Options(" in code
    exec(compile(code, str(PAGE), "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("easy noisy:0.5 ")
    assert {line.split()[0] for line in shown[-3:]} == {"fcfs", "sjf@easy", "las"}


def test_every_field_of_options_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("`Options`")[2], flags=re.MULTILINE))
    assert explained == {field.name for field in fields(Options)}
