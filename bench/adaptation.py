"""Adaptation against its bars.

    python -m bench.adaptation [--seeds 8] [--record] [--recorded FILE] [--tables FILE]

Growing early against never on 5,000 digits within 2.5 CPU seconds; the shipped agent on MNIST-1D with 200 and 2,000
steps; how far trainings overshoot their deadline; what recording saves; how long learning takes, and what it reaches,
in-sample and where an environment is left out; and the published tables, if they are there. With --record the examples'
environments are recorded anew, which takes half an hour; else examples/adapt/recorded.jsonl.gz is used.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as gpuyard adapt learn does, before numpy is there

import numpy as np

from gpuyard.adapt.agent.decision_trees import Table, read_tables
from gpuyard.adapt.agent.evaluation import Evaluation, evaluate, leave_one_out
from gpuyard.adapt.agent.reinforce import Recipe, learn
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.deciders import Reinforce, make_decider
from gpuyard.adapt.training.run_recording import Recording, grow_local, read_rows, savings
from gpuyard.adapt.training.runner import build
from gpuyard.adapt.training_job import Job, read_job

EXAMPLES = Path(__file__).parent.parent / "examples" / "adapt"
TABLES = Path(os.environ.get("GPUYARD_TRACES", "../shared/traces")) / "adaptation" / "seed_tables.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--recorded", type=Path, default=EXAMPLES / "recorded.jsonl.gz")
    parser.add_argument("--tables", type=Path, default=TABLES)
    options = parser.parse_args()
    _digits(options.seeds)
    _signals()
    _deadlines()
    if options.record:
        with tempfile.TemporaryDirectory() as folder:
            _learning(_recorded(Path(folder) / "recorded.jsonl"))
    else:
        _learning(options.recorded)
    if options.tables.is_file():
        _published(options.tables)
    else:
        print(f"no published tables at {options.tables}")


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.process_time()
    yield
    print(f"  {what}: {time.process_time() - began:.1f} CPU seconds")


def _trained(job: Job) -> tuple[float, Budget, tuple[int, ...]]:
    built = build(job, make_decider(job.decider))
    result = built.trainer.fit()
    return built.tested(), built.trainer.budget, result.actions


def _digits(seeds: int) -> None:
    """Growing early against never, the same seeds of both."""
    job = read_job(EXAMPLES / "mnist5k.toml")
    gains, scores = [], []
    for seed in range(seeds):
        never, early = (_trained(replace(job, decider=who, seed=seed))[0] for who in ("never", "early"))
        gains.append(100 * (early - never))
        scores.append((100 * never, 100 * early))
    mean, error = float(np.mean(gains)), float(np.std(gains, ddof=1) / np.sqrt(seeds))
    low, high = mean - _student(seeds - 1) * error, mean + _student(seeds - 1) * error
    never, early = np.mean(scores, axis=0)
    print(f"MNIST-5k, {job.budget:g} CPU seconds, {seeds} seeds: never {never:.2f} %, early {early:.2f} %")
    print(f"  {mean:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f} (bar: +2.5, above 0)")


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution, by draws that are always the same."""
    return float(np.quantile(np.abs(np.random.default_rng(0).standard_t(freedom, 400_000)), 0.95))


def _signals() -> None:
    """What the shipped agent does with little time and with much."""
    job = read_job(EXAMPLES / "mnist1d.toml")
    for budget in (200.0, 2000.0):
        for who in ("reinforce", "cost-rule"):
            accuracy, _, actions = _trained(replace(job, budget=budget, decider=who))
            print(
                f"MNIST-1D, {budget:g} steps, {who}: actions {actions} (2 is nothing), accuracy {100 * accuracy:.1f} %"
            )


def _deadlines() -> None:
    """How far trainings overshoot: 20 of them, on both clocks."""
    job = read_job(EXAMPLES / "mnist5k.toml")
    worst = -np.inf
    for number in range(20):
        clock, who = ("wall", "cpu")[number % 2], ("never", "early", "cost-rule")[number % 3]
        short = replace(job, clock=clock, decider=who, seed=number, budget=1.0 + 0.1 * number)
        changes = ({"time": 0.1 * short.budget, "change": "up"},)
        budget = _trained(replace(short, gpu_changes=changes))[1]
        worst = max(worst, budget.used / budget.total - 1.0)
    print(
        f"deadlines: of 20 trainings with test, the latest ended {100 * worst:+.2f} % of its budget after it (bar: +1)"
    )


def _recorded(path: Path) -> Path:
    jobs = [read_job(one) for one in sorted((EXAMPLES / "environments").glob("*.toml"))]
    recording = Recording.begun(path, jobs, 6)
    recording.begin()
    grow_local(recording, os.cpu_count() or 1, lambda done, total: None)
    return path


def _learning(path: Path) -> None:
    """What learning reaches on recorded trainings."""
    tables = read_tables([path]).tables
    spent, alone = savings(read_rows(path))
    print(f"{path.name}: {len(tables)} environments; recording was {alone / spent:.2f} times cheaper than one by one")
    with _timed("learning"):
        agent = learn(tables, Recipe())
    _tell("in-sample", evaluate(lambda: Reinforce(agent), tables, bootstrap=0))
    with _timed("leaving out one after the other"):
        left_out = leave_one_out(tables, Recipe(), bootstrap=0)
    _tell("left out", left_out)
    _tell("cost-rule", evaluate(lambda: make_decider("cost-rule"), tables, bootstrap=0))


def _tell(what: str, found: Evaluation) -> None:
    worst = found.worst
    print(f"  {what}: {found.gap_share:.1%} of the gap; least gain {100 * worst.gain:+.2f} points ({worst.table.name})")


def _published(path: Path) -> None:
    """The tables of the study: ranks of greedy agents, and of one that was transferred."""
    tables = {table.name: table for table in read_tables([path]).tables}

    def ranked(agent_of: Table, judged: Table | None = None, prior: object = None) -> object:
        recipe = Recipe() if prior is None else Recipe(temperature=10.0)
        agent = learn((agent_of,), recipe, prior)  # type: ignore[arg-type]
        (standing,) = evaluate(lambda: Reinforce(agent), (judged or agent_of,), bootstrap=0).standings
        print(f"  {agent_of.name}: rank {standing.rank} of {len(standing.table.sequences)}, {standing.accuracy:.4f}")
        return agent

    print("published tables")
    for stage in ("middle", "late"):
        ranked(tables[f"cnn1-{stage}"])
    early = ranked(tables["cnn1-early"])
    print("  from early to late:")
    ranked(tables["cnn1-late"], prior=early)


if __name__ == "__main__":
    main()
