"""What `gpuyard top` draws, and what its keys do: the model and the lines, without a terminal."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.api.types import Gpu, Progress
from gpuyard.cli.jobs.top import frames
from gpuyard.cli.jobs.top.daemon_feed import _has
from gpuyard.cli.jobs.top.keys import Command, press
from gpuyard.cli.jobs.top.loop import set_priority, toggle_hold
from gpuyard.cli.jobs.top.view_state import Model, Panel, Part, Row, Snapshot, lay_out, settle
from gpuyard.cli.terminal.styled_lines import ASCII_BARS, text_of
from gpuyard.cli.terminal.text_table import columns
from gpuyard.client.client import Client

GIB = 2**30
NONE = Part()
MODES = ("lists", "confirm", "filter", "panel", "log", "search")
FAR: Progress = {"done": 37.0, "total": 100.0, "fraction": 0.37, "remaining": 21.0}


def row(id: str, state: str = "queued", name: str = "-", reason: str = "", **more: Any) -> Row:
    started = None if state in ("queued", "held") else 900.0
    ended = 960.0 if state not in ("queued", "held", "running") else None
    return Row(id, name, "ada", state, reason, (), 1, None, 880.0, started, ended, 0.0, None)._replace(**more)


def gpu(index: int, state: str = "free", jobs: tuple[str, ...] = (), why: str = "", **more: Any) -> Gpu:
    found = {
        "index": index, "uuid": "", "name": "NVIDIA A100", "state": state, "memory_total": 40 * GIB,
        "memory_used": 10 * GIB, "utilization": 63, "jobs": list(jobs), "why": why, "simulated": False,
    }  # fmt: skip
    return cast(Gpu, found | more)


def part(*rows: Row, offset: int = 0, total: int | None = None) -> Part:
    return Part(rows, offset, len(rows) if total is None else total)


def snapshot(running: Part = NONE, waiting: Part = NONE, ended: Part = NONE, *gpus: Gpu) -> Snapshot:
    parts = {"running": running, "waiting": waiting, "ended": ended, "everyone": running}
    jobs = {"running": running.total, "queued": waiting.total}
    status = {"policy": "priority@easy@pack", "jobs": jobs, "store": {}, "since": "1970-01-01T00:10:00+00:00"}
    return Snapshot(0.0, 1000.0, parts, gpus, False, status)


def busy() -> Snapshot:
    return snapshot(
        part(row("7", "running", "train", gpus=(0,), progress=FAR, end=1021.0), row("8", "running", gpus=(1,))),
        part(row("9", name="next", reason="needs 1 GPU, 0 idle"), row("10", "held", "later", priority=2.5)),
        part(row("6", "failed", "broken", "exit code 3"), row("5", "succeeded")),
        gpu(0, "ours", ("7",)),
        gpu(1, "ours", ("8",)),
        gpu(2, "foreign", why="process 4711 of bob is on it"),
        gpu(3, "unknown", why="it does not answer", memory_used=None, utilization=None),
    )


def shown(found: Snapshot | None = None, width: int = 80, height: int = 24, **more: Any) -> tuple[Model, list[str]]:
    model = Model(user="ada", width=width, height=height, **more)
    if found is not None:
        model.show(found)
    return model, lines(model)


def lines(model: Model) -> list[str]:
    settle(model)
    return [text_of(line) for line in frames.frame(model)]


def test_a_usual_terminal() -> None:
    _, found = shown(busy())
    assert found == [
        " gpuyard  2 running · 2 queued · priority@easy@pack · daemon up 6m 40s",
        " GPU  NAME         STATE    MEMORY              UTIL  JOBS",
        "   0  NVIDIA A100  ours     ━━──────── 10G/40G   63%  7 train",
        "   1  NVIDIA A100  ours     ━━──────── 10G/40G   63%  8",
        "   2  NVIDIA A100  foreign  ━━──────── 10G/40G   63%  process 4711 of bob is o…",
        "   3  NVIDIA A100  unknown  ──────────   0/40G     -  it does not answer",
        " ID  RUNNING 2  USER  GPU     RAN  LEFT  PROGRESS",
        "  7  train      ada   0    1m 40s   21s  ━━━━━━━━━━━─────────────────── 37%",
        "  8  -          ada   1    1m 40s     -  -",
        " ID  WAITING 2  USER  GPUS  PRIO  WAITED  WHY IT WAITS",
        "  9  next       ada   1        0  2m 00s  needs 1 GPU, 0 idle",
        " 10  later      ada   1      2.5  2m 00s  held",
        " ID  ENDED 2    USER  STATE         RAN  AGO  HOW IT ENDED",
        "  6  broken     ada   failed     1m 00s  40s  exit code 3",
        "  5  -          ada   succeeded  1m 00s  40s",
        *[""] * 8,
        " Enter log  e explain  c cancel  h hold  +- priority  / filter  ? help  q quit",
    ]


def test_what_is_left_by_a_limit_is_said_to_be_the_most() -> None:
    rows = [row(id, "running", end=1021.0, by=by) for id, by in (("7", "estimate"), ("8", "limit"))]
    found = [line.split()[-2] for line in shown(snapshot(part(*rows)))[1] if line[:4].strip() in ("7", "8")]
    assert found == ["21s", "<21s"]


def test_a_wide_terminal_shows_longer_names_and_all_keys() -> None:
    name = "a-name-of-nearly-forty-letters-in-all"
    found = busy()
    found = found._replace(parts={**found.parts, "waiting": part(row("9", name=name))})
    _, screen = shown(found, 200, 50)
    assert name in "\n".join(screen)
    assert "u mine  Tab next list  ? help  q quit" in screen[-1]
    assert "process 4711 of bob is on it" in screen[4]


def test_a_tiny_terminal_shows_the_list_that_is_looked_at() -> None:
    model, found = shown(busy(), 20, 5)
    assert found == [" gpuyard  2 running…", " ID  RUNNING 2", "  7  train", "  8  -", " ? help  q quit"]
    press(model, "tab")
    assert lines(model)[1:4] == [" ID  WAITING 2", "  9  next", " 10  later"]


def test_colours_tell_states_apart() -> None:
    model = Model()
    model.show(busy())
    styles = {piece.text.strip(): piece.style for line in frames.frame(model) for piece in line}
    assert [styles[text] for text in ("foreign", "unknown", "ours", "failed", "succeeded", "held")] == [
        "bad", "bad", "busy", "bad", "good", "faint",
    ]  # fmt: skip


def test_simulated_gpus_are_said_to_be_and_show_what_is_booked() -> None:
    simulated = [gpu(n, "ours", ("7",), memory_used=None, utilization=0, simulated=True) for n in range(2)]
    jobs = part(row("7", "running", gpus=(0, 1), gpu_memory=10 * GIB), row("8", "running", gpus=(1,)))
    _, found = shown(snapshot(jobs, Part(), Part(), *simulated)._replace(simulated=True))
    assert found[0].startswith(" gpuyard  2 SIMULATED GPUs")
    assert "10G/40G    0%" in found[2]
    assert "50G/40G    0%" in found[3]  # however it came to that: it does not break the line


def test_gpus_that_are_drained_or_reserved_are_marked() -> None:
    booked: dict[str, Any] = {
        "reservation": "demo",
        "reserved_from": "2000-01-01T00:00:00+00:00",
        "reserved_until": "2999-01-01",
    }
    marked = [gpu(0, "ours", ("7",), drained=True), gpu(1, **booked)]
    _, found = shown(snapshot(part(row("7", "running", gpus=(0,))), Part(), Part(), *marked))
    assert found[2].endswith("7 (drained)")
    assert "reserved: demo, until 2999" in found[3]


def test_a_terminal_that_knows_only_ascii_is_written_nothing_else() -> None:
    model, found = shown(snapshot(part(row("7", "running", "日本" * 20, progress=FAR))))
    screen = [text_of(line) for line in frames.frame(model, ASCII_BARS)]
    assert "\n".join(screen).isascii()
    assert [columns(line) for line in screen] == [columns(line) for line in found]
    assert "#########.............. 37%" in screen[2]


def test_many_gpus_leave_room_for_jobs() -> None:
    _, found = shown(snapshot(part(row("1", "running")), Part(), Part(), *map(gpu, range(64))))
    assert " … and 57 more GPUs, 57 free" in found
    assert any("RUNNING 1" in line for line in found)


def test_nothing_to_show_is_said() -> None:
    assert "asking the daemon ..." in "\n".join(shown()[1])
    assert "no daemon answers at x" in "\n".join(shown(unreachable="no daemon answers at x; start one")[1])
    empty = shown(snapshot())[1]
    assert all(f" {text}" in empty for text in ("nothing runs", "nothing waits", "nothing has ended yet"))
    assert " no job that is meant" in shown(snapshot(), filter="x")[1]


def test_a_daemon_that_goes_away_leaves_the_last_picture() -> None:
    model, _ = shown(busy())
    model.unreachable, model.unreachable_since, model.ticks = "gone", 5.0, 65.0
    found = lines(model)
    assert found[0] == " NO DAEMON for 1m 00s: start one with gpuyard up, and this goes on by itself"
    assert "train" in found[2]
    model.show(busy())
    assert lines(model)[0].startswith(" gpuyard")


def test_a_store_that_fails_is_told() -> None:
    found = busy()
    failing = found._replace(status={**found.status, "store": {"problem": "the disk is full"}})
    assert shown(failing)[1][0] == " STORE FAILING: the disk is full"


words = st.text(st.characters(codec="utf-8"), max_size=30)
rows = st.builds(row, words, st.sampled_from(["queued", "held", "running", "failed"]), words, words)


@given(
    st.lists(rows, max_size=30),
    st.integers(1, 120),
    st.integers(1, 40),
    st.sampled_from(MODES),
    st.lists(
        st.sampled_from(["up", "down", "pageup", "end", "tab", "l", "e", "c", "/", "?", "x", "escape"]), max_size=8
    ),
)
def test_whatever_there_is_fits_the_screen(
    given: list[Row], width: int, height: int, mode: str, keys: list[str]
) -> None:
    model = Model(width=width, height=height, mode=mode, typed="日本")
    found = Part(tuple(given), 0, len(given))
    model.show(snapshot(found, found, found, gpu(0, "foreign", why="\x1b[31m日本"), gpu(1, "ours", ("1",))))
    if mode == "panel":
        model.panel = Panel("日本", [text for row in given for text in (row.name, row.reason)])
    for key in keys:
        press(model, key)
        if model.log is not None:
            model.log.append("\n".join(row.name for row in given).encode())
    settle(model)
    frame = frames.frame(model)
    assert len(frame) == height
    for line in frame:
        text = "".join(piece.text for piece in line)
        assert columns(text) <= width
        assert text.isprintable()


# -- keys -----------------------------------------------------------------------------------------


def many(count: int = 1000, offset: int = 0, known: int = 100) -> Snapshot:
    some = [row(str(n), name=f"job-{n}") for n in range(offset, offset + known)]
    return snapshot(part(row("r", "running")), part(*some, offset=offset, total=count))


def test_arrows_cross_from_list_to_list() -> None:
    model, _ = shown(busy())
    for key, id in (("up", "7"), ("down", "8"), ("j", "9"), ("down", "10"), ("down", "6"), ("k", "10"), ("up", "9")):
        press(model, key)
        selected = model.selected()
        assert selected is not None
        assert selected.id == id, key


def test_pages_and_ends_of_a_long_list() -> None:
    model, _ = shown(many(), focus="waiting")
    height = lay_out(model).lists["waiting"]
    press(model, "pagedown")
    assert model.places["waiting"].index == height
    assert f"WAITING {height + 1}/1,000" in "\n".join(lines(model))
    press(model, "end")
    found = lines(model)
    assert model.places["waiting"].top == 1000 - height
    assert model.selected() is None
    assert "…" in found[-2]  # a row that is still to come
    press(model, "c")
    assert (model.mode, model.message) == ("lists", "no job is selected")
    model.show(many(offset=900))
    assert "job-999" in lines(model)[-2]
    press(model, "home")
    assert (model.places["waiting"].index, lines(model)[3].split()[:1]) == (0, ["ID"])


def test_the_selected_job_stays_selected_where_it_moves() -> None:
    model, _ = shown(many(3, known=3), focus="waiting")
    press(model, "down")
    model.show(snapshot(part(), part(row("2"), row("0"), row("x"), row("1"))))
    selected = model.selected()
    assert selected is not None
    assert (selected.id, model.places["waiting"].index) == ("1", 3)
    model.show(snapshot(part(), part(row("2"))))
    assert model.places["waiting"].index == 0


def test_cancelling_asks_first() -> None:
    model, _ = shown(busy())
    assert press(model, "c") == []
    assert lines(model)[-1] == " Cancel job 7 (train)?  y: yes   n: no"
    assert press(model, "n") == []
    assert press(model, "y") == []
    press(model, "c")
    model.show(snapshot(part(row("99", "running"))))  # whatever is selected by then, it was 7 that was asked about
    assert press(model, "y") == [Command("cancel", "7")]
    assert press(model, "enter") == [Command("log", "99")]


def test_what_cannot_be_done_is_said() -> None:
    model, _ = shown(busy())
    for key, told in (("h", "only a waiting job can be held"), ("+", "only a waiting job can be moved")):
        assert press(model, key) == []
        assert told in model.message
    model.focus = "ended"
    assert press(model, "c") == []
    assert lines(model)[-1] == " job 6 is over"
    assert press(model, "e") == [Command("explain", "6")]
    assert press(model, "x") == press(model, "other") == []


def test_holding_and_priorities() -> None:
    model, _ = shown(busy(), focus="waiting")
    assert press(model, "h") == [Command("hold", "9")]
    assert press(model, "+") == press(model, "=") == [Command("priority", "9", 1.0)]
    assert press(model, "-") == [Command("priority", "9", -1.0)]


def test_a_job_that_was_held_stays_selected_where_it_goes() -> None:
    model, _ = shown(snapshot(part(), part(row("1"), row("2"), row("3"))), focus="waiting")
    assert press(model, "h") == [Command("hold", "1")]
    model.show(snapshot(part(), part(row("2"), row("3"), row("1", "held"))))
    assert press(model, "h") == [Command("hold", "1")]
    model.show(snapshot(part(row("1", "running")), part(row("2"), row("3"))))
    selected = model.selected()
    assert selected is not None
    assert (model.focus, selected.id) == ("running", "1")


def test_a_filter_is_typed_and_dropped() -> None:
    model, _ = shown(busy())
    for key in ("/", "a", "B", "x", "backspace", " "):
        press(model, key)
    assert (model.filter, lines(model)[-1].rstrip()) == ("aB", " Filter: aB")
    press(model, "enter")
    assert "ONLY 'aB'" in lines(model)[0]
    press(model, "u")
    assert "ONLY 'aB', mine" in lines(model)[0]
    press(model, "escape")
    assert (model.filter, model.mine, model.mode) == ("", False, "lists")
    assert _has(row("1", name="Blab"), "LAB")
    assert not _has(row("1", name="Blab"), "x")


@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_quits_from_anywhere(mode: str) -> None:
    model, _ = shown(busy())
    press(model, "l")
    model.mode = mode
    assert Command("quit") in press(model, "interrupt")


class Yard:
    """A client that remembers what was asked."""

    def __init__(self, state: str = "queued") -> None:
        self.to_cancel: list[tuple[Any, ...]] = []
        self.state = state

    def job(self, id: str) -> dict[str, Any]:
        return {"state": self.state, "priority": 2.0}

    def hold(self, id: str) -> None:
        self.to_cancel.append(("hold", id))

    def release(self, id: str) -> None:
        self.to_cancel.append(("release", id))


def test_a_hold_goes_by_what_the_job_is_now() -> None:
    for state, said in (("held", "released"), ("queued", "held")):
        yard = Yard(state)
        assert toggle_hold(cast(Client, yard), "3") == said
        assert yard.to_cancel == [("release" if state == "held" else "hold", "3")]


def test_priorities_are_changed_from_what_they_are() -> None:
    class Editing(Yard):
        def edit(self, id: str, **what: Any) -> None:
            self.to_cancel.append((id, what))

    yard = Editing()
    assert set_priority(cast(Client, yard), "3", -1.0) == 1.0
    assert yard.to_cancel == [("3", {"priority": 1.0})]
