"""How far jobs are: what they write, and what is read out of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuyard
from gpuyard.cli.terminal.text_table import how_far
from gpuyard.client import progress as reporting
from gpuyard.daemon.jobs.progress_reader import (
    BAR,
    EPOCH,
    SAID,
    Expected,
    Progress,
    ProgressReader,
    Reading,
    estimate,
    expected_end,
    scan,
)
from gpuyard.daemon.store.views import JobView

OUTER = "\router:  33%|###3      | 1/3 [00:10<00:20, 10.00s/it]"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("progress 37/100\n", (SAID, 37, 100)),
        ("Progress: 37.5 / 100\n", (SAID, 37.5, 100)),
        ("progress 37%\n", (SAID, 37, 100)),
        ("12:00:01 INFO progress 3/4, loss 0.3\n", (SAID, 3, 4)),
        ("progress 1/10\nprogress 2/10\rprogress 3/10\r", (SAID, 3, 10)),
        ("progress 5/9\n 50%|#####     | 1/2 [00:01<00:01,  1.00it/s]", (SAID, 5, 9)),
        (" 37%|###7      | 37/100 [00:12<00:21,  2.9it/s]", (BAR, 37, 100, 21)),
        ("\r  0%|          | 0/100 [00:00<?, ?it/s]\r  1%|1| 1/100 [00:01<01:39,  1.00s/it]", (BAR, 1, 100, 99)),
        ("download:  10%|█         | 1.2M/12.0M [1:00:12<9:01:48, 1.1kB/s, x=1]", (BAR, 1.2e6, 12e6, 32508)),
        ("50%|\x1b[32m#####\x1b[0m     | 5/10 [00:05<00:05,  1.00it/s]", (BAR, 5, 10, 5)),
        (OUTER + "\n\rinner:  90%|#########5| 9/10 [00:09<00:01,  1.00it/s]\x1b[A", (BAR, 1, 3, 20)),
        ("Epochs:  30%|###       | 3/10 [00:30<01:10, 10.00s/it]", (BAR, 3, 10, 70)),
        ("Epoch 3/10\n", (EPOCH, 2, 10)),
        ("Epoch [3/10], loss: 0.31\n", (EPOCH, 2, 10)),
        ("epoch 3 of 10\n 99%|#########9| 99/100 [00:12<00:01,  2.9it/s]", (EPOCH, 2, 10)),
        ("Epoch 3/10:  50%|#####     | 5/10 [00:05<00:05,  1.00it/s]", (EPOCH, 2.5, 10)),
    ],
)
def test_what_jobs_print_is_read(text: str, found: tuple[float, ...]) -> None:
    assert scan(text.encode()) == Reading(*found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no progress 100\n",
        "progress 3/4/2026\n",
        "progress 1/0\n",
        "progress 1e400/1e500\n",
        "inprogress 1/2\n",
        "progress 37/1",  # the rest of the line may be still to come
        "progress -3/4\n",
        "Epoch 3: 37%|###7      | 37/100 [00:12<00:21,  2.9it/s]",  # of an epoch, of nobody knows how many
        "Epoch 12/10\n",
        "the epoch 3/10\n",
        "Epoch 3/10/2026\n",
        "37it [00:12,  2.9it/s]",
        " 37%|###7      | 37/100 [00:12<00:2",
        "50%|#####     | 0/0 [00:00<?, ?it/s]",
    ],
)
def test_what_says_nothing_is_not_read(text: str) -> None:
    assert scan(text.encode()) is None


@given(st.binary(max_size=4096), st.integers(0, 10**6), st.integers(1, 10**6))
def test_anything_may_stand_before_a_line_that_says_it(noise: bytes, done: int, total: int) -> None:
    found = scan(noise + f"\nprogress {done}/{total}\n".encode())
    assert found == Reading(SAID, done, total)


@pytest.mark.parametrize("piece", ["1%|", "progress ", "epoch ", "9" * 15 + "/", "\x1b[", "|" + " " * 30, "1%|1|1/1 ["])
def test_no_output_takes_long_to_read(piece: str) -> None:
    """A megabyte here, though only 4 KiB are ever read: what took quadratic time would not come to its end."""
    assert scan((piece * (2**20 // len(piece))).encode()) is None


@given(st.floats(0, 1e12), st.floats(1e-3, 1e12))
def test_what_is_reported_is_read_again(done: float, total: float) -> None:
    found = reporting.amount(f"{done:.15g}/{total:.15g}\n")
    assert found is not None
    assert list(found) == pytest.approx([done, total])


def test_the_remaining_time_goes_down_until_the_next_report() -> None:
    assert estimate(Reading(SAID, 25, 100), 10.0, 0.0) == {
        "done": 25, "total": 100, "fraction": 0.25, "remaining": 30.0,
    }  # fmt: skip
    assert estimate(Reading(SAID, 25, 100), 10.0, 12.0)["remaining"] == 18.0
    assert estimate(Reading(BAR, 25, 100, 21.0), 10.0, 1.0)["remaining"] == 20.0
    assert estimate(Reading(SAID, 0, 100), 10.0, 0.0)["remaining"] is None
    assert estimate(Reading(SAID, 120, 100), 10.0, 0.0) == {
        "done": 120, "total": 100, "fraction": 1.0, "remaining": 0.0,
    }  # fmt: skip


def test_nobody_knows_how_long_a_job_will_take_that_should_have_ended() -> None:
    stalled = Reading(SAID, 3, 10)
    assert estimate(stalled, 3.0, 7.0)["remaining"] == 0.0
    assert estimate(stalled, 3.0, 7.1)["remaining"] is None
    assert estimate(Reading(BAR, 25, 100, 21.0), 10.0, 22.0)["remaining"] is None
    assert estimate(Reading(SAID, 120, 100), 10.0, 99.0)["remaining"] is None
    assert estimate(stalled, 3.0, -0.05)["remaining"] == 7.0, "clocks of files are not exact"


def test_progress_in_a_table() -> None:
    assert how_far(None) == ""
    assert how_far(None, 3600.4, "estimate") == "about 1h 00m left"
    assert how_far(None, 3600.4, "limit") == "1h 00m left at most"
    assert how_far(None, None, "overdue") == "longer than expected"
    third: Progress = {"done": 1, "total": 3, "fraction": 1 / 3, "remaining": 61.7}
    assert how_far(third, 61.7, "progress") == "33%, 1m 02s left"
    assert how_far(third, None, "overdue") == "33%, longer than expected"
    assert how_far({"done": 0, "total": 3, "fraction": 0.0, "remaining": None}) == "0%"


@pytest.mark.parametrize(
    ("work", "remaining", "now", "found"),
    [
        ({"time_limit": 600.0, "estimate": 600.0}, 26.0, 104.0, Expected(130.0, "progress")),
        ({"estimate": 50.0}, None, 104.0, Expected(150.0, "estimate")),
        ({"estimate": 600.0, "time_limit": 600.0, "predicted": (0, 40.0, "")}, None, 104.0, Expected(140.0, "runs")),
        ({"estimate": 86400.0, "estimated": False}, None, 104.0, Expected()),
        ({"estimate": 600.0, "time_limit": 600.0}, None, 104.0, Expected(700.0, "limit")),
        ({"estimate": 2.0}, None, 104.0, Expected(None, "overdue")),
        ({"estimate": 2.0, "time_limit": 600.0}, None, 104.0, Expected(700.0, "limit")),
        ({"estimate": 600.0, "time_limit": 600.0}, 9999.0, 104.0, Expected(700.0, "limit")),  # it is stopped then
        ({"estimate": 2.0, "time_limit": 3.0}, None, 104.0, Expected(None, "overdue")),
    ],
)
def test_a_job_is_expected_to_end_by_what_is_known_best(
    work: dict[str, Any], remaining: float | None, now: float, found: Expected
) -> None:
    """By its progress, else its estimate, else similar runs, else its limit; never in the past."""
    view = JobView(1, "1", "train", "ann", "running", 90.0, 0.0, work, started=100.0)
    far: Progress | None = None
    if remaining is not None:
        far = {"done": 1, "total": 3, "fraction": 1 / 3, "remaining": remaining}
    assert expected_end(view, far, now) == found
    assert expected_end(replace(view, state="queued"), far, now) == Expected()


class Logs:
    """Output that a test writes."""

    def __init__(self) -> None:
        self.text = b""
        self.reads = 0

    def log_size(self, job: str, attempt: int) -> int:
        return len(self.text)

    def read_log(self, job: str, attempt: int, offset: int, size: int) -> tuple[int, bytes]:
        self.reads += 1
        return len(self.text), self.text[offset:][:size]


def view(state: str = "running", attempt: int = 1, started: float = 0.0) -> JobView:
    return JobView(1, "7", "", "", state, 0.0, 0.0, attempt=attempt, started=started)


def fractions(jobs: ProgressReader, *views: JobView, now: float = 100.0) -> list[float | None]:
    found = [jobs.of(view, now) for view in views]
    return [progress and progress["fraction"] for progress in found]


def test_output_is_read_once_and_what_it_said_is_kept(tmp_path: Path) -> None:
    logs = Logs()
    jobs = ProgressReader(logs, tmp_path)
    assert fractions(jobs, view()) == [None]
    logs.text = b"progress 1/4\n"
    assert fractions(jobs, view(), view(), view("queued")) == [0.25, 0.25, None]
    assert fractions(jobs, view(attempt=2)) == [0.25]
    assert logs.reads == 2
    logs.text += b"x" * 5000 + b"\n50%|#| 5/10 [00:05<00:05, 1it/s]"
    assert fractions(jobs, view(attempt=2)) == [0.25]
    assert fractions(jobs, view(attempt=3)) == [0.5]


def test_the_file_counts_more_than_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, path = Logs(), tmp_path / "7" / "progress"
    jobs = ProgressReader(logs, tmp_path)
    path.parent.mkdir()
    monkeypatch.setenv(reporting.VARIABLE, str(path))
    logs.text = b"progress 1/4\n"
    gpuyard.progress(1, 2)
    assert (path.read_text(), os.listdir(path.parent)) == ("1/2\n", ["progress"])
    assert fractions(jobs, view()) == [0.5]
    gpuyard.progress(2, 2)
    assert fractions(jobs, view()) == [1.0]
    path.write_text("nonsense")
    assert fractions(jobs, view()) == [1.0]
    assert logs.reads == 0
    assert fractions(jobs, view(attempt=2, started=os.stat(path).st_mtime + 1)) == [0.25]


def test_small_steps_are_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress"
    monkeypatch.setenv(reporting.VARIABLE, str(path))
    seen = set()
    for step in range(10_000):
        gpuyard.progress(step + 1, 10_000)
        seen.add(path.stat().st_mtime_ns)
    assert path.read_text() == "10000/10000\n"
    assert len(seen) < 1000


def test_a_job_that_cannot_write_its_file_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reporting.VARIABLE, str(tmp_path / "none" / "progress"))
    gpuyard.progress(1, 2)
    monkeypatch.setenv(reporting.VARIABLE, str(tmp_path / "progress"))
    gpuyard.progress(1, 0)
    gpuyard.progress(float("nan"), 1)
    monkeypatch.delenv(reporting.VARIABLE)
    gpuyard.progress(1, 2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("trap", ["pipe", "link", "folder", "large"])
def test_a_file_that_is_a_trap_is_left_alone(tmp_path: Path, trap: str) -> None:
    path = tmp_path / "7" / "progress"
    path.parent.mkdir()
    (tmp_path / "other").write_text("1/2\n")
    match trap:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(tmp_path / "other")
        case "folder":
            path.mkdir()
        case "large":
            path.write_bytes(b"1/2" + b" " * 2**20 + b"x")
    expected = [0.5] if trap == "large" else [None]
    assert fractions(ProgressReader(Logs(), tmp_path), view()) == expected
