"""Results of an evaluation as plain values and sentences: how a trained policy compares, and where it loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuyard.files import csv_text
from gpuyard.learn.arena import OBJECTIVES
from gpuyard.learn.evaluation import LEARNED, PREEMPTIVE, Evaluation
from gpuyard.policies.trained_policy import Learned

CLEARLY = 1.02  # a ratio of costs beyond which one policy is said to beat another
ALIKE = 1.001  # a ratio of costs below which policies are said to cost the same
FEW = 5  # stretches of time below which an interval says little
KNOWN = {
    "actual": "oracle: the true run time of every job",
    "requested": "what users asked for",
    "predicted": "predicted from earlier jobs of the same user",
}  # estimates of run times that policies had
CSV_HEADS = (
    "trace", "estimate", "start", "policy", "cost", "wait_mean", "wait_median", "wait_p99", "wait_max", "fairness",
)  # fmt: skip


class Losses(NamedTuple):
    windows: int
    lost: int  # windows that cost more
    clearly: int  # those that cost more by over 2 %
    worst_start: int  # position in the trace of its worst window
    worst_ratio: float
    worst_cost: float
    worst_other: float  # cost of the best heuristic there
    beaten_by: dict[str, float]  # heuristics that are better by over 2 % over all windows, and the ratio to each
    beaten_in: dict[str, float]  # by heuristic, the share of the windows in which it is better by over 2 %


def losses(found: Evaluation) -> Losses:
    ours, theirs = found.costs(LEARNED), found.costs(found.best_heuristic)
    worst = int(np.argmax(ours / theirs))
    to_each = {name: found.ratio(LEARNED, name) for name in found.heuristics}
    return Losses(
        len(ours),
        int((ours > theirs).sum()),
        int((ours > theirs * CLEARLY).sum()),
        found.windows[worst].start,
        float(ours[worst] / theirs[worst]),
        float(ours[worst]),
        float(theirs[worst]),
        {name: ratio for name, ratio in sorted(to_each.items(), key=lambda item: -item[1]) if ratio > CLEARLY},
        {name: float((ours > found.costs(name) * CLEARLY).mean()) for name in found.stats if name != LEARNED},
    )


def estimate_text(kind: str) -> str:
    if kind.startswith("noisy"):
        return f"true run times with noise ({kind})"
    return KNOWN.get(kind, kind)


def verdict_lines(learned: Learned, found: Evaluation, verdict: dict[str, Any]) -> list[str]:
    """The result on one trace: whether it passes, by how much, and where it loses."""
    best = verdict["best_heuristic"]
    return [
        _passes(verdict) + _alike(found),
        f"Over {_windows(found)}, {OBJECTIVES[found.objective]} under it is {verdict['ratio']:.3f} times that under "
        f"{best}, which of the heuristics that stop nobody turned out to be the best here (geometric mean; with 95% "
        f"confidence from {verdict['ratio_low']:.3f} to {verdict['ratio_high']:.3f}). The ratio of the plain means is "
        f"{verdict['mean_ratio']:.3f}. The wait that one job in a hundred exceeds is {verdict['p99_ratio']:.2f} times "
        f"as long.{_few(found)}",
        f"Beside whichever heuristic was best in each window by itself, which nobody could have known, it costs "
        f"{found.hindsight(LEARNED):.3f} times as much; {best} costs {found.hindsight(best):.3f} times as much.",
        _loses(found, best),
        _acquaintance(learned, found),
    ]


def _passes(verdict: dict[str, Any]) -> str:
    if verdict["passed"]:
        return "It passes the gate."
    return f"It does not pass the gate: {'; '.join(verdict['reasons'])}."


def _alike(found: Evaluation) -> str:
    costs = np.array([found.costs(name) for name in (LEARNED, *found.heuristics)])
    if float((costs.max(axis=0) / costs.min(axis=0)).max()) > ALIKE:
        return ""
    return " All policies that stop nobody cost the same in every window: this trace cannot tell them apart."


def _windows(found: Evaluation) -> str:
    n, stretches = len(found.windows), len(set(found.blocks))
    jobs = len(found.windows[0].counted)
    overlap = f", which overlap and cover {stretches} stretches of time" if n > stretches else ""
    return f"{n} windows of {jobs} jobs each from the held-out part{overlap}"


def _few(found: Evaluation) -> str:
    stretches = len(set(found.blocks))
    if stretches >= FEW:
        return ""
    which = "A single stretch" if stretches == 1 else f"{stretches} stretches"
    return f" {which} of time: too few for that interval to mean much."


def _loses(found: Evaluation, best: str) -> str:
    lost = losses(found)
    if not lost.lost:
        text = f"It costs more than {best} in none of the {lost.windows} windows."
    else:
        text = (
            f"It loses to {best} in {lost.lost} of {lost.windows} windows ({lost.lost / lost.windows:.0%}), in "
            f"{lost.clearly} of them by more than 2%. The worst is the window from job {lost.worst_start:,} on: "
            f"{lost.worst_ratio:.3g} times as much ({lost.worst_cost:,.4g}, {best}: {lost.worst_other:,.4g})."
        )
    if lost.beaten_by:
        others = ", ".join(f"{name} ({ratio:.3f})" for name, ratio in lost.beaten_by.items())
        return f"{text} Over all windows it is worse by more than 2% than: {others}."
    return f"{text} Over all windows no heuristic that stops nobody is better by more than 2%."


def _acquaintance(learned: Learned, found: Evaluation) -> str:
    problem = found.problem
    estimates = [t.get("estimate") for t in learned.training.get("traces", []) if t.get("name") == problem.name]
    made = " Nobody says how large that cluster was, so that one was made to fit." if problem.sized else ""
    if not estimates:
        return f"It was not trained on any part of this trace.{made}"
    text = "It was trained on an earlier part of this trace"
    if problem.estimate in estimates:
        return f"{text}, with such estimates.{made}"
    return f"{text}, but with other estimates ({estimates[0]}).{made}"


def rows(found: Evaluation) -> list[dict[str, Any]]:
    """Rows of all policies, the least ratio first; preemptive ones last."""
    beats = losses(found).beaten_in
    found_rows = [{**found.row(name), "beats": beats.get(name)} for name in found.stats]
    return sorted(found_rows, key=lambda row: (row["policy"] in PREEMPTIVE, row["ratio"]))


def facts(
    learned: Learned, name: str, evaluations: Sequence[Evaluation], verdicts: Sequence[dict[str, Any]], command: str
) -> dict[str, Any]:
    network, training = learned.network, learned.training
    value = {
        "policy": {
            "name": name,
            "hash": learned.hash,
            "base": network.base,
            "hidden": network.hidden,
            "starvation": network.starvation,
            "discipline": learned.discipline,
        },
        "training": {key: training.get(key) for key in ("recipe", "traces", "generations", "best_heuristic", "curve")},
        "evaluations": [
            _evaluation_facts(found, verdict) for found, verdict in zip(evaluations, verdicts, strict=True)
        ],
        "command": command,
    }
    plain: dict[str, Any] = _plain(value)
    return plain


def _evaluation_facts(found: Evaluation, verdict: dict[str, Any]) -> dict[str, Any]:
    problem = found.problem
    return {
        "trace": problem.name,
        "estimate": problem.estimate,
        "objective": found.objective,
        "discipline": problem.discipline,
        "placement": problem.placement,
        "gpus": problem.cluster.gpus,
        "sized": problem.sized,
        "jobs": len(problem.trace),
        "held_out": len(problem.held_out),
        "windows": len(found.windows),
        "window_jobs": len(found.windows[0].counted),
        "stretches": len(set(found.blocks)),
        "verdict": verdict,
        "hindsight": {name: found.hindsight(name) for name in (LEARNED, found.best_heuristic)},
        "losses": losses(found)._asdict(),
        "policies": rows(found),
    }


def windows_csv(evaluations: Sequence[Evaluation]) -> str:
    rows = (
        (found.problem.name, found.problem.estimate, window.start, policy, *(_cell(value) for value in s))
        for found in evaluations
        for policy, stats in found.stats.items()
        for window, s in zip(found.windows, stats, strict=True)
    )
    return csv_text(CSV_HEADS, rows)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _plain(value: Any) -> Any:
    """As JSON: values that are no numbers become null."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
