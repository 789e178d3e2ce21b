"""The command line that the page's form shows does what the form does, by the command line's own account."""

from __future__ import annotations

import contextlib
import shlex
import sys
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.cli import main
from gpuyard.cli.jobs import submit as submitting
from gpuyard.client.client import Client
from gpuyard.page.views.job_form import Moment, clone_body, clone_line, command_line, parse_form

NOW = 1_794_000_000.0
PLACES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Europe/Berlin")
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
WORD = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z"), exclude_characters=","), min_size=1, max_size=8)
DURATION = st.sampled_from(("90", "90m", "1.5h", "02:30:00", "1-12:00:00", "2d", " 4h "))
WHEN = st.sampled_from(
    ("16:00", "tomorrow", "fri 14:00", "now+1hour", "+90m", "2027-01-20T08:00", "2027-01-20T08:00:00.5-03:30", "noon")
)
FIELDS: dict[str, st.SearchStrategy[str | bool]] = {
    "gpus": st.integers(1, 64).map(str),
    "name": TEXT,
    "gpu_memory": st.sampled_from(("6G", "512M", "0.5G", "7340032")),
    "from": st.sampled_from(tuple(",".join(map(str, range(count))) for count in (64, 80))) | st.just("0-70"),
    "time": DURATION,
    "estimate": DURATION,
    "priority": st.floats(-1e6, 1e6).map(str) | st.integers(-9, 9).map(str),
    "begin": WHEN,
    "deadline": WHEN,
    "dependency": st.sampled_from(("afterok:12:13", "afterany:prepare,afternotok:7", "singleton")),
    "array": st.sampled_from(("0-99%4", "1,3,7", "0-20:5")),
    "retries": st.integers(0, 1000).map(str),
    "retry_delay": st.sampled_from(("0", "30s", "1h")),
    "signal": st.sampled_from(("USR1", "sigint", "USR2@60s")),
    "grace": st.sampled_from(("0", "10s", "2m")),
    "tags": st.lists(WORD, max_size=3).map(", ".join),
    "directory": st.sampled_from(("", "~", "~/run 1", "/data/it's", "/")),
    "variables": st.dictionaries(st.from_regex(r"[A-Z_]{1,6}", fullmatch=True), TEXT, max_size=3).map(
        lambda found: "\n".join(f"{name}={value}" for name, value in found.items())
    ),
    "output": TEXT,
    "error": TEXT,
    "open_mode": st.sampled_from(("", "append", "truncate")),
    "notify": st.lists(WORD, max_size=2).map(" ".join),
    "notify_on": st.sampled_from(("finish", "start, failure", "long-wait tasks")),
    "hold": st.booleans(),
    "preemptible": st.booleans(),
    "requeue": st.booleans(),
}
COMMAND = st.tuples(WORD, st.lists(TEXT, max_size=4)).map(lambda parts: shlex.join([parts[0], *parts[1]]))
FORMS = st.fixed_dictionaries({"command": COMMAND}, optional=FIELDS)


def run(line: str) -> dict[str, Any]:
    """What the command line would send to a daemon elsewhere, where as on the page nothing of a shell counts."""
    sent: list[dict[str, Any]] = []

    def send(in_place: bool, request: submitting.Request, client: Any) -> str:
        sent.append(request.describe(in_place=in_place, elsewhere=True))
        return "1"

    def clone(client: Client, target: str, body: dict[str, Any], key: str | None = None, **_: Any) -> dict[str, Any]:
        sent.append(body)
        return {"id": "1"}

    with (
        mock.patch.object(submitting, "submit_quickly", return_value=False),
        mock.patch.object(submitting, "send", send),
        mock.patch.object(Client, "_ask_once", clone),
        mock.patch("time.time", return_value=NOW),
        mock.patch("gpuyard.cli.terminal.output.say"),
        mock.patch.object(sys, "argv", shlex.split(line)),
        mock.patch("builtins.print"),
        contextlib.suppress(SystemExit),
    ):
        main()
    [body] = sent  # nothing, where it was refused
    return body


@settings(max_examples=150, deadline=None)
@given(FORMS, st.sampled_from(PLACES))
def test_the_line_that_is_shown_submits_what_the_form_posts(form: dict[str, str | bool], place: str) -> None:
    moment = Moment(NOW, ZoneInfo(place))
    reading = parse_form(form, moment)
    if not reading.errors:
        assert run(command_line(form, moment)) == reading.body


@settings(max_examples=100, deadline=None)
@given(FORMS, FORMS, st.sampled_from(PLACES))
def test_the_line_of_a_copy_changes_what_the_form_changes(
    form: dict[str, str | bool], former: dict[str, str | bool], place: str
) -> None:
    moment = Moment(NOW, ZoneInfo(place))
    for one in (form, former):
        one |= {"directory": "/", "hold": False}
    if not parse_form(form, moment).errors and form.get("name") != "none":
        assert run(clone_line("17", form, former, moment)) == clone_body(form, former, moment)


def test_a_line_reads_as_people_write_it() -> None:
    form = {"command": "python train.py --lr 0.1", "gpus": "2", "time": "4h", "name": "my run", "directory": "/data"}
    assert command_line(form, Moment(NOW)) == (
        "gpuyard submit --gpus 2 --time 4h --name 'my run' --chdir /data -- python train.py --lr 0.1"
    )


@pytest.mark.parametrize(("text", "shown"), [("+90m", "+90m"), ("2026-12-24 18:00", "2026-12-24T18:00:00+05:45")])
def test_an_instant_is_shown_with_its_zone_unless_it_is_counted_from_now(text: str, shown: str) -> None:
    line = command_line({"command": "x", "begin": text}, Moment(NOW, ZoneInfo("Asia/Kathmandu")))
    assert f"--begin {shown} " in line
