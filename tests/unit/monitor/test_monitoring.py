"""Parts of `gpuyard monitor` and of a batch's files: rows, edges, summaries, stays of jobs, and process trees."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.yard import until

from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.gpus.simulated import SimulatedGpus, parse_use
from gpuyard.monitor.live import GpuWatch
from gpuyard.monitor.monitored_command import ForeignTree
from gpuyard.monitor.output_folder import HEADER, Row, UsageCsv, rows_of, write_usage_csv
from gpuyard.monitor.plots import comparison_figure
from gpuyard.monitor.sources.simulated_gpus import ModelledGpus
from gpuyard.monitor.summaries import (
    JobRun,
    Stay,
    gpu_summaries,
    numbers,
    overall,
    schedule,
    stays_of,
    used_energy,
    write_allocations,
)
from gpuyard.monitor.tracks import to_edges
from gpuyard.recordings.series import Mark, Recording, Series, Subject
from gpuyard.sim.gantt import gantt

NOON = time.mktime((2026, 11, 16, 12, 0, 0, 0, 0, -1))


def series(metric: str, values: list[float], gpu: int = 0, job: str = "", at: list[float] | None = None) -> Series:
    times = np.arange(len(values), dtype=float) if at is None else np.array(at, dtype=float)
    return Series(Subject(gpu, f"GPU-{gpu}", "A100", job), metric, NOON + times, np.array(values, dtype=float))


def test_rows_are_as_nvidia_smi_writes_them(tmp_path: Path) -> None:
    assert Row(NOON + 1.1239, 0, "A, B", 45.4, 12, 123.456).line() == (
        "0, 2026/11/16 12:00:01.124, A B, 45 %, 12 %, 123.46 W"
    )
    assert Row(NOON, 1, "A100", None, float("nan"), None).line() == (
        "1, 2026/11/16 12:00:00.000, A100, [N/A], [N/A], [N/A]"
    )
    recording = Recording(
        NOON, NOON + 1, [series("utilization", [1, 2]), series("power", [3, np.nan]), series("power", [5], gpu=1)]
    )
    lines = write_usage_csv(tmp_path / "u.csv", recording).read_text().splitlines()
    assert lines == [
        HEADER,
        "0, 2026/11/16 12:00:00.000, A100, 1 %, [N/A], 3.00 W",
        "1, 2026/11/16 12:00:00.000, A100, [N/A], [N/A], 5.00 W",
        "0, 2026/11/16 12:00:01.000, A100, 2 %, [N/A], [N/A]",
    ]
    held = rows_of(recording, held=5.0)
    assert [(row.gpu, row.at - NOON, row.power) for row in held if row.gpu] == [(1, 0.0, 5.0), (1, 1.0, 5.0)]
    assert list(tmp_path.iterdir()) == [tmp_path / "u.csv"]


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("mine")
    with pytest.raises(FileExistsError):
        UsageCsv(tmp_path / "u.csv")


def test_values_hold_to_the_edges_but_not_for_ever() -> None:
    found = Recording(
        NOON, NOON + 100,
        [series("power", [30, 40], at=[0, 12]), series("power", [50], gpu=1, at=[8]),
         series("power", [60], gpu=2, at=[-20]), series("process_memory", [7], job="1", at=[12])],
        [Mark(NOON - 5, "before", NOON - 1), Mark(NOON + 11, "in")],
    )  # fmt: skip
    cut = to_edges(found, NOON + 10, NOON + 20, held=15.0)
    assert [(one.subject.gpu, (one.at - NOON).tolist(), one.mean.tolist()) for one in cut.series] == [
        (0, [10, 12, 20], [30, 40, 40]), (1, [10, 20], [50, 50]), (0, [12], [7]),
    ]  # fmt: skip
    assert [mark.label for mark in cut.marks] == ["in"]


def test_numbers_of_gpus_are_means_over_time() -> None:
    recording = Recording(
        NOON, NOON + 3,
        [series("power", [0, 360, 360, 360], at=[0, 1, 2, 10]), series("utilization", [0, 100, 0], at=[0, 1, 4]),
         series("memory_used", [1, 5, np.nan, 2]), series("process_memory", [1, 3, 2, 0], job="x"),
         series("power", [np.nan], gpu=1)],
    )  # fmt: skip
    first, second = gpu_summaries(recording)
    assert first["energy_wh"] == pytest.approx((180 + 360 * 9) / 3600)
    assert (first["utilization_mean"], first["utilization_max"]) == (50, 100)
    assert (first["peak_memory"], first["peak_process_memory"], first["used"]) == (5, 3, True)
    assert (second["energy_wh"], second["used"]) == (None, False)
    assert used_energy([first, second]) == first["energy_wh"]
    assert used_energy([second]) is None
    assert overall(recording, "utilization") == 50


def test_parts_of_a_gpu_and_gpus_of_several_machines_are_summed_up_apart() -> None:
    def power(uuid: str, host: str, watts: float, job: str = "") -> Series:
        return Series(Subject(0, uuid, "A100", job, host), "power", NOON + np.arange(2.0), np.full(2, watts))

    told = [power("MIG-b", "n1", 20), power("MIG-a", "n1", 10), power("GPU-c", "n2", 30), power("MIG-a", "n1", 9, "7")]
    found = gpu_summaries(Recording(NOON, NOON + 1, told))
    assert [(gpu["host"], gpu["uuid"], gpu["power_max"], gpu["used"]) for gpu in found] == [
        ("n1", "MIG-a", 10, True), ("n1", "MIG-b", 20, False), ("n2", "GPU-c", 30, False),
    ]  # fmt: skip


def iso(second: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOON + second))


def test_stays_of_a_job_that_was_stopped_and_failed_and_goes_on() -> None:
    def event(at: float, kind: str, attempt: int, **more: Any) -> dict[str, Any]:
        return {"at": iso(at), "kind": kind, "attempt": attempt, **more}

    events = [
        event(0, "Submitted", 0), event(1, "Placed", 1, gpus=[0, 1]), event(1, "Started", 1),
        event(3, "Preempted", 1), event(4, "Placed", 2, gpus=[2]), event(4, "Requeued", 2),
        event(5, "Placed", 3, gpus=[1]), event(6, "Started", 3), event(8, "Exited", 3), event(8, "Requeued", 3),
        event(9, "Placed", 4, gpus=[0]), event(9, "Started", 4),
    ]  # fmt: skip
    found = stays_of(events, NOON + 20)
    assert [(stay.gpus, stay.start - NOON, stay.end - NOON) for stay in found] == [
        ((0, 1), 1, 3), ((1,), 6, 8), ((0,), 9, 20),
    ]  # fmt: skip


def went(label: str, submitted: float, *stays: tuple[int, float, float], state: str = "succeeded") -> JobRun:
    job: Any = {"id": label, "state": state, "gpu_count": 1, "user": "ann", "alone": True, "gpu_memory": None}
    own = tuple(Stay((gpu,), begin, end) for gpu, begin, end in stays)
    return JobRun(job, label, submitted, own, own[-1].end if own else None)


def test_numbers_and_a_chart_of_jobs(tmp_path: Path) -> None:
    jobs = [went("a", 0, (0, 0, 4)), went("b", 0, (1, 1, 2), (0, 4, 6), state="failed"), went("never", 0)]
    found = numbers(jobs)
    assert (found["makespan"], found["wait_mean"], found["turnaround_mean"], found["run_mean"]) == (6, 1.5, 5, 3.5)
    assert (found["jobs"], found["completed"], found["succeeded"]) == (3, 2, 2)
    chart = gantt(schedule(jobs, [8.0, 16.0], "fcfs", 0.0)).axes[0]
    assert {text.get_text() for text in chart.texts} == {"a", "b: failed"}
    assert chart.get_title(loc="left") == "fcfs: 2 jobs on 2 GPUs"
    assert write_allocations(tmp_path / "t.csv", jobs, 0.0).read_bytes() == (
        b"time,task,gpu\n0.000,a,0\n1.000,b,1\n4.000,b,0\n"
    )


def test_a_chart_and_numbers_of_no_jobs() -> None:
    assert numbers([])["makespan"] is None
    assert [text.get_text() for text in gantt(schedule([], [8.0], "fcfs", 0.0)).axes[0].texts] == ["no job ran"]


def test_policies_side_by_side_also_where_something_is_not_known() -> None:
    one = {"jobs": 4, "makespan": 7200.0, "wait_mean": 1.0, "turnaround_mean": 2.0, "utilization": 5.0}
    figure = comparison_figure(
        {"fcfs": {**one, "energy_wh": None}, "sjf": {**one, "utilization": None, "energy_wh": None}}
    )
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Makespan (min)", "Mean wait (s)", "Mean turnaround (s)", "Mean GPU utilization (%)",
    ]  # fmt: skip
    assert " not known" in [text.get_text() for text in figure.axes[3].texts]


def test_who_loses_its_parent_still_belongs() -> None:
    script = "setsid sleep 1000 & echo $!; read x"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as shell:
        assert shell.stdout is not None
        orphan, tree = int(shell.stdout.readline()), ForeignTree(shell.pid)
        try:
            tree.look()
            assert tree.has(orphan)
            shell.kill()
            shell.wait()
            tree.look()
            assert tree.has(orphan)
        finally:
            subprocess.run(["kill", "-9", str(orphan)], check=True)

    def gone() -> bool:
        tree.look()
        return not tree.has(orphan)

    until(gone, "the end of the orphan")


class _Gpus:
    """GPUs that say what they are told to."""

    simulated = False
    devices = (Device(0, "GPU-0", "A100", 100), Device(1, "GPU-1", "A100", 100))

    def __init__(self) -> None:
        self.readings = [Reading(0), Reading(1)]

    def read(self) -> list[Reading]:
        return self.readings

    def close(self) -> None:
        """Nothing is held."""


class _Tree:
    def look(self) -> None:
        """Nobody comes or goes."""

    def has(self, pid: int) -> bool:
        return pid == 1


def test_what_is_watched_is_told_apart_from_others(tmp_path: Path) -> None:
    gpus, csv = _Gpus(), UsageCsv(tmp_path / "u.csv")
    watching = GpuWatch(gpus, 1000.0, csv, tree=_Tree(), who="mine")
    gpus.readings = [Reading(0, memory_used=9, processes=(Process(1, 5, utilization=30), Process(2, 4))), Reading(1)]
    watching.look()
    gpus.readings = [Reading(0, lost=True), Reading(1, memory_used=3, processes=(Process(2, 3),))]
    watching.look()
    watching.look(row=True)
    csv.close()
    own = {one.metric: one for one in watching.recording().series if one.subject.job}
    assert {(one.subject.gpu, one.subject.job) for one in own.values()} == {(0, "mine")}
    np.testing.assert_equal(own["process_memory"].mean, [5, np.nan, np.nan])
    np.testing.assert_equal(own["process_utilization"].mean, [30, np.nan, np.nan])
    assert len((tmp_path / "u.csv").read_text().splitlines()) == 1 + 2 * 2


def test_simulated_gpus_follow_what_is_said_of_the_command() -> None:
    now = [0.0]
    gpus = ModelledGpus(SimulatedGpus.parse("1x4G"), parse_use("ramp:1G,9G;util=40"), lambda: now[0])
    assert [(one.memory_used, one.utilization) for one in gpus.read()] == [(0, 0)]
    gpus.occupy(17, "train.py")
    now[0] = 0.5
    assert [(one.memory_used, one.utilization, one.processes[0].pid) for one in gpus.read()] == [(2**30, 40, 17)]
    now[0] = 1.5
    assert gpus.read()[0].memory_used == 4 * 2**30  # no GPU gives more than it has
    gpus.leave()
    assert gpus.read()[0].processes == ()
