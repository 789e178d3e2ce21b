"""`gpuyard top` in a real terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.terminal import Terminal
from tests.yard import Yard, until

from gpuyard.core.events import Submitted
from gpuyard.core.model import Request
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.spec.work import Work

ENDLESS = ("sleep", "1000")
MANY = 10_000
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Opens `gpuyard top` in a terminal; it says `ended` and the exit code when it has come to its end."""
    made: list[Terminal] = []

    def make(yard: Yard, width: int = 80, height: int = 24, *options: str, **more: str) -> Terminal:
        command = " ".join([sys.executable, "-m", "gpuyard", "top", *options])
        found = Terminal(tmp_path, f"{command}; echo ended $?; stty -a", {**yard.environment, **more}, width, height)
        made.append(found)
        return found

    yield make
    for found in made:
        found.__exit__()


def test_keys_move_and_change_jobs(yard: Yard, terminal: Open) -> None:
    yard.submit("--gpus", "4", "--name", "blocker", "--", *ENDLESS)
    first, second, third = (yard.submit("--name", f"job-{n}", "--", *ENDLESS) for n in "abc")
    screen = terminal(yard)
    screen.shows("4 SIMULATED GPUs", "RUNNING 1", "WAITING 3", "job-c", "needs 1 GPU, 0 idle", "q quit")
    assert "blocker" in screen.selected()
    screen.type("Down", "j")
    until(lambda: "job-b" in screen.selected(), "the second waiting job")
    screen.type("h")
    screen.shows(f"job {second}: held")
    assert yard.client.job(second)["state"] == "held"
    until(lambda: "job-b" in screen.selected(), "the held job, now the last")
    screen.type("h")
    screen.shows(f"job {second}: released")
    assert yard.client.job(second)["state"] == "queued"
    screen.type("Home", "c")
    screen.shows(f"Cancel job {first} (job-a)?")
    screen.type("n")
    screen.shows("not cancelled")
    screen.type("c")
    screen.shows(f"Cancel job {first} (job-a)?")
    screen.type("y")
    screen.shows(f"job {first}: cancelled", "WAITING 2")
    assert yard.client.job(first)["state"] == "cancelled"
    assert yard.client.job(third)["state"] == "queued"
    screen.type("q")
    screen.shows("ended 0", " icanon", " echo ")


def test_a_filter_and_an_explanation(yard: Yard, terminal: Open) -> None:
    yard.submit("--gpus", "4", "--name", "blocker", "--", *ENDLESS)
    [yard.submit("--name", name, "--", *ENDLESS) for name in ("apple", "pear", "pineapple")]
    screen = terminal(yard, 100, 30)
    screen.shows("WAITING 3")
    screen.type("/")
    screen.write("APPLE")
    screen.shows("Filter: APPLE", "WAITING 2", "RUNNING 0", "blocker")  # still on its GPUs
    screen.type("Enter", "Tab", "e")
    screen.shows("is queued: it needs 1 GPU, 0 idle", "these have to end")
    screen.type("q")
    screen.shows("ONLY 'APPLE'")
    screen.type("Escape")
    screen.shows("WAITING 3")
    screen.type("u")
    screen.shows("ONLY mine", "WAITING 3")
    screen.type("?")
    screen.shows("cancel it (asks first)")
    screen.type("q")
    screen.hides("asks first")


def test_a_log_is_followed_and_left(yard: Yard, terminal: Open) -> None:
    code = (
        "seq 1 500; echo middle; seq 501 1000; while [ ! -e go ]; do sleep 0.02; done; rm go; echo at last; sleep 1000"
    )
    yard.submit("--name", "writer", "--", "sh", "-c", code)
    screen = terminal(yard)
    screen.shows("writer")
    screen.type("Enter")
    assert "1000" in screen.shows("following", "1000")[-2]
    (yard.cwd / "go").touch()
    screen.shows("at last")
    screen.type("PageUp")
    screen.shows("line ", "960")
    screen.hides("at last")
    screen.type("/")
    screen.write("middle")
    screen.type("Enter")
    screen.shows("middle", "500", "line 501 of 1,002")
    screen.type("Home")
    assert screen.shows("line 22 of 1,002")[1] == "1"
    screen.type("End")
    screen.shows("at last", "following")
    screen.type("q")
    screen.shows("RUNNING 1", "q quit")


def test_every_size_is_used_and_none_leaves_anything_behind(yard: Yard, terminal: Open) -> None:
    yard.submit("--name", "日本語の名前", "--gpus", "4", "--", *ENDLESS)
    yard.submit("--name", "odd \x1b[31m\tname", "--", *ENDLESS)
    screen = terminal(yard)
    screen.shows("日本語", "odd")
    for width, height in ((200, 50), (20, 5), (40, 12), (80, 24), (3, 2), (132, 43)):
        screen.resize(width, height)

        def fits(width: int = width, height: int = height) -> bool:
            lines = screen.lines()
            full = len(lines) == height and lines[0].startswith(" g")
            return full and (width < 20 or lines[-1].rstrip().endswith("quit"))

        until(fits, f"a screen of {width} x {height}")
    assert [line.split()[0] for line in screen.lines() if line][:3] == ["gpuyard", "GPU", "0"]
    screen.shows("ENDED", "Tab next list")


def test_the_daemon_goes_away_and_comes_back_with_ten_thousand_jobs(own_yard: Yard, terminal: Open) -> None:
    own_yard.serve()
    stays = own_yard.cwd / "stays"
    stays.touch()
    blocker = own_yard.submit("--gpus", "4", "--", "sh", "-c", f"while [ -e {stays} ]; do sleep 0.02; done")
    own_yard.client.job(blocker, wait=30, until="start")
    screen = terminal(own_yard)
    screen.shows("RUNNING 1", "nothing waits")
    own_yard.end()
    screen.shows("NO DAEMON for", "start one with gpuyard up")
    store = Store(own_yard.data_dir / "gpuyard.db")
    work = {"work": Work(("true",), "/", name="flood").to_json()}
    store.append([Record(Submitted(store.last_at, str(2 + n), Request(1)), work) for n in range(MANY)])
    store.close()
    own_yard.serve()
    screen.shows("RUNNING 1", f"WAITING {MANY:,}")
    screen.type("Tab", "End")
    screen.shows(f"WAITING {MANY:,}/{MANY:,}", f"{MANY + 1}  flood")
    screen.type("PageUp")
    screen.hides(f"{MANY + 1}  flood")
    screen.type("Home", "Down")
    screen.shows(f"WAITING 2/{MANY:,}", "3  flood")
    screen.type("h")
    screen.shows("job 3: held")
    screen.type("/")
    screen.write(str(MANY))
    screen.shows("WAITING 1", f"{MANY}  flood")
    screen.type("C-c")
    screen.shows("ended 0")
    own_yard.end()
    stays.unlink()  # nothing else is started without a daemon
    exit_file = own_yard.data_dir / "jobs" / blocker / "1" / "exit"
    until(lambda: exit_file.stat().st_size, "the end of the blocker")
    shutil.rmtree(own_yard.data_dir / "jobs")


def test_no_colour_where_none_is_wanted(yard: Yard, terminal: Open) -> None:
    screen = terminal(yard, 80, 24, NO_COLOR="1")
    screen.shows("4 SIMULATED GPUs", "nothing runs")
    colours = screen.coloured()
    assert not any(f"\x1b[{number}m" in colours for number in (*range(30, 38), *range(40, 48)))


def test_without_a_terminal_there_is_one_frame_or_none(yard: Yard) -> None:
    done = yard("top")
    assert (done.code, done.out) == (2, "")
    assert "use gpuyard ps" in done.err
    assert yard("top", "--interval", "0").code == 2
    yard.submit("--name", "train", "--gpus", "2", "--", *ENDLESS)
    yard.submit("--name", "next", "--gpus", "4", "--", *ENDLESS)
    frame = yard("top", "--once")
    assert (frame.code, frame.err) == (0, "")
    assert all(text in frame.out for text in ("4 SIMULATED GPUs", "RUNNING 1", "WAITING 1", "needs 4 GPUs, 2 idle"))
    assert "quit" not in frame.out
    yard.submit("--name", "task", "--gpus", "4", "--array", "1-5", "--", *ENDLESS)
    frame = yard("top", "--once")
    assert "WAITING 6" in frame.out
    assert sum("needs 4 GPUs, 2 idle" in line or "task" in line for line in frame.out.splitlines()) == 6
