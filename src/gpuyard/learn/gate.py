"""The gate: a trained policy may run only if it was shown to be better where it was held out."""

from __future__ import annotations

from typing import Any

from gpuyard.learn.evaluation import LEARNED, Evaluation

P99_LIMIT = 1.5
"""How much longer the longest waits may be than under the best heuristic."""


def judge(found: Evaluation) -> dict[str, Any]:
    """Whether a policy passes, by how it fared; as it stands in its file."""
    best = found.best_heuristic
    low, high = found.interval(LEARNED, best)
    mean, p99 = found.mean_ratio(LEARNED, best), found.p99_ratio(LEARNED, best)
    reasons = []
    if not high < 1.0:
        reasons.append(f"it may be no better than {best}: its ratio is between {low:.3f} and {high:.3f}")
    if not mean <= 1.0:
        reasons.append(f"its mean is {mean:.3f} times that of {best}")
    if not p99 <= P99_LIMIT:
        reasons.append(f"one job in a hundred waits {p99:.2f} times as long as under {best} (at most {P99_LIMIT:g})")
    return {
        "trace": found.problem.name,
        "objective": found.objective,
        "estimate": found.problem.estimate,
        "windows": len(found.windows),
        "ratio": _short(found.ratio(LEARNED, best)),
        "ratio_low": _short(low),
        "ratio_high": _short(high),
        "mean_ratio": _short(mean),
        "p99_ratio": _short(p99),
        "best_heuristic": best,
        "passed": not reasons,
        "reasons": reasons,
    }


def together(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """One verdict of several traces: all must let a policy pass. The numbers are those of the worst."""
    worst = max(verdicts, key=lambda verdict: (not verdict["passed"], verdict["ratio_high"]))
    reasons = [f"{v['trace']}: {reason}" for v in verdicts for reason in v["reasons"]]
    traces = [{k: v[k] for k in ("trace", "ratio", "ratio_high", "mean_ratio", "passed")} for v in verdicts]
    return {**worst, "passed": not reasons, "reasons": reasons, "traces": traces}


def _short(number: float) -> float:
    """As many digits as mean something."""
    return round(number, 6)
