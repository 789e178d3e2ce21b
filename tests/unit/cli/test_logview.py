"""A job's output, as `gpuyard top` shows it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.cli.jobs.top.frames import frame
from gpuyard.cli.jobs.top.keys import Command, press
from gpuyard.cli.jobs.top.view_state import LogView, Model, clean
from gpuyard.cli.terminal.styled_lines import text_of
from gpuyard.cli.terminal.text_table import columns, fold


def view(count: int) -> LogView:
    log = LogView("7", "train", "running")
    log.append("".join(f"line {n}\n" for n in range(count)).encode())
    return log


def model(log: LogView, height: int = 6) -> Model:
    return Model(width=60, height=height, mode="log", log=log)


def lines(shown: Model) -> list[str]:
    return [text_of(line) for line in frame(shown)]


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("10%|#\r20%|##\r", "20%|##"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07on", "red on"),
        ("a\tb", "a       b"),
        ("bell\x07 and null\x00", "bell  and null "),
        ("日本\x1b[K", "日本"),
    ],
)
def test_lines_are_as_a_terminal_would_leave_them(raw: str, seen: str) -> None:
    assert clean(raw) == seen


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_pieces_make_the_same_lines_wherever_they_are_cut(data: bytes, cuts: list[int]) -> None:
    whole, pieces = LogView("1", ""), LogView("1", "")
    whole.append(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        pieces.append(data[begin:end])
    if b"\r\n" not in data:  # one that is cut in two is a line that is overwritten, and looks the same in the end
        assert pieces.all_lines == whole.all_lines


@given(st.text(max_size=100), st.integers(2, 30))
def test_folding_loses_nothing_and_fits(text: str, width: int) -> None:
    line = clean(text)
    pieces = fold(line, width)
    assert "".join(pieces) == line
    assert all(columns(piece) <= width for piece in pieces)


def test_the_end_is_followed_until_somebody_scrolls() -> None:
    log = view(100)
    shown = model(log)
    assert lines(shown) == [
        " job 7 · train · running · following", "line 96", "line 97", "line 98", "line 99",
        " ↑↓ PgUp PgDn scroll  End follow  / search  q back",
    ]  # fmt: skip
    log.append(b"more\n")
    assert lines(shown)[4] == "more"
    press(shown, "up")
    log.append(b"and more\n")
    assert lines(shown)[:1] == [" job 7 · train · running · line 100 of 102"]
    assert lines(shown)[4] == "line 99"
    press(shown, "pageup")
    assert lines(shown)[1:5] == ["line 92", "line 93", "line 94", "line 95"]
    press(shown, "home")
    assert lines(shown)[1] == "line 0"
    press(shown, "G")
    assert lines(shown)[4] == "and more"
    assert press(shown, "q") == [Command("close")]
    assert shown.mode == "lists"


def test_what_was_not_read_yet_is_asked_for_once() -> None:
    log = view(10)
    log.start = 5000
    shown = model(log)
    assert press(shown, "home") == [Command("earlier", "7", 1.0)]
    assert press(shown, "up") == []
    log.prepend(b"older\nthe begin of ", 100)
    assert lines(shown)[1:5] == ["the begin of line 0", "line 1", "line 2", "line 3"]
    press(shown, "up")
    assert lines(shown)[1] == "older"
    assert log.loading is True  # there is more, and it is on its way
    press(shown, "home")
    log.prepend(b"oldest\n", 0)
    assert lines(shown)[1] == "oldest"


def test_searching_goes_up_and_down() -> None:
    log = view(100)
    shown = model(log)
    for key in ("/", "E", " ", "1", "enter"):
        press(shown, key)
    assert lines(shown)[4] == "line 19"
    marked = [piece for piece in frame(shown)[4] if piece.style == "selected"]
    assert [piece.text for piece in marked] == ["e 1"]
    press(shown, "n")
    assert lines(shown)[4] == "line 18"
    press(shown, "N")
    assert lines(shown)[4] == "line 19"
    press(shown, "N")
    assert "'E 1' is not found below" in lines(shown)[-1]


def test_a_job_without_output_says_so() -> None:
    for state, told in (("queued", "has not started yet"), ("running", "has not printed anything")):
        assert told in lines(model(LogView("7", "-", state)))[1]


def test_a_job_that_runs_once_more_begins_anew() -> None:
    log = view(10)
    log.append(b"half")
    log.restart()
    log.append(b"new\n")
    assert log.all_lines == ["new"]


def test_only_so_many_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.cli.jobs.top.view_state._KEPT", 5)
    log = view(4)
    log.bottom = 3
    log.append(b"a\nb\nc\n")
    assert log.all_lines == ["line 2", "line 3", "a", "b", "c"]
    assert log.bottom == 1
