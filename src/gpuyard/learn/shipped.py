"""Makes the trained policies that come with gpuyard: `python -m gpuyard.learn.shipped`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.learn.evaluation import Evaluation, evaluate, judge
from gpuyard.learn.trace_windows import Problem, make_problem
from gpuyard.learn.training import Recipe, train
from gpuyard.sim.trace import Trace

HOUR, DAY = 3600.0, 86400.0
JOBS = 24_000


class Shape(NamedTuple):
    nodes: tuple[int, ...]
    users: int
    load: float  # training windows are altered to more and less load
    widths: tuple[float, ...]  # shares of jobs with 1, 2, 4, 8, ... GPUs


SHAPES = {
    "single-box": Shape((8,), 8, 0.95, (0.78, 0.12, 0.07, 0.03)),
    "small-cluster": Shape((8,) * 4, 30, 0.95, (0.72, 0.11, 0.08, 0.07, 0.02)),
}


def workload(shape: Shape, load: float, seed: int, n: int = JOBS) -> Trace:
    rng = np.random.default_rng(seed)
    gpus = rng.choice(2 ** np.arange(len(shape.widths)), n, p=np.array(shape.widths) / sum(shape.widths))
    user = rng.zipf(1.6, n) % shape.users
    try_out = rng.random(n) < 0.55
    run = np.where(try_out, rng.lognormal(np.log(180.0), 1.2, n), rng.lognormal(np.log(1.5 * HOUR), 1.0, n))
    run = np.clip(run * gpus**0.2, 5.0, DAY)
    asked = np.ceil(run * rng.lognormal(0.7, 0.5, n) / HOUR) * HOUR
    rate = load * sum(shape.nodes) / float((run * gpus).mean())
    time = np.cumsum(rng.exponential(1.0 / rate, n))
    # Stretched by the time of day: most comes in the afternoon, little at night.
    submit = time + 0.35 * DAY / (2 * np.pi) * np.sin(2 * np.pi * time / DAY)
    return Trace.of(
        np.maximum.accumulate(submit), run, gpus, requested=np.maximum(asked, run), users=[f"user{u}" for u in user],
        source=f"made-up-load-{load:g}", capacity=sum(shape.nodes),
    )  # fmt: skip


def problem_of(shape: Shape) -> Problem:
    placement = "first" if len(shape.nodes) == 1 else "consolidate"
    return make_problem(workload(shape, shape.load, 0), Cluster(shape.nodes), placement=placement)


def make(name: str, folder: Path, recipe: Recipe | None = None) -> dict[str, Any]:
    """Train and judge a policy, and write its file and its description; returns the verdict."""
    if name not in SHAPES:
        raise UserError(f"there is no shape {name} ({', '.join(SHAPES)})")
    given = problem_of(SHAPES[name])
    # Who takes a policy as it comes has less of a say in how long the longest may wait.
    learned, _ = train([given], recipe or Recipe(longest=1.15))
    found = evaluate(learned, given)
    verdict = judge(found)
    learned.with_gate(verdict).save(folder / f"{name}.json")
    (folder / f"{name}.md").write_text(_description(name, found, verdict))
    return verdict


def _description(name: str, one: Evaluation, verdict: dict[str, Any]) -> str:
    shape = SHAPES[name]
    lines = [
        f"# {name}",
        "",
        f"Trained on made-up jobs for {' + '.join(map(str, shape.nodes))} GPUs, {JOBS:,} jobs "
        f"at a load of {shape.load:g}; judged on the last part, which nothing was chosen by. "
        "Made by `python -m gpuyard.learn.shipped`.",
        "",
        "It passes the gate." if verdict["passed"] else "It does not pass the gate: " + "; ".join(verdict["reasons"]),
        "",
    ]
    best = one.best_heuristic
    low, high = one.interval("learned", best)
    lines += [
        f"## {one.problem.name}: {one.ratio('learned', best):.3f} ({low:.3f} to {high:.3f}) of {best}",
        "",
        "| policy | ratio | mean slowdown | mean wait | p99 wait | longest | fairness |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted((one.row(policy) for policy in one.stats), key=lambda row: float(row["ratio"])):
        hours = " | ".join(f"{row[key] / HOUR:.2f} h" for key in ("wait_mean", "wait_p99", "wait_max"))
        lines.append(f"| {row['policy']} | {row['ratio']:.3f} | {row['mean']:.2f} | {hours} | {row['fairness']:.3f} |")
    lines.append("")
    lines.append("rr and las stop running jobs, at no cost here; they are no match for who stops nobody.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for wanted in sys.argv[1:] or SHAPES:
        outcome = make(wanted, Path(__file__).parents[1] / "policies" / "trained")
        print(wanted, "passes" if outcome["passed"] else outcome["reasons"])
