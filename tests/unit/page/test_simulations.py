"""Comparisons that the page has made: their processes, their numbers, their words."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import pytest

from gpuyard.cli.simulator import comparison_process
from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.page.simulations import trace_sources
from gpuyard.page.simulations.choices import Choices
from gpuyard.page.simulations.runs import Run, RunQueue
from gpuyard.page.simulations.trace_sources import TraceFolder, Uploads, trace_rows
from gpuyard.page.views.simulate_results import cells, summary_text
from gpuyard.sim.compare import compare
from gpuyard.sim.simulate import Options
from gpuyard.sim.workload import generate_poisson

NOW = {"name": "fcfs", "discipline": "easy", "placement": "pack"}
WORKLOAD = Choices(source="workload", jobs="40", gpus="4", policies=("fcfs", "sjf"))


async def nothing() -> IO[bytes] | None:
    return None


def test_the_numbers_are_those_of_compare() -> None:
    told: list[dict[str, Any]] = []
    comparison_process.compare(WORKLOAD.request(), told.append)
    table = next(said["table"] for said in told if "table" in said)
    trace = generate_poisson(0, jobs=40, gpus=4, load=0.9)
    expected = compare(trace, Cluster((4,)), ["fcfs", "sjf"], Options(lenient=True), jobs=1).rows
    for row in (*expected, *table["results"]):
        del row["jobs_per_second"]
    assert table["results"] == expected
    chart = next(said["chart"] for said in told if said.get("number") == 0)
    assert set(chart["gpu"]) == {0, 1, 2, 3}
    assert len(chart["jobs"]) == 40
    assert told[-1] == {"done": True}


def test_what_takes_too_long_is_told_and_the_rest_is_shown() -> None:
    clock = comparison_process._Clock(0.0, lambda said: None)
    clock.at(1.0, 2)  # a policy that is done is done
    with pytest.raises(UserError, match="in time"):
        clock.at(1.5, 2)


@pytest.mark.parametrize(
    "request_",
    [
        {"policies": ["/tmp/evil.py:run"], "setup": {}},
        {"policies": ["evil.py:run"], "setup": {}},
        {"policies": ["fcfs"], "setup": {"nodes": "/etc/passwd"}},
        {"policies": ["fcfs"], "setup": {"trace": "/etc/passwd"}},
        {"policies": ["fcfs"], "setup": {"pools": "/etc/passwd"}},
        {"policies": [], "setup": {}},
    ],
)
def test_no_request_names_a_file(request_: dict[str, Any]) -> None:
    with pytest.raises(UserError) as refused:
        comparison_process.compare({"limit": 1, **request_}, lambda said: None)
    assert "root:" not in str(refused.value)


def test_a_process_simulates_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def simulated() -> Run:
        line = RunQueue()
        run = line.start("ann", WORKLOAD, nothing)
        with pytest.raises(UserError, match="not done yet"):
            line.start("ann", WORKLOAD, nothing)
        assert run.task is not None
        await run.task
        assert line.find("ann", run.id) is run
        assert line.find("bob", run.id) is None
        return run

    run = asyncio.run(simulated())
    assert (run.state, run.error) == ("done", "")
    assert {row["policy"] for row in run.table["results"]} == {"fcfs", "sjf"}
    assert len(json.loads(run.curves)["curves"]) == len(run.charts) == 2
    assert os.listdir(tmp_path) == []


def test_two_at_a_time_and_cancelling_lets_the_next_begin() -> None:
    async def lined_up() -> None:
        line, open_, begun = RunQueue(), asyncio.Event(), []

        def slow(name: str) -> Any:
            async def trace() -> IO[bytes] | None:
                begun.append(name)
                await open_.wait()
                raise UserError("enough of that")

            return trace

        first, second, third = (line.start(name, WORKLOAD, slow(name)) for name in ("ann", "bob", "cas"))
        await asyncio.sleep(0)
        assert [run.state for run in (first, second, third)] == ["running", "running", "waiting"]
        assert (begun, line.ahead(third)) == (["ann", "bob"], 2)
        await line.cancel(second)
        await asyncio.sleep(0)
        assert [run.state for run in (first, second, third)] == ["running", "cancelled", "running"]
        open_.set()
        await asyncio.gather(*(run.task for run in (first, third) if run.task))
        assert (first.state, first.error) == ("failed", "enough of that")
        again = line.start("ann", WORKLOAD, nothing)
        await line.close()
        assert again.state == "cancelled"

    asyncio.run(lined_up())


def test_garbage_gives_a_sentence() -> None:
    async def simulated() -> Run:
        async def trace() -> IO[bytes] | None:
            file = trace_sources.temporary()
            file.write(b"\x00\x01 nothing like a trace\n")
            file.flush()
            return file

        line = RunQueue()
        run = line.start("ann", Choices(source="file", file="junk.swf", policies=("fcfs",)), trace)
        assert run.task is not None
        await run.task
        return run

    run = asyncio.run(simulated())
    assert (run.state, run.error) == ("failed", "junk.swf is not a text file")


def test_uploads_are_for_who_sent_them_and_the_oldest_go() -> None:
    async def sent(text: bytes) -> AsyncIterator[bytes]:
        yield text

    async def several() -> None:
        uploads = Uploads()
        kept = [await uploads.add("ann", f"C:\\files/{n}\n.swf", sent(b"x")) for n in range(5)]
        assert uploads.find("ann", kept[0].id) is None
        assert kept[0].file.closed
        assert uploads.find("bob", kept[-1].id) is None
        found = uploads.find("ann", kept[-1].id)
        assert found is not None
        assert (found.name, found.size) == ("4.swf", 1)
        with pytest.raises(UserError, match="empty"):
            await uploads.add("ann", "none", sent(b""))
        for upload in kept:
            upload.file.close()

    asyncio.run(several())


def test_the_folder_offers_files_and_nothing_beyond(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "secret").write_text("no")
    (tmp_path / "traces" / "a.swf").write_text("yes")
    (tmp_path / "traces" / ".hidden").write_text("no")
    (tmp_path / "traces" / "folder").mkdir()
    folder = TraceFolder(str(tmp_path / "traces"))
    assert folder.names() == ["a.swf"]
    with folder.open("a.swf") as file:
        assert file.read() == b"yes"
    for name in ("../secret", ".hidden", "folder", ""):
        with pytest.raises(UserError):
            folder.open(name)
    assert TraceFolder(str(tmp_path / "nowhere")).names() == []


def test_code_is_kept_only_where_nobody_else_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUYARD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert trace_sources.code_cache() == str(tmp_path / "gpuyard")
    (tmp_path / "gpuyard").chmod(0o777)
    monkeypatch.setattr(trace_sources, "_SYSTEM_CACHE", tmp_path / "system")
    (tmp_path / "system").mkdir()
    assert trace_sources.code_cache() == str(tmp_path / "system" / "page")


def test_the_history_is_a_trace() -> None:
    job = {
        "id": "7", "submitted_at": "2026-11-01T10:00:00.000+00:00", "started_at": "2026-11-01T10:01:00.000+00:00",
        "ended_at": "2026-11-01T10:01:30.250+00:00", "gpu_count": 2, "estimate": None, "priority": 1.0, "user": "ann",
        "gpu_memory": 6 * 2**30, "ran_before": 0.0,
    }  # fmt: skip
    at = 1_793_527_200.0
    assert trace_rows([job]) == [("7", at, 30.25, 2, "", 1.0, "ann", 6 * 2**30, "false")]
    assert trace_rows([{**job, "started_at": None}, {**job, "gpu_count": 0}]) == []
    assert trace_rows([job], begin=at + 1) == []


def row(policy: str, wait: float, **more: Any) -> dict[str, Any]:
    usual = {
        "policy": policy, "discipline": "easy", "placement": "pack", "engine": "replay", "jct_mean": wait + 100.0,
        "wait_mean": wait, "wait_p99": 2 * wait, "fairness": 1.0, "preemptions": 0,
    }  # fmt: skip
    return {**usual, **more}


def test_a_sentence_says_what_it_means() -> None:
    better, now = row("srtf", 60.0, preemptions=3, discipline="skip"), row("fcfs", 600.0)
    assert summary_text([better, now], NOW, "history") == (
        "On your history, srtf would have cut the mean wait from 10m 00s to 1m 00s, against fcfs, which decides in "
        "this yard now. But running jobs are stopped 3 times."
    )
    assert "which decides in this yard now, has the shortest" in summary_text([now, better], NOW, "upload")
    assert summary_text([better], NOW, "upload") == (
        "On this trace, the mean completion time with srtf is 2m 40s, of which 1m 00s is waiting."
    )
    assert "no policy of these is clearly better than fcfs" in summary_text([row("sjf", 600.0), now], NOW, "workload")


def test_the_best_of_a_column_is_marked_where_there_is_one() -> None:
    first, second = cells([row("srtf", 60.0), row("fcfs", 600.0)])
    marks = {"wait_mean": 3, "fairness": 9}
    assert [first["cells"][n]["best"] for n in marks.values()] == [True, False]
    assert [second["cells"][n]["best"] for n in marks.values()] == [False, False]
    assert first["cells"][3]["text"] == "1m 00s"
