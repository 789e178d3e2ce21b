"""The real traces, read in place. Absent traces skip these tests; see `conftest.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.sim.traces import describe, read, write

pytestmark = pytest.mark.slow

NO_RUN = "run time 0 or unknown"


@pytest.mark.parametrize(
    ("path", "format", "jobs", "dropped", "capacity"),
    [
        ("swf/lublin_256.swf", "swf", 10_000, {}, 256),
        ("swf/NASA-iPSC-1993-3.1-cln.swf.gz", "swf", 18_239 - 173, {NO_RUN: 173}, 128),
        ("swf/theta_argonne.swf.gz", "swf", 23_387, {}, 4392),
        ("swf/RICC-2010-2.swf.gz", "swf", 447_794 - 10, {NO_RUN: 10}, 8192),
        ("tiresias/60_job.csv", "tiresias", 60, {}, None),
        ("philly/philly_oct9_20000.csv.gz", "tiresias", 20_000, {}, None),
        ("philly/philly.csv.gz", "philly", 82_247, {}, None),
        ("gavel/max_min_fairness.trace", "gavel", 96, {}, None),
        ("gavel/minimize_makespan.trace", "gavel", 100, {}, None),
        ("batsim/medium_late.json", "batsim", 801, {}, 32),
    ],
)
def test_counts(traces: Path, path: str, format: str, jobs: int, dropped: dict[str, int], capacity: int | None) -> None:
    trace = read(traces / path)
    assert (trace.format, len(trace), trace.dropped, trace.capacity) == (format, jobs, dropped, capacity)
    assert len(set(trace.ids)) == jobs
    assert np.all(trace.run > 0)
    assert np.all(trace.gpus > 0)
    assert capacity is None or trace.gpus.max() <= capacity


def test_lublin_requests_what_it_runs(traces: Path) -> None:
    trace = read(traces / "swf" / "lublin_256.swf")
    assert np.array_equal(trace.requested, trace.run)
    assert (trace.ids[0], trace.submit[0], trace.run[0], trace.gpus[0]) == ("1", 5094, 12072, 16)


def test_theta_stays_in_file_order(traces: Path) -> None:
    trace = read(traces / "swf" / "theta_argonne.swf.gz")
    assert trace.ids[:2] == ["639487", "639448"]
    assert np.sum(np.diff(trace.submit) < 0) > 8000


def test_ricc_requests_differ_from_run_times(traces: Path) -> None:
    trace = read(traces / "swf" / "RICC-2010-2.swf.gz")
    assert (trace.requested[0], trace.run[0], trace.gpus[0], trace.users[0]) == (14400, 222, 80, "1")
    assert describe(trace)["load"] == pytest.approx(0.8886, abs=1e-4)


def test_tiresias_has_no_requests(traces: Path) -> None:
    trace = read(traces / "tiresias" / "60_job.csv")
    assert np.isnan(trace.requested).all()
    assert np.sum(trace.run * trace.gpus) == 26_624


@pytest.mark.parametrize("name", ["a.swf.gz", "a.csv", "a.jsonl"])
def test_nasa_converts_without_loss(traces: Path, tmp_path: Path, name: str) -> None:
    trace = read(traces / "swf" / "NASA-iPSC-1993-3.1-cln.swf.gz")
    write(trace, tmp_path / name)
    again = read(tmp_path / name)
    assert (again.ids, again.users) == (trace.ids, trace.users)
    for column in ("submit", "run", "gpus", "requested"):
        assert np.array_equal(getattr(again, column), getattr(trace, column)), column


def test_philly(traces: Path) -> None:
    trace = read(traces / "philly" / "philly.csv.gz")
    assert trace.ids[0] == "1"
    assert np.sum(np.diff(trace.submit) < 0) > 1000  # the file is not sorted
    assert (trace.submit[0], trace.run[0], trace.labels["vc"][0]) == (1507532515, 66, "11cb48")
    assert len(set(trace.labels["vc"])) == 15


def test_openb(traces: Path) -> None:
    trace = read(traces / "openb" / "openb_pod_list_default.csv")
    shares = (trace.gpus == 1) & (trace.compute < 100)
    assert [int(np.sum(kind)) for kind in (trace.gpus == 0, shares, trace.gpus > 1)] == [1088, 3078, 75]
    bare = read(traces / "openb" / "openb_pod_list_multigpu20.csv")
    assert (len(bare), bare.run.max()) == (8324, 1)


def test_gavel(traces: Path) -> None:
    path = traces / "gavel" / "max_min_fairness.trace"
    assert read(path).run[0] == pytest.approx(13237.67, abs=0.01)
    slow = read(path, "gavel:k80")
    assert slow.run[0] > 4 * read(path).run[0]


def test_pollux_is_refused(traces: Path) -> None:
    with pytest.raises(UserError, match="does not say how long its jobs run"):
        read(traces / "pollux" / "workloads" / "workload-1.csv")
