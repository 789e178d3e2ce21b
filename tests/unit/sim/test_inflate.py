"""Filling a cluster: who arrives, what is counted, and that remembered scores are the scores."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.loops.sharing import choose_node
from gpuyard.core.model import GIB, Cluster
from gpuyard.core.policy import PLACEMENTS
from gpuyard.errors import UserError
from gpuyard.sim import inflate as module
from gpuyard.sim.inflate import arrivals, inflate
from gpuyard.sim.simulate import simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.trace_plots import write_filling
from gpuyard.sim.traces.nodes import read_cluster


def workload(n: int = 40, seed: int = 3) -> Trace:
    """Jobs of all kinds, those without a GPU too."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([0, 1, 1, 1, 2, 4], n)
    return Trace.of(
        np.arange(n), np.ones(n), gpus, compute=np.where(gpus == 1, rng.choice([20.0, 50.0, 100.0], n), 100.0),
        cpus=rng.choice([1.0, 2.0, 8.0], n), host_memory=rng.choice([1.0, 4.0], n) * GIB,
        gpu_types=rng.choice(["", "", "A100", "A100|V100"], n).tolist(),
    )  # fmt: skip


CLUSTER = Cluster(
    (4, 4, 2, 8), cpus=(32, 16, 16, 64), host_memory=(64 * GIB,) * 4, models=("A100", "V100", "A100", "H100")
)


@pytest.mark.parametrize("factor", [0.2, 0.9, 1.0, 2.5])
def test_arrivals_reach_the_target_and_no_more(factor: float) -> None:
    wanted = np.array([0.0, 0.5, 1.0, 0.25, 2.0, 0.0, 0.25])
    total = wanted.sum()
    order = arrivals(wanted, factor * total, np.random.default_rng(5))
    assert factor * total - 2.0 < wanted[order].sum() <= factor * total
    if factor >= 1:
        assert sorted(order[: len(wanted)].tolist()) == list(range(len(wanted)))
    else:
        assert len(set(order.tolist())) == len(order) < len(wanted)


def test_a_cluster_that_holds_everything_holds_everything() -> None:
    trace = Trace.of([0, 0, 0], [1, 1, 1], [1, 2, 0], compute=[50, 100, 100], cpus=[1, 2, 3])
    for placement in PLACEMENTS:
        found = inflate(trace, Cluster((4,), cpus=(8,)), placement, 2.5 / 4)
        assert (found["arrived"], found["placed"], found["failed"]) == (3, 3, 0), placement
        assert (found["allocation"], found["demand"], found["cpu_allocation"]) == (62.5, 62.5, 75.0)
        assert found["memory_allocation"] is None


def test_jobs_without_a_gpu_take_cpus() -> None:
    """One job takes all CPUs; whichever of the two comes first leaves no room for the other."""
    trace = Trace.of([0, 0], [1, 1], [0, 1], cpus=[8, 1])
    found = [inflate(trace, Cluster((1,), cpus=(8,)), "fgd", 1.0, seed) for seed in range(8)]
    assert {(f["placed"], f["allocation"]) for f in found} == {(1, 0.0), (1, 100.0)}


def test_fragmentation_in_the_end() -> None:
    """Jobs of 60 %: one on each GPU, and 40 % of each are of no use to them."""
    trace = Trace.of([0], [1], [1], compute=[60])
    found = inflate(trace, Cluster((2, 2)), "fgd", 3.0)
    assert (found["allocation"], found["placed"], found["failed"]) == (pytest.approx(60), 4, 16)
    assert found["fragmentation"] == pytest.approx(40)
    assert found["curve"][0] == (0.0, 0.0, 0.0)
    assert found["curve"][-1] == pytest.approx((300, 60, 40))


def test_models_are_kept_apart() -> None:
    trace = Trace.of([0], [1], [1], gpu_types=["A100"])
    found = inflate(trace, Cluster((1, 3), models=("A100", "V100")), "pack", 1.0)
    assert (found["placed"], found["failed"], found["allocation"]) == (1, 3, 25.0)


def test_a_job_wider_than_any_node() -> None:
    found = inflate(Trace.of([0], [1], [3]), Cluster((2, 2)), "fgd", 1.0)
    assert (found["placed"], found["allocation"]) == (1, 75.0)


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_remembered_scores_are_the_scores(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = inflate(workload(), CLUSTER, placement, 1.5, 4)
    monkeypatch.setattr(module._Filling, "_best", lambda yard, row: choose_node(yard.site, row))
    assert inflate(workload(), CLUSTER, placement, 1.5, 4) == remembered
    assert 0 < remembered["failed"] < remembered["arrived"]


def test_seeds() -> None:
    one, again, other = (inflate(workload(), CLUSTER, "random", 1.3, seed) for seed in (1, 1, 2))
    assert one == again
    assert one["curve"] != other["curve"]


@pytest.mark.parametrize(
    ("trace", "placement", "factor", "message"),
    [
        (workload(), "fgd", 0.0, "above 0"),
        (workload(), "fgd", float("nan"), "above 0"),
        (workload(), "fgd", 11.0, "at most 10"),
        (workload(), "fdg", 1.3, "fgd"),
        (Trace.of([0], [1], [0]), "fgd", 1.3, "no job of the trace wants a GPU"),
        (Trace.of([], [], []), "fgd", 1.3, "no job of the trace wants a GPU"),
    ],
)
def test_mistakes(trace: Trace, placement: str, factor: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        inflate(trace, CLUSTER, placement, factor)


def test_files(tmp_path: Path) -> None:
    found = inflate(workload(), CLUSTER, "fgd", 1.3)
    write_filling(found, tmp_path / "out")
    with (tmp_path / "out" / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["allocation"]) == pytest.approx(found["curve"][-1][1], abs=1e-4)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["allocation"] == found["allocation"]
    assert (tmp_path / "out" / "curve.png").stat().st_size > 10_000


def test_ordinary_simulations_leave_jobs_without_gpus_out() -> None:
    trace = workload()
    result, metrics = simulate(trace, CLUSTER, "fcfs@skip@fgd")
    without = int((trace.gpus == 0).sum())
    assert metrics["jobs"] == len(trace) - without
    assert result.trace.dropped == {"no GPU": without}
    assert trace.with_gpus().with_gpus().dropped == {"no GPU": without}


def test_nodes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node,gpus,model,cpus,memory\na,2,A100,8,64G\nb,4,V100,,\n")
    cluster = read_cluster(str(path), 8 * GIB)
    assert cluster == Cluster((2, 4), 8 * GIB, (8.0, 0.0), (64 * GIB, 0.0), ("A100", "V100"))
    assert read_cluster("2x4", GIB) == Cluster((4, 4), GIB)
    path.write_text("node,gpus\na,2\n")
    assert read_cluster(str(path), GIB) == Cluster((2,), GIB)
    with pytest.raises(UserError, match="no file of that name"):
        read_cluster("nodes.cvs", GIB)
