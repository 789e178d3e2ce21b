"""Slowdowns by what is seen of jobs: which stretches count, which evidence, and when there is enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuyard.predict.slowdowns import Finding, Mark, Seen, Slowdowns

ENOUGH = 10.0


class Stage:
    """Jobs that get on at some speed, a look a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slowdowns = Slowdowns(ENOUGH)
        self.done: dict[str, float] = {}
        self.busy: dict[str, tuple[float, int]] = {}
        self.began: dict[str, float] = {}

    def go(self, seconds: int, *jobs: tuple[str, str, float], gpus: dict[str, tuple[int, ...]] | None = None) -> None:
        """Let jobs (id, kind, speed) run together; a speed below 0 is told by nobody, but by how busy the GPU is."""
        for _ in range(seconds):
            self.now += 1.0
            self.slowdowns.look(self.now, list(self._seen(jobs, gpus or {})))

    def _seen(self, jobs: tuple[tuple[str, str, float], ...], gpus: dict[str, tuple[int, ...]]) -> Iterator[Seen]:
        for job, kind, speed in jobs:
            self.began.setdefault(job, self.now)
            mark = None
            if speed > 0:
                self.done[job] = self.done.get(job, 0.0) + speed
                mark = Mark(self.done[job], 1e6, 3, self.now)
            else:
                total, samples = self.busy.get(job, (0.0, 0))
                self.busy[job] = total - speed, samples + 1
            yield Seen(job, 1, kind, gpus.get(job, (0,)), self.began[job], mark, self.busy.get(job), name=f"job {job}")

    def end(self, job: str) -> None:
        self.slowdowns.ended(job, 1, self.now)

    def found(self) -> dict[tuple[str, str], Finding]:
        return {(one.sufferer, one.beside): one for one in self.slowdowns.findings()}


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_alone_and_beside_in_one_attempt(stage: Stage) -> None:
    stage.go(8, ("1", "a", 4.0))
    stage.go(12, ("1", "a", 1.0), ("2", "b", 2.0))
    found = stage.found()
    assert list(found) == [("a", "b")]  # nobody knows how fast b is alone
    assert found["a", "b"].slowdown == pytest.approx(4.0)
    assert found["a", "b"].evidence == "progress"
    assert 10 <= found["a", "b"].seconds <= 12
    stage.go(9, ("2", "b", 3.0))
    assert stage.found()["b", "a"].slowdown == pytest.approx(1.5)
    assert ("a", "b") not in stage.found()  # no news
    stage.go(3, ("3", "a", 1.0), ("2", "b", 2.0))
    assert stage.found()["a", "b"].slowdown == pytest.approx(4.0)  # what is over is remembered


def test_not_before_there_is_enough(stage: Stage) -> None:
    stage.go(8, ("1", "a", 4.0))
    stage.go(9, ("1", "a", 1.0), ("2", "b", 2.0))
    assert stage.found() == {}
    stage.go(5, ("1", "a", 4.0))
    stage.go(5, ("1", "a", 1.0), ("3", "b", 2.0))  # another of the same kind: it adds up
    assert stage.found()["a", "b"].slowdown == pytest.approx(4.0)


def test_against_others_of_its_kind_where_it_was_never_alone(stage: Stage) -> None:
    stage.go(12, ("1", "a", 4.0))
    stage.go(12, ("2", "a", 2.0), ("3", "a", 1.0))
    assert list(stage.found()) == [("a", "a")]
    assert stage.found()["a", "a"].slowdown in (pytest.approx(2.0), pytest.approx(4.0))


def test_three_on_a_gpu_tell_nothing_of_any_pair(stage: Stage) -> None:
    jobs = ("1", "a", 4.0), ("2", "b", 4.0), ("3", "c", 4.0)
    for job in jobs:
        stage.go(12, job)
    stage.go(30, *((job, kind, 1.0) for job, kind, _ in jobs))
    assert stage.found() == {}


def test_on_several_gpus_the_company_is_everybody_there(stage: Stage) -> None:
    gpus = {"1": (0, 1), "2": (0,), "3": (1,)}
    stage.go(8, ("1", "a", 4.0), gpus=gpus)
    stage.go(15, ("1", "a", 1.0), ("2", "b", 1.0), ("3", "c", 1.0), gpus=gpus)
    assert stage.found() == {}
    stage.go(15, ("1", "a", 2.0), ("2", "b", 1.0), gpus=gpus)
    assert stage.found()["a", "b"].slowdown == pytest.approx(2.0)


def test_jobs_on_other_gpus_are_no_company(stage: Stage) -> None:
    stage.go(30, ("1", "a", 4.0), ("2", "b", 4.0), gpus={"2": (1,)})
    assert stage.found() == {}


def test_whose_kind_is_not_known_is_company_all_the_same(stage: Stage) -> None:
    stage.go(8, ("1", "a", 4.0))
    stage.go(20, ("1", "a", 1.0), ("2", "", 1.0))
    assert stage.found() == {}


def test_a_count_that_begins_anew_is_another_stretch(stage: Stage) -> None:
    stage.go(12, ("1", "a", 4.0))
    stage.go(6, ("1", "a", 2.0), ("2", "b", 2.0))
    stage.done["1"] = 0.0
    stage.go(16, ("1", "a", 2.0), ("2", "b", 2.0))
    assert stage.found()["a", "b"].slowdown == pytest.approx(2.0)


def test_how_busy_it_keeps_the_gpu_where_it_tells_nothing(stage: Stage) -> None:
    stage.go(12, ("1", "a", -80.0))
    stage.go(12, ("2", "b", -3.0))
    stage.go(15, ("1", "a", -20.0), ("2", "b", -1.0))
    assert list(stage.found()) == [("a", "b")]  # b is next to idle alone: nothing can be said of it
    found = stage.found()["a", "b"]
    assert found.slowdown == pytest.approx(4.0)
    assert (found.seconds, found.evidence) == (14.0, "utilization")
    assert (found.at, found.jobs, found.names) == (stage.now, ("1", "2"), ("job 1", "job 2"))


def test_whole_runs_where_nothing_else_is_known(stage: Stage) -> None:
    for job in ("1", "2"):
        for _ in range(20):
            stage.now += 1.0
            stage.slowdowns.look(stage.now, [Seen(job, 1, "a", (0,), stage.began.setdefault(job, stage.now))])
        stage.end(job)
    begun = stage.now
    for _ in range(31):
        stage.now += 1.0
        seen = [Seen(job, 1, kind, (0,), begun) for job, kind in (("3", "a"), ("4", "b"))]
        stage.slowdowns.look(stage.now, seen)
    assert stage.found() == {}
    stage.slowdowns.look(stage.now, [])  # it is gone before it is told how it ended
    stage.end("3")
    found = stage.found()["a", "b"]
    assert (found.evidence, found.seconds) == ("run time", 31.0)
    assert found.slowdown == pytest.approx(31 / 19, rel=0.05)


def test_what_a_job_says_counts_more_than_how_busy_it_is(stage: Stage) -> None:
    stage.go(6, ("1", "a", 4.0))
    stage.go(6, ("1", "a", -80.0))
    stage.go(12, ("1", "a", 2.0), ("2", "b", 1.0))
    assert stage.found()["a", "b"].evidence == "progress"
