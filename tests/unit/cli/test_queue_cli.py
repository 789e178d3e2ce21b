"""The queue's commands where no daemon is needed, or one that does what real ones seldom do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from tests.standin import StandIn

from gpuyard.api.types import SILENT, Columns, Job, LogPart
from gpuyard.cli.app import Commands
from gpuyard.cli.jobs import job_lists
from gpuyard.cli.jobs.logs import exit_code, follow
from gpuyard.cli.jobs.show import said
from gpuyard.cli.parser import LazyCommand
from gpuyard.cli.terminal.text_table import cut, lines
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.core.events import JobEvent
from gpuyard.page.views.job_facts import event_text


def test_tables_fit_the_terminal_and_align_wide_letters() -> None:
    found = lines(("A", "B"), [("学习", "x\ny"), ("ab", "long " * 9)], 40)
    assert found == ["A     B", "学习  x y", f"ab    {'long ' * 6}long", "      long long"]
    assert cut("学习学习", 4) == "学…"
    assert lines(("A",), [("red\x1b[31m",)], None) == ["A", "red [31m"]


def test_no_event_of_a_job_is_shown_by_its_name_in_the_log() -> None:
    event = {"attempt": 1, "gpus": [0], "memory": 2**30}
    shown = [kind.__name__ for kind in get_args(JobEvent) if kind.__name__ not in SILENT]
    assert [kind for kind in shown if kind in said({**event, "kind": kind})] == []
    assert [kind for kind in shown if event_text({**event, "kind": kind}) == kind] == ["Submitted", "Released"]


@pytest.mark.parametrize(
    ("state", "of_job", "code"),
    [
        ("succeeded", 0, 0),
        ("failed", 3, 3),
        ("failed", -9, 137),
        ("failed", None, 1),
        ("cancelled", 143, 130),
        ("timeout", 143, 124),
        ("interrupted", None, 1),
    ],
)
def test_commands_end_as_their_job_did(state: str, of_job: int | None, code: int) -> None:
    assert exit_code(cast(Job, {"state": state, "exit_code": of_job})) == code


class Told:
    """A client that gives the log in pieces that are told beforehand; an exception stands for a daemon that is away."""

    def __init__(self, *parts: LogPart | Exception) -> None:
        self.parts: Iterator[LogPart | Exception] = iter(parts)
        self.offsets: list[int] = []

    def log(self, job: str, offset: int, **_: Any) -> LogPart:
        self.offsets.append(offset)
        part = next(self.parts)
        if isinstance(part, Exception):
            raise part
        return part


def test_following_goes_on_with_the_next_attempt_and_the_next_daemon(capfd: pytest.CaptureFixture[str]) -> None:
    told = Told(
        LogPart(b"first\n", 6, 6, "running", 1),
        NoDaemon(),
        LogPart(b"", 0, 0, "queued", 2),
        LogPart(b"second\n", 7, 7, "running", 2),
        LogPart(b"", 7, 7, "succeeded", 2),
    )
    follow(cast(Client, told), "1")
    out, err = capfd.readouterr()
    assert out == "first\nsecond\n"
    assert "the daemon went away" in err
    assert told.offsets == [0, 6, 6, 0, 7]


def test_a_terminal_shows_the_first_of_many(tmp_path: Path) -> None:
    states = ["running"] * 2 + ["queued"] * 198
    with StandIn(tmp_path / "s") as yard:
        yard.answers["GET", "/status"] = 200, {"jobs": {"running": 2, "queued": 998, "succeeded": 5}}
        assert job_lists._first(Client(yard.path), states) == (42, 958)


def test_the_root_help_says_what_the_commands_say() -> None:
    for entries in Commands.headings.values():
        for name, entry in entries.items():
            assert LazyCommand(name, entry).load().help == entry.help, name


@pytest.mark.parametrize("arguments", [["--help"], ["submit", "--gpus", "2", "--tag", "a", "--", "true"], ["ps"]])
def test_commands_import_only_what_they_need(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import sys; from gpuyard.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m in ('rich', 'numpy', 'pydantic', 'http.client', 'gpuyard.cli.jobs.run')])"
    )
    with StandIn(tmp_path / "s") as yard:
        yard.answers["POST", "/jobs"] = 201, {"id": "1"}
        nothing: dict[str, list[str]] = {name: [] for name in Columns.__annotations__}
        yard.answers["GET", "/jobs?columns=true"] = 200, {"now": 0.0, "columns": nothing}
        command = [sys.executable, "-c", code, "--socket", str(yard.path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done


def test_what_typer_reads_by_itself_is_refused_by_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuyard", "submit", "--gpus"]
    for wrong in ("two", "0", "1.5"):
        done = subprocess.run([*command, wrong, "--", "true"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "--gpus" in done.stderr
