"""What of a job's output, and of JSON, reaches a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.yard import call

from gpuyard.cli.jobs.logs import ScreenFilter
from gpuyard.cli.terminal.output import json_text


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"plain \xc3\xa4\n\ttext\r\n", b"plain \xc3\xa4\n\ttext\r\n"),
        (b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m\x1b[m"),
        (b"50%\r\x1b[K60%\x08", b"50%\r\x1b[K60%\x08\x1b[m"),
        (b"a\x1b[2J\x1b[H\x1b[1A\x1b[10;20Hb", b"ab"),
        (b"\x1b]0;title\x07x\x1b]52;c;aGk=\x1b\\y\x1b]8;;http://e\x1b\\z", b"xyz"),
        (b"\x1bP+q\x1b\\a\x1b_apc\x1b\\b\x1bktitle\x1b\\c", b"abc"),
        (b"\x1bc\x1b7\x1b(0a\x1b[?1049hb\x1b[6n", b"ab"),
        (b"a\xc2\x9b2Jb\x9b1Ac\x07\x0b\x0c\x7f", b"a2Jb1Ac"),
        (b"\xe9t\xe9", b"\xe9t\xe9"),
    ],
)
def test_what_acts_on_a_terminal_is_taken_out(printed: bytes, shown: bytes) -> None:
    whole = ScreenFilter()
    assert whole.harmless(printed) + whole.rest() == shown
    pieces = ScreenFilter()
    found = b"".join(pieces.harmless(printed[at : at + 1]) for at in range(len(printed)))
    assert found + pieces.rest() == shown, "also where each byte comes by itself"


def test_a_sequence_without_an_end_does_not_hide_the_rest() -> None:
    screen = ScreenFilter()
    found = screen.harmless(b"\x1b]0;" + b"x" * 5000) + screen.harmless(b" seen\n") + screen.rest()
    assert found.endswith(b" seen\n")
    assert b"\x1b" not in found


def test_json_says_the_same_and_acts_on_no_terminal() -> None:
    said = {"name": "a\x9b2J\x7f\u202egnp.exe\u2066\u200f\u061c\u2028 \u00e4\U0001f600", "plain": "x"}
    for text in (json_text(said), json_text(said, indent=2)):
        assert json.loads(text) == said
        assert "\u00e4\U0001f600" in text
        assert not any(one in text for one in "\x9b\x7f\u202e\u2066\u200f\u061c\u2028")


def test_no_error_acts_on_a_terminal(tmp_path: Path) -> None:
    """It may hold a file's name, or what somebody called a job."""
    done = call("simulate", "a\x1b]0;title\x07\x9b2J\u202e.swf", cwd=tmp_path)
    assert done.code == 2
    assert "a ]0;title  2J .swf" in done.err
