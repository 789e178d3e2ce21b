"""What is made of samples: who uses what of a GPU, what to expect of others, and when nothing is to be expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuyard.kubernetes.cluster.cluster_nodes import GIB, Node
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.kubernetes.gpu_samples import Outage, Samples, Series
from gpuyard.kubernetes.gpu_usage import GpuUsage, PodUsage
from gpuyard.kubernetes.settings import Settings
from gpuyard.kubernetes.workload_history import WorkloadHistory
from gpuyard.policies.resolver import make_planner

NOW = 1000.0
PLACE = ("n1", 0)


@pytest.fixture
def observed() -> GpuUsage:
    """One node with one GPU of 16 GiB."""
    settings = Settings(admission="usage", prometheus="http://nowhere", gpu_buffer=GIB)
    found = GpuUsage(settings, WorkloadHistory(0.05))
    found.world = ClusterState(make_planner("fcfs"), settings, found.estimate)
    found.world.put_node(Node("n1", gpus=1, gpu_memory=16 * GIB, addresses=frozenset({"10.0.0.1"})), NOW)
    found.world.settle(NOW)
    return found


def pod(name: str, kind: str = "kind", **more: Any) -> Pod:
    usual = Pod(
        f"uid-{name}", "default", name, "gpuyard", "n1", "Running", gpus=1, gpu_memory=12 * GIB, signature=kind,
        indices=(0,), started=NOW, admitted_by="fit",
    )  # fmt: skip
    return replace(usual, **more)


def tell(observed: GpuUsage, one: Pod, now: float = NOW) -> None:
    """A pod is as the API says, first to those who look, as in the scheduler."""
    observed.saw(one, now)
    observed.world.put_pod(one, now)
    observed.world.settle(now)


def sample(observed: GpuUsage, used: float, at: float, count: int = 1, host: str = "n1", **more: Any) -> None:
    """So many samples of so many GiB, a second apart."""
    times = [at + number for number in range(count)]
    usual = Series("memory_used", 0, 0, (host,), times, [used * GIB] * count)
    free = Series("memory_free", 0, 0, (host,), times, [(16 - used) * GIB] * count)
    observed.heard(Samples([replace_series(usual, more), replace_series(free, more)]), at + count)


def replace_series(series: Series, more: dict[str, Any]) -> Series:
    return series._replace(**more)


def peak(observed: GpuUsage, name: str) -> float:
    return round(observed.measures[f"uid-{name}"].peak / GIB, 3)


def expected(observed: GpuUsage) -> dict[str, float]:
    """GiB that jobs are expected to come to."""
    usage = observed.usage(NOW)
    assert usage is not None
    return {job: round(one.memory / GIB, 2) for job, one in usage.peaks.items()}


# -- who uses what --------------------------------------------------------------------------------------


def test_who_is_alone_uses_all_of_it(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 10)
    assert peak(observed, "a") == 4
    assert expected(observed) == {}  # it may grow
    sample(observed, 4, NOW + 11, 15)
    assert expected(observed) == {"default/a": 4.2}


def test_who_grows_is_not_settled(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    for second in range(40):
        sample(observed, 1 + second / 4, NOW + 1 + second)
    assert not observed.measures["uid-a"].settled
    assert expected(observed) == {}


def test_the_last_one_uses_what_the_others_do_not(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 30)
    tell(observed, pod("b", "other", started=NOW + 40), NOW + 40)
    sample(observed, 7, NOW + 41, 30)
    assert (peak(observed, "a"), peak(observed, "b")) == (4, 3)
    assert expected(observed) == {"default/a": 4.2, "default/b": 3.15}


def test_of_two_who_came_at_once_nothing_is_known(observed: GpuUsage) -> None:
    for name in "ab":
        tell(observed, pod(name))
    sample(observed, 7, NOW + 1, 60)
    assert expected(observed) == {}


def test_what_was_seen_before_somebody_came_does_not_count(observed: GpuUsage) -> None:
    sample(observed, 0.5, NOW - 20, 10)
    tell(observed, pod("a"))
    sample(observed, 9, NOW - 5, 5)  # late word of what was before
    assert "uid-a" not in observed.measures
    sample(observed, 4.5, NOW + 1, 25)
    assert peak(observed, "a") == 4  # what the driver has for itself is not the pod's


def test_who_outgrows_what_its_like_used_counts_with_what_it_asked_for(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 30)
    tell(observed, pod("b", started=NOW + 40), NOW + 40)
    sample(observed, 10, NOW + 41, 3)
    assert expected(observed) == {"default/a": 4.2}
    sample(observed, 10, NOW + 44, 25)
    assert expected(observed) == {"default/a": 6.3, "default/b": 6.3}  # now it tells of its kind


# -- what is learned ------------------------------------------------------------------------------------


def end(observed: GpuUsage, one: Pod, at: float) -> None:
    observed.saw(one, at)
    observed.world.put_pod(one, at)


def test_a_run_that_ended_tells_of_its_kind(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 30)
    end(observed, pod("a", phase="Succeeded", ended=NOW + 31), NOW + 31)
    told = observed.learned.of("kind")
    assert (round(told.seconds), round(told.peak / GIB, 2)) == (31, 4)
    assert observed.estimate(pod("b")) == told.seconds
    tell(observed, pod("b", started=NOW + 40), NOW + 40)
    assert expected(observed) == {"default/b": round(told.memory / GIB, 2)}


def test_a_run_that_grew_until_its_end_tells_its_time_only(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    for second in range(10):
        sample(observed, 1 + second, NOW + 1 + second)
    end(observed, pod("a", phase="Succeeded", ended=NOW + 12), NOW + 12)
    told = observed.learned.of("kind")
    assert (round(told.seconds), told.memory) == (12, 0)


def test_one_that_is_deleted_after_long_tells_as_well(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 100)
    observed.gone(pod("a"), NOW + 101)
    assert round(observed.learned.of("kind").peak / GIB, 2) == 4
    tell(observed, pod("b", "other", started=NOW + 200), NOW + 200)
    sample(observed, 4, NOW + 201, 10)
    observed.gone(pod("b", "other", started=NOW + 200), NOW + 211)
    assert observed.learned.of("other").memory == 0  # that was too short to tell


def test_run_times_by_what_the_pod_says_the_settings_the_past_or_the_default(observed: GpuUsage) -> None:
    observed._settings = replace(observed._settings, durations=(("job-*", 50.0),), default_duration=70.0)
    assert observed.estimate(pod("job-1", duration=9.0)) == 9
    assert observed.estimate(pod("job-1")) == 50
    assert observed.estimate(pod("a")) == 70


def test_after_one_was_killed_beside_others_its_kind_is_not_trusted(
    observed: GpuUsage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.kubernetes.gpu_usage.time.time", lambda: NOW + 40)
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 30)
    assert expected(observed) == {"default/a": 4.2}
    tell(observed, pod("a", restarts=1), NOW + 31)
    assert expected(observed) == {"default/a": 4.2}  # by its own fault: it had what it asked for
    tell(observed, pod("a", restarts=2, admitted_by="history"), NOW + 32)
    sample(observed, 4, NOW + 33)
    assert expected(observed) == {}


# -- outages, nodes and crowds --------------------------------------------------------------------------


def test_without_prometheus_nothing_is_known(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, 30)
    observed.heard(Outage("it is gone"), NOW + 31)
    assert observed.usage(NOW) is None
    assert observed.trouble == "it is gone"
    sample(observed, 4, NOW + 32)
    assert expected(observed) == {"default/a": 4.2}


@pytest.mark.parametrize(("host", "known"), [("n1", True), ("10.0.0.1", True), ("10.9.9.9", True), ("other", False)])
def test_nodes_are_known_by_names_addresses_and_the_pods_of_exporters(
    observed: GpuUsage, host: str, known: bool
) -> None:
    observed.world.put_pod(Pod("x", "monitoring", "dcgm", "default-scheduler", "n1", "Running", ip="10.9.9.9"), NOW)
    sample(observed, 4, NOW + 1, host=host)
    assert (PLACE in observed.cards) is known


def test_of_two_names_for_a_metric_the_better_counts(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    sample(observed, 4, NOW + 1, rank=1)
    sample(observed, 5, NOW + 2, rank=0)
    sample(observed, 9, NOW + 3, rank=1)
    assert peak(observed, "a") == 5


def test_sizes_that_only_exporters_tell(observed: GpuUsage) -> None:
    observed.world.put_node(Node("n2", gpus=1), NOW)
    sample(observed, 4, NOW + 1, host="n2")
    sample(observed, 5, NOW + 2, host="n2")
    assert observed.world.memory_of(observed.world.nodes["n2"]) == pytest.approx(16 * GIB, rel=0.1)
    assert observed.world.stale


def test_a_crowd_is_relieved_of_its_last_guest(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    tell(observed, pod("b", "other", admitted_by="history", controlled=True, started=NOW + 1), NOW + 1)
    tell(observed, pod("c", "other", admitted_by="fit", started=NOW + 2), NOW + 2)
    sample(observed, 14, NOW + 3)
    assert observed.crowded == []
    sample(observed, 15.5, NOW + 4)
    ((who, why),) = observed.crowded
    assert who.name == "b"
    assert "others on GPU 0 want what they asked for" in why


def test_nobody_goes_whom_nobody_makes_anew(observed: GpuUsage) -> None:
    tell(observed, pod("a"))
    tell(observed, pod("b", "other", admitted_by="history", started=NOW + 1), NOW + 1)
    sample(observed, 15.5, NOW + 4)
    assert observed.crowded == []


def test_measures() -> None:
    found = PodUsage()
    for used in (1.0, 2.0, 3.0, *[3.01] * 20):
        found.saw(used * GIB)
    assert (found.samples, found.steady, found.settled, found.tells) == (23, 20, True, True)
    idle = PodUsage()
    for _ in range(50):
        idle.saw(10 * 2**20)
    assert not idle.settled  # it has not begun
    assert not idle.tells


def test_a_few_samples_tell_of_a_pod_that_is_known_to_run_briefly() -> None:
    brief, unknown = PodUsage(enough=2.0), PodUsage()
    for n in range(9):
        for one in (brief, unknown):
            one.saw(5 * 2.0**30, at=0.5 * n)
        assert brief.settled == (n >= 5)  # five samples without growth, over more than two seconds
        assert not unknown.settled
    brief.saw(9 * 2.0**30, at=5.0)
    assert not brief.settled
