"""The compiled kernel makes the schedules that replay makes: same starts, same ends, same GPUs.

The first of these tests in a process loads the compiled loops, and compiles them where no cache has them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.core.model import Cluster
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import PolicyError, policy
from gpuyard.policies.network import untrained
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.kernel import compiler
from gpuyard.sim.replay import in_rounds, replay
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, choose_engine, simulate
from gpuyard.sim.trace import Trace

pytestmark = pytest.mark.slow

drive = pytest.importorskip("gpuyard.sim.kernel.driver", reason="numba is not installed, so there is no kernel")

PLACEMENTS = ("first", "pack", "spread", "consolidate", "random")
STATIC = ("fcfs", "sjf")
ORDERED = ("saf", "f1", "priority", "edf")
"""Orders like those of STATIC, computed before the run: other numbers, and the same driver."""
MOVING = ("wfp3", "unicep", "fair", "lottery", "random", "wfq", "wfp3:power=-1")
PREEMPTIVE = ("srtf", "srsf", "las:queues=5/20/60", "rr:quantum=3", "rr:quantum=3,arrivals=first", "las:quantum=4")
JUDGED = ("commit", "easy", "easy-shadow", "conservative")
PLANS = (
    *(
        f"{name}@{way}"
        for name in STATIC
        for way in ("strict", "skip", "commit", "easy", "easy-shadow", "conservative")
    ),
    *(f"{name}@{way}" for name in ORDERED for way in ("skip", "easy")),
    *(f"{name}@{way}" for name in MOVING for way in ("strict", "skip")),
    *(f"{name}@{way}" for name in ("wfp3", "fair", "lottery", "wfq") for way in JUDGED),
    *(f"{name}@{way}" for name in PREEMPTIVE for way in ("strict", "skip")),
)
CLUSTERS = ((4, 2, 3), (8,), (4, 4, 4), (2, 2, 8, 1))
CASES = tuple((seed, PLACEMENTS[(seed + more) % len(PLACEMENTS)]) for seed in range(6) for more in (0, 3))
"""Workloads and placements: each placement with two or three workloads. Replay takes a tenth of a second for one."""


def same(ours: Result, theirs: Result) -> None:
    """Whether two schedules are one."""
    np.testing.assert_array_equal(ours.start, theirs.start)
    np.testing.assert_array_equal(ours.end, theirs.end)
    np.testing.assert_array_equal(ours.preemptions, theirs.preemptions)
    assert ours.placements == theirs.placements
    assert ours.rejected == theirs.rejected
    assert segments(ours) == segments(theirs)


def segments(result: Result) -> list[tuple[float, ...]]:
    held = result.segments
    return sorted(zip(*(column.tolist() for column in (held.job, held.gpu, held.start, held.end)), strict=True))


def both(
    trace: Trace, cluster: Cluster, planner: OrderedPlanner, estimates: np.ndarray, cost: float, every: float, seed: int
) -> None:
    """Simulate with either engine, and compare."""
    trace = replace(trace, in_order=True)
    every = 0.0 if planner.stepwise else every
    planner = in_rounds(planner, every)
    fresh = ordered(planner.policy, planner.discipline, planner.placement)
    costs = np.full(len(trace), cost)
    expected = replay(
        trace, cluster, planner, estimates=estimates, restart_cost=costs, round_length=every, seed=seed
    )  # fmt: skip
    assert drive.why_not(trace, cluster, fresh) is None
    same(
        drive.drive(trace, cluster, fresh, estimates=estimates, restart_cost=costs, round_length=every, seed=seed),
        expected,
    )


def workload(seed: int, n: int = 60) -> Trace:
    rng = np.random.default_rng(seed)
    run = rng.integers(1, 40, n) + (rng.random(n) if seed % 3 == 0 else 0.0)
    return Trace.of(
        np.sort(rng.integers(0, int(n * 2.2), n)),
        run,
        np.minimum(rng.integers(1, 9, n), rng.integers(1, 9, n)),
        requested=run * rng.choice([0.5, 1, 3], n),
        preemptible=rng.random(n) < (0.8 if seed % 2 else 1.1),
        priority=rng.integers(0, 4, n),
        users=[str(u) for u in rng.integers(0, 4, n)] if seed % 4 else None,
        weight=rng.choice([1.0, 2.0, 3.0], n),
        tickets=rng.choice([1.0, 2.0, 5.0], n),
        deadline=rng.choice([50.0, 100.0, np.inf], n),
    )


@pytest.mark.parametrize("text", PLANS)
def test_all_placements(text: str) -> None:
    for seed, name in CASES:
        trace, planner = workload(seed), make_planner(text, placement=name)
        estimates = trace.run if seed % 2 else trace.requested
        cost = 1.5 if seed % 2 else 0.0
        both(trace, Cluster(CLUSTERS[seed % 4]), planner, estimates, cost, 7.0 if seed % 3 == 2 else 0.0, seed)


@policy
def looking_around(
    wait: Any, estimate: Any, gpus: Any, opening: Any, shorter: Any, idle: Any, hole: Any, queue: Any, queue_work: Any,
    shadow: Any, capacity: Any, usage_share: Any, suitable: Any,
) -> Any:  # fmt: skip
    """All that can be seen around a job, in one number."""
    room = opening * idle / capacity + shadow * gpus / (1 + suitable) - wait * hole / (1 + queue)
    return estimate * (1 + shorter) + room + queue_work * gpus / 1000 + usage_share * 30


@pytest.mark.parametrize("way", ["strict", "skip", *JUDGED])
def test_policies_that_look_around(way: str) -> None:
    network = untrained("saf", 4, 3.0, np.random.default_rng(1))
    network = replace(network, parameters=np.random.default_rng(2).normal(0.0, 1.0, len(network.parameters)))
    for seed, name in CASES:
        trace, every = workload(seed), 7.0 if seed % 3 == 2 else 0.0
        for one in (looking_around, network.policy()):
            both(trace, Cluster(CLUSTERS[seed % 4]), ordered(one, way, name), trace.requested, 0.0, every, seed)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 9), st.sampled_from([0.5, 1.0, 2.0])),
        min_size=1, max_size=25,
    ),
    st.sampled_from(PLANS), st.sampled_from(PLACEMENTS), st.sampled_from(CLUSTERS), st.integers(0, 3),
)  # fmt: skip
def test_any_small_trace(
    jobs: list[tuple[int, int, int, float]], text: str, name: str, nodes: tuple[int, ...], seed: int
) -> None:
    submit, run, gpus, guess = (np.array(column, dtype=np.float64) for column in zip(*sorted(jobs), strict=True))
    trace = Trace.of(submit, run, gpus.astype(np.int64))
    both(trace, Cluster(nodes), make_planner(text, placement=name), run * guess, float(seed % 2), 0.0, seed)


@pytest.mark.parametrize("text", ["fcfs", "sjf@skip", "saf@easy", "wfp3", "srtf", "las"])
def test_real_jobs(text: str, traces: Path) -> None:
    from gpuyard.sim.traces import read

    trace = read(traces / "philly" / "philly_oct9_1000.csv").by_arrival()
    both(trace, Cluster((8,) * 16), make_planner(text, placement="consolidate"), trace.run, 30.0, 0.0, 0)


@pytest.mark.parametrize("text", ["sjf@easy", "srtf", "las", "wfp3@skip"])
def test_a_busy_month(text: str, traces: Path) -> None:
    from gpuyard.sim.traces import read

    trace = read(traces / "philly" / "philly_oct9_20000.csv.gz").by_arrival().take(slice(0, 4000))
    both(trace, Cluster((8,) * 28), make_planner(text, placement="consolidate"), trace.run, 0.0, 0.0, 0)


def test_every_policy_has_a_driver() -> None:
    trace = workload(1)
    assert [name for name in POLICIES if drive.why_not(trace, Cluster((8,)), make_planner(name)) is not None] == []


def test_what_the_kernel_cannot_do_falls_back_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    half = Trace.of([0, 1], [5, 5], [1, 1], compute=[50, 50])
    _, metrics = simulate(half, Cluster((1,)), "fcfs", Options(engine="kernel"))
    assert metrics["engine"] == "replay"
    assert metrics["makespan"] == 6
    assert "the kernel does not do this (jobs share GPUs)" in capsys.readouterr().err


def test_a_policy_that_numba_cannot_compile_falls_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text("import json\ndef odd(wait, gpus):\n    return gpus * len(json.dumps({}))\n")
    _, metrics = simulate(workload(1), Cluster((8,)), f"{file}:odd", Options(engine="kernel"))
    assert metrics["engine"] == "replay"
    assert "cannot be compiled" in capsys.readouterr().err


def test_a_users_own_policy_is_compiled(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n"
        "def scale(x, by):\n    return x * by\n"
        "def mine(wait, estimate, *, by=2.0):\n    return np.where(wait > 10, -wait, scale(estimate, by))\n"
    )
    trace = workload(1)
    kernel, metrics = simulate(trace, Cluster((8,)), f"{file}:mine:by=3", Options(engine="kernel"))
    expected, _ = simulate(trace, Cluster((8,)), f"{file}:mine:by=3", Options(engine="replay"))
    assert metrics["engine"] == "kernel"
    same(kernel, expected)


def test_not_a_number_is_the_policys_mistake() -> None:
    @policy
    def nothing(wait, estimate):  # type: ignore[no-untyped-def]
        return (wait - wait) / (wait - wait)

    trace = replace(workload(1), in_order=True)
    with pytest.raises(PolicyError, match="returned 'not a number' for job 0"):
        drive.drive(
            trace, Cluster((8,)), ordered(nothing), estimates=trace.run, restart_cost=np.zeros(len(trace))
        )  # fmt: skip


def test_auto_takes_the_kernel_for_large_traces_only() -> None:
    small, large = workload(1), workload(1, 20_000)
    assert choose_engine("auto", small, Cluster((8,)), make_planner("fcfs")) == "replay"
    assert choose_engine("auto", large, Cluster((8,)), make_planner("fcfs")) in ("kernel", "cold")
    assert choose_engine("replay", large, Cluster((8,)), make_planner("fcfs")) == "replay"


def test_every_driver_is_compiled_for_one_signature() -> None:
    """Whatever kinds of numbers users write: another signature would compile a driver again, without a word."""
    trace = workload(1)
    kinds: tuple[Any, ...] = (int, float, np.int64, np.float64)
    for number in kinds:
        for name in POLICIES:
            for discipline in ("skip", "easy") if not make_planner(name).policy.preemptive else (None,):
                options = Options(
                    engine="kernel", discipline=discipline, round_length=number(60), restart_cost=number(30), seed=1
                )
                assert simulate(trace, Cluster((8,)), name, options)[1]["engine"] == "kernel"

        @policy(preemptive=True, quantum=number(60))
        def mine(attained):  # type: ignore[no-untyped-def]
            return attained

        one = replace(trace, in_order=True)
        drive.drive(one, Cluster((8,)), ordered(mine), estimates=one.run, restart_cost=np.zeros(len(one)))
    compiled = [drive.loop(variant) for variant in drive._ON_DISK]
    assert len(compiled) >= 5
    assert [len(one.signatures) for one in compiled] == [1] * len(compiled)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("np.array([1.0, 2.0])", "np.array([2.0, 1.0])"),
        ("np.int64(1)", "np.int64(-1)"),
        ("(1.0, [2.0][0])", "(1.0, -2.0)"),
    ],
)
def test_a_policy_that_reads_another_value_is_compiled_again(before: str, after: str, tmp_path: Path) -> None:
    found: list[Any] = []
    for number, value in enumerate((before, after)):
        file = tmp_path / f"mine{number}.py"
        read = "TABLE" if "int64" in value else "TABLE[1] - TABLE[0]"
        file.write_text(
            f"import numpy as np\nTABLE = {value}\ndef mine(wait, estimate):\n    return estimate * ({read})\n"
        )
        kernel, metrics = simulate(workload(1), Cluster((8,)), f"{file}:mine", Options(engine="kernel"))
        expected, _ = simulate(workload(1), Cluster((8,)), f"{file}:mine", Options(engine="replay"))
        assert metrics["engine"] == "kernel"
        same(kernel, expected)
        found.append(kernel.start)
    assert not np.array_equal(found[0], found[1])


def test_what_reads_unfamiliar_values_is_not_kept_on_disk() -> None:
    class Odd:
        number = 2.0

    odd = Odd()
    table = np.array([1.0])
    assert compiler._fingerprint(lambda x: x * table[0]) is not None
    assert compiler._fingerprint(lambda x: x * odd.number) is None
