"""A live view: a picture on a terminal, a line for every change elsewhere."""

from __future__ import annotations

import io
import sys
from typing import cast

import pytest

from gpuyard.api.batch_types import BatchStanding
from gpuyard.api.types import Job
from gpuyard.cli.jobs import batch_results
from gpuyard.cli.simulator import demo_view
from gpuyard.cli.simulator.demo_view import Scene
from gpuyard.cli.terminal.live_view import LiveView
from gpuyard.cli.terminal.styled_lines import Piece, table, text_columns, text_of
from gpuyard.cli.terminal.text_table import columns

BEGAN = "2026-11-03T14:05:00+00:00"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(**more: bool) -> LiveView[str]:
    return LiveView(
        lambda state, width: [[Piece(f"{state} in {width}", "title")]], lambda state: [f"now {state}"], **more
    )


def test_without_a_terminal_changes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for to_stderr in (False, True):
        with view(to_stderr=to_stderr) as shown:
            assert not shown.live
            shown.show("a")
            shown.show("b\x1b[2J" if to_stderr else "b")
    assert capsys.readouterr() == ("now a\nnow b\n", "now a\nnow b [2J\n")


def test_on_a_terminal_the_picture_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    with view(to_stderr=True) as shown:
        assert shown.live
        shown.show("[bold]x[/bold]")
    assert "[bold]x[/bold] in 50" in screen.getvalue()
    assert "now" not in screen.getvalue()


def test_lines_can_be_asked_for_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with view(live=False) as shown:
        shown.show("a")
    assert screen.getvalue() == "now a\n"


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (30, ["JOB  NAME               TIME", "17   convolutional-net  3m", "18   short              4s"]),
        (20, ["JOB  NAME       TIME", "17   convolut…  3m", "18   short      4s"]),
        (11, ["JOB  TIME", "17   3m", "18   4s"]),
    ],
)
def test_a_table_of_texts_fits_any_width(width: int, expected: list[str]) -> None:
    cells = [("17", "convolutional-net", "3m"), ("18", "short", "4s")]
    head, rows = table(text_columns({"JOB": 3, "NAME": 1, "TIME": 2}, cells, soft=("NAME",)), width)
    assert [head.rstrip(), *map(text_of, rows)] == expected
    assert all(len(text_of(row)) <= width for row in rows)


@pytest.mark.parametrize("width", [1, 20, 60, 200])
def test_the_pictures_of_a_batch_and_of_the_demo_fit(width: int) -> None:
    job = {
        "id": "19", "name": "train-[bold].py", "gpus": [0, 1], "gpu_memory": 2**31, "gpu_count": 2, "priority": 5.0,
        "time_limit": 60.0, "state": "running", "reason": None, "task": None, "row": {"number": 3}, "started_at": BEGAN,
        "measured": {"peak": 2**30}, "progress": {"fraction": 0.37, "remaining": 21.0},
        "expected_end_at": None, "expected_by": None,
    }  # fmt: skip
    standing = {
        "name": "commands.csv", "batch": "17", "wave": 2, "waves": 3, "submitted_at": BEGAN,
        "states": {"succeeded": 4, "failed": 1, "running": 31}, "running": [job] * 31,
    }  # fmt: skip
    scene = Scene(2, cast(list[Job], [job]), {"19": "loss 0.1"}, 0, 5, BEGAN)
    pictures = (
        batch_results._picture(cast(BatchStanding, standing), width),
        demo_view._picture(scene, width),
    )
    for lines in pictures:
        assert all(columns(text_of(line)) <= width for line in lines)
    if width == 200:
        batch, demo = ("\n".join(map(text_of, lines)) for lines in pictures)
        assert "commands.csv, batch 17: wave 2 of 3; 5 of 36 rows are over (1 did not succeed), 31 run" in batch
        assert "train-[bold].py  0,1  1G of 2G" in batch
        assert batch.endswith("and 1 more")
        assert "GPU 1  train-[bold].py" in demo
        assert "loss 0.1" in demo
