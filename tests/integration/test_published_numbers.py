"""Other people's simulators, to the digit, and the naive reference on slices of real traces."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tests import reference
from tests.reference import Job

from gpuyard.core.model import Cluster
from gpuyard.sim.select import select
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import read

pytestmark = pytest.mark.slow

NASA, THETA, RICC = "NASA-iPSC-1993-3.1-cln.swf.gz", "theta_argonne.swf.gz", "RICC-2010-2.swf.gz"
SEQUENCES = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)


@pytest.mark.parametrize(
    ("policy", "jct", "wait", "makespan", "preemptions"),
    [
        ("fcfs@strict", 200.82, 22.40, 3335, 0),
        ("fcfs@skip", 190.68, 12.27, 3271, 0),
        ("srtf", 192.12, 13.70, 3271, 4),
    ],
)
def test_tiresias(traces: Path, policy: str, jct: float, wait: float, makespan: float, preemptions: int) -> None:
    _, found = simulate(read(traces / "tiresias" / "60_job.csv"), Cluster((16,)), policy)
    assert (round(found["jct_mean"], 2), round(found["wait_mean"], 2)) == (jct, wait)
    assert (found["makespan"], found["preemptions"], found["completed"]) == (makespan, preemptions, 60)


@pytest.mark.parametrize(
    ("policy", "slowdown"),
    [
        ("fcfs@commit", 7273.77),
        ("sjf@commit", 277.35),
        ("f1@commit", 258.37),
        ("sjf@easy-shadow", 73.31),
        ("f1@easy-shadow", 75.07),
    ],
)
def test_rlscheduler(traces: Path, policy: str, slowdown: float) -> None:
    lublin = read(traces / "swf" / "lublin_256.swf")
    found = [
        simulate(lublin.slice(f"{start}:1024"), Cluster((256,)), policy)[1]["slowdown_mean"] for start in SEQUENCES
    ]
    assert round(float(np.mean(found)), 2) == slowdown


def same_schedules(trace: Trace, jobs: list[Job], gpus: int, policy: str, discipline: str) -> None:
    """Both simulators on the same jobs; those that want too many GPUs are rejected, and unknown to the reference."""
    result, found = simulate(trace, Cluster((gpus,)), policy, Options(discipline=discipline))
    possible = [job for job in jobs if job.gpus <= gpus]
    assert found["rejected"] == len(jobs) - len(possible)
    assert {result.trace.ids[n] for n in result.rejected} == {str(job.id) for job in jobs if job.gpus > gpus}
    assert all(f"the cluster has {gpus}" in reason for reason in result.rejected.values())
    got = {int(result.trace.ids[n]): (result.start[n], result.end[n]) for n in result.completed}
    assert got == reference.simulate(possible, gpus, reference.SCORES[policy], discipline)


@pytest.mark.parametrize(
    ("policy", "discipline"),
    [
        ("fcfs", "strict"), ("sjf", "skip"), ("fcfs", "easy"), ("saf", "easy"), ("fcfs", "conservative"),
        ("f1", "commit"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "start", "count", "gpus"), [(NASA, 3000, 600, 32), (THETA, 5000, 250, 4392), (RICC, 1000, 200, 1024)]
)
def test_real_slices(
    swf: dict[str, tuple[Trace, list[Job]]], name: str, start: int, count: int, gpus: int, policy: str, discipline: str
) -> None:
    trace, jobs = swf[name]
    same_schedules(trace.slice(f"{start}:{count}"), jobs[start : start + count], gpus, policy, discipline)


@pytest.mark.parametrize(("policy", "discipline"), [("wfp3", "strict"), ("unicep", "easy")])
def test_orders_that_change_with_time(swf: dict[str, tuple[Trace, list[Job]]], policy: str, discipline: str) -> None:
    """Without jobs to reject: their arrivals are events too, at which such an order is looked at again."""
    trace, jobs = swf[NASA]
    trace, jobs = trace.slice("3000:600"), jobs[3000:3600]
    same_schedules(
        trace.take(np.flatnonzero(trace.gpus <= 32)), [job for job in jobs if job.gpus <= 32], 32, policy, discipline
    )


@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_preemption_on_nasa(swf: dict[str, tuple[Trace, list[Job]]], policy: str) -> None:
    trace, jobs = swf[NASA]
    result, found = simulate(trace.slice("3000:800"), Cluster((128,)), policy, Options(estimate="actual"))
    want, preemptions = reference.simulate_preemptive(jobs[3000:3800], 128, reference.KEYS[policy])
    assert {int(i): (result.start[n], result.end[n]) for n, i in enumerate(result.trace.ids)} == want
    assert found["preemptions"] == preemptions


@pytest.fixture(scope="module")
def swf(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trace, list[Job]]]:
    """The first lines of the real traces, as either simulator reads them."""
    found: dict[str, tuple[Trace, list[Job]]] = {}
    for name in (NASA, THETA, RICC):
        path = tmp_path_factory.mktemp("swf") / "first.swf"
        with gzip.open(traces / "swf" / name, "rt") as lines:
            path.write_text("".join(islice(lines, 8000)))
        found[name] = read(path), reference.read_swf(path)
    return found


@pytest.mark.parametrize(("policy", "jct", "wait"), [("fcfs", 24783.5166, 246.2083), ("sjf", 24581.6752, 44.3669)])
def test_helios_on_one_virtual_cluster(traces: Path, policy: str, jct: float, wait: float) -> None:
    philly = read(traces / "philly" / "philly.csv.gz")
    jobs = select(philly, ["vc=103959"], "2017-10-01", "2017-12-01")
    assert len(jobs) == 1450
    _, found = simulate(jobs, Cluster((8,) * 8), policy, Options(placement="consolidate"))
    assert (found["jct_mean"], found["wait_mean"]) == (pytest.approx(jct, abs=1e-4), pytest.approx(wait, abs=1e-4))
