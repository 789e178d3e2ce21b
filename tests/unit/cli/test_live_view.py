"""A live view: a picture on a terminal, a line for every change elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from gpuyard.cli.terminal.live_view import LiveView
from gpuyard.cli.terminal.styled_lines import Piece, table, text_columns, text_of


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
