"""Training on small traces: the same again, interrupted and gone on with, judged, refused where it makes no sense."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.yard import call

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.learn import training
from gpuyard.learn.arena import Arena, heuristic_weights
from gpuyard.learn.evaluation import combined_verdict, evaluate, judge, slowdowns
from gpuyard.learn.trace_windows import Problem, cut, draw, make_problem, predicted_run_times
from gpuyard.learn.training import Recipe, Step, train
from gpuyard.policies.network import BASES
from gpuyard.policies.trained_policy import load
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.native import write as write_trace

pytestmark = pytest.mark.slow

pytest.importorskip("numba", reason="numba is not installed, so there is no kernel to train on")

SMALL = Recipe(generations=4, population=6, windows=8, window=60, warm=10, check_every=2, seed=3)


def jobs(n: int = 900, seed: int = 0) -> Trace:
    """Many short jobs of one GPU and few long ones of several, on a cluster of eight that they keep busy."""
    rng = np.random.default_rng(seed)
    long = rng.random(n) < 0.1
    run = np.where(long, rng.uniform(500, 3000, n), rng.uniform(5, 60, n))
    gpus = np.where(long, rng.integers(2, 8, n), rng.integers(1, 3, n))
    gaps = rng.exponential(float((run * gpus).mean()) / 8 / 1.05, n)
    return Trace.of(np.cumsum(gaps), run, gpus, users=[f"u{u}" for u in rng.integers(0, 5, n)], source="made.csv")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(jobs(), Cluster((8,)))


def test_the_same_seed_gives_the_same_file(problem: Problem, tmp_path: Path) -> None:
    first, steps = train([problem], SMALL, processes=1)
    again, _ = train([problem], SMALL, processes=2)
    other, _ = train([problem], replace(SMALL, seed=4), processes=1)
    assert first.hash == again.hash != other.hash
    assert [step.generation for step in steps] == [1, 2, 3, 4]
    first.save(tmp_path / "a.json")
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert load(str(tmp_path / "a.json")).hash == first.hash


class Planted:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_an_interrupted_training_goes_on(problem: Problem, tmp_path: Path) -> None:
    def stop(step: Step, total: int) -> None:
        if step.generation == 2:
            raise KeyboardInterrupt

    whole, _ = train([problem], SMALL, processes=1)
    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        train([problem], SMALL, processes=1, watch=stop, checkpoint=kept)
    with pytest.raises(UserError, match="is of another training"):
        train([problem], replace(SMALL, window=50), processes=1, checkpoint=kept)
    whole_file = kept.read_bytes()
    odd = [re.sub(rb'"_popsize": \d+', b'"_popsize": ' + size, whole_file) for size in (b"-1", b"1e999", b"1e12")]
    odd += [re.sub(rb'"_mean": \[[^]]*\]', b'"_mean": ' + mean, whole_file) for mean in (b"[]", b"[1e999]", b"3")]
    assert whole_file not in odd
    for planted in (pickle.dumps(Planted(tmp_path / "ran")), b"{}", whole_file.replace(b'"_mean"', b'"_eman"'), *odd):
        kept.write_bytes(planted)
        with pytest.raises(UserError, match="cannot be read, so that training cannot go on"):
            train([problem], SMALL, processes=1, checkpoint=kept)
    assert not (tmp_path / "ran").exists(), "a file is numbers, and runs nothing"
    kept.write_bytes(whole_file)
    rest: list[int] = []
    resumed, _ = train([problem], SMALL, processes=1, watch=lambda s, _: rest.append(s.generation), checkpoint=kept)
    assert rest == [3, 4]
    assert resumed.hash == whole.hash
    assert not kept.exists()


def test_nothing_is_trained_on_what_is_held_out(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    late = problem.trace.submit[problem.held_out.begin]
    seen: list[float] = []
    inner = draw

    def watched(*args: Any, **kwargs: Any) -> Any:
        window = inner(*args, **kwargs)
        known = set(problem.trace.run[: problem.held_out.begin].round(6))
        counted = window.problem.trace.run[window.counted].round(6)
        seen.append(float(np.isin(counted, list(known)).mean()))
        return window

    monkeypatch.setattr(training, "draw", watched)
    train([problem], replace(SMALL, generations=1), processes=1)
    assert seen
    assert min(seen) == 1.0
    assert late > problem.trace.submit[problem.training.end]


def test_windows_are_what_the_simulator_simulates(problem: Problem) -> None:
    window = cut(problem, problem.held_out, 60, 60)[1]
    part = window.problem
    arena = Arena(window, "slowdown")
    for name in BASES:
        options = Options(discipline="easy", engine="replay", estimate="actual")
        result, _ = simulate(replace(part.trace, requested=part.estimates), part.cluster, name, options)
        waits = result.start[window.counted] - part.trace.submit[window.counted]
        np.testing.assert_allclose(arena.waits(heuristic_weights(name)), waits, atol=1e-6)


def test_altered_windows_keep_to_the_cluster(problem: Problem) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        window = draw(problem, problem.training, 60, 10, rng)
        trace = window.problem.trace
        assert (np.diff(trace.submit) >= 0).all()
        assert trace.gpus.max() <= window.problem.cluster.gpus
        assert len(window.counted) == 60


@pytest.fixture(scope="module")
def evaluated(problem: Problem) -> tuple[Any, Any]:
    learned, _ = train([problem], replace(SMALL, generations=8, population=10, windows=24), processes=2)
    return learned, evaluate(learned, problem, seeds=5, size=60, processes=2)


def test_every_heuristic_is_compared_with(evaluated: tuple[Any, Any]) -> None:
    _, found = evaluated
    assert {*BASES, "learned", "tuned linear", "rr", "las"} == set(found.stats)
    assert found.ratio(found.best_heuristic, found.best_heuristic) == 1.0
    assert all(found.ratio(name, found.best_heuristic) >= 1.0 for name in BASES)
    low, high = found.interval("learned", found.best_heuristic)
    assert low <= found.ratio("learned", found.best_heuristic) <= high
    row = found.row("learned")
    assert row["wait_median"] <= row["wait_p99"] <= row["wait_max"]
    assert 0 < row["fairness"] <= 1


def test_the_gate_needs_a_bound_below_one(evaluated: tuple[Any, Any]) -> None:
    learned, found = evaluated
    verdict = judge(found)
    passes = verdict["ratio_high"] < 1 and verdict["mean_ratio"] <= 1 and verdict["p99_ratio"] <= 1.5
    assert verdict["passed"] is passes
    assert bool(verdict["reasons"]) is not passes
    assert learned.with_gate(verdict).deployable is passes
    worse = {**verdict, "passed": False, "ratio_high": 2.0, "reasons": ["no"], "trace": "other"}
    both = combined_verdict([verdict, worse])
    assert (both["passed"], both["ratio_high"]) == (False, 2.0)
    assert "other: no" in both["reasons"]


def test_predictions_know_the_past_only() -> None:
    trace = make_problem(jobs(), Cluster((8,))).trace
    changed = trace.run.copy()
    changed[500:] *= 7.0
    before, after = predicted_run_times(trace), predicted_run_times(replace(trace, run=changed))
    np.testing.assert_array_equal(before[:501], after[:501])
    assert not np.array_equal(before, after)


@pytest.mark.parametrize("count", [1, 12])
def test_a_trace_of_hardly_any_jobs_is_refused(count: int) -> None:
    with pytest.raises(UserError, match=r"that could be learned from; at least \d+ are needed"):
        make_problem(jobs().take(slice(0, count)), Cluster((8,)))


def test_the_published_protocol(traces: Path) -> None:
    from gpuyard.sim.traces import read

    lublin = read(traces / "swf" / "lublin_256.swf")
    small = make_problem(lublin, discipline="easy-shadow")
    learned, _ = train([small], Recipe(hidden=0, generations=2, population=4, windows=4, window=100), processes=2)
    found = slowdowns(learned, lublin)
    assert {name: round(found[name], 2) for name in ("sjf", "f1", "f4")} == {"sjf": 73.31, "f1": 75.07, "f4": 53.64}
    with pytest.raises(UserError, match="the protocol needs"):
        slowdowns(learned, lublin.take(slice(0, 3000)))


BUDGET = ("--generations", "2", "--population", "4", "--windows", "6", "--window", "60", "--network", "linear")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of some jobs, and a policy that was trained on it by the command."""
    path = tmp_path_factory.mktemp("learning")
    write_trace(jobs(), str(path / "jobs.csv"))
    done = call("learn", "train", "jobs.csv", "--gpus", "8", "--out", "p.json", *BUDGET, "--plot", "c.png", cwd=path)
    assert done.code == 0, done.err
    assert "held out, the slowdown is" in done.err
    assert (path / "c.png").read_bytes().startswith(b"\x89PNG")
    return path


def test_what_evaluate_prints(folder: Path) -> None:
    done = call("learn", "evaluate", "p.json", "jobs.csv", "--gpus", "8", "--window", "60", "--json", cwd=folder)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    for row in (found, *found["traces"]):
        assert {"ratio", "ratio_low", "ratio_high", "mean_ratio", "best_heuristic", "gate"} <= set(row)
        assert row["gate"] in ("pass", "fail")
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["gated_ratio"] <= 1.0
    table = call("learn", "evaluate", "p.json", "jobs.csv", "--gpus", "8", "--out", "report", cwd=folder)
    assert table.code == 0, table.err
    assert "tuned linear" in table.out
    assert (folder / "report" / "report.html").is_file()


def test_what_is_recorded_is_in_the_file(folder: Path) -> None:
    before = load(str(folder / "p.json"))
    copy = folder / "copy.json"
    before.save(copy)
    kinds = ("--estimates", "oracle,predicted", "--record")
    done = call("learn", "evaluate", copy, "jobs.csv", "--gpus", "8", *kinds, cwd=folder)
    assert done.code == 0, done.err
    assert len(load(str(copy)).gate["traces"]) == 2
    assert load(str(copy)).hash != before.hash


def test_it_can_be_simulated_and_compared(folder: Path) -> None:
    policies = ("--policies", "learned:p.json,sjf", "--discipline", "easy")
    done = call("compare", "jobs.csv", "--gpus", "8", *policies, "--json", cwd=folder)
    assert done.code == 0, done.err
    assert {row["policy"] for row in json.loads(done.out)["results"]} == {"learned:p.json", "sjf"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("evaluate", "p.json", "one.csv", "--gpus", "8"), "one.csv has one job that could be learned from"),
        (("train", "one.csv", "--gpus", "8"), "give a longer trace"),
        (("evaluate", "broken.json", "jobs.csv"), "is damaged"),
        (("evaluate", "old.json", "jobs.csv"), "was trained on version 0 of the features"),
        (("evaluate", "nobody.json", "jobs.csv"), "there is no trained policy nobody.json"),
        (("train", "jobs.csv", "--gpus", "8", "--objective", "fame"), "there is no objective 'fame'"),
        (("train", "jobs.csv", "--gpus", "8", "--network", "mlp-5"), "--network takes linear"),
        (("train", "jobs.csv", "--nodes", "2x4", "--placement", "fgd"), "looks at single GPUs"),
        (("train", "jobs.csv", "--gpus", "8", "--resume", "--out", "x.json"), "no interrupted training"),
        (("evaluate", "p.json", "jobs.csv", "--protocol", "rlscheduler"), "the protocol needs"),
        (("explain", "broken.json"), "is damaged"),
    ],
)
def test_mistakes_are_told(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    (folder / "one.csv").write_text("job,submit,run,gpus\n1,0,5,1\n")
    whole = (folder / "p.json").read_text()
    (folder / "broken.json").write_text(whole.replace("7", "6", 1))
    (folder / "old.json").write_text(whole.replace('"features": 1', '"features": 0'))
    done = call("learn", *arguments, cwd=folder)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert says in done.err
