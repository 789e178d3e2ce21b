"""Report on a trained policy as one HTML file, with the numbers and the figures beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gpuyard.errors import UserError
from gpuyard.figures import html_page as html
from gpuyard.figures.html_page import Column
from gpuyard.figures.style import png_bytes, svg_bytes
from gpuyard.files import write_atomically
from gpuyard.learn import policy_figures
from gpuyard.learn.arena import OBJECTIVES
from gpuyard.learn.evaluation import LEARNED, PREEMPTIVE, Evaluation
from gpuyard.learn.evaluation_summary import estimate_text, facts, rows, verdict_lines, windows_csv
from gpuyard.learn.explanation import Explanation, explain
from gpuyard.policies.trained_policy import Learned

KINDS = {"slowdown": "number", "jct": "duration", "wait": "duration"}
"""The kind of an objective's cost, as in `Column`; others are plain numbers."""
NOT_MODELLED = (
    "Jobs take whole GPUs here. A job that shares a GPU in the trace counts as one that takes all of it, and models of "
    "GPUs, CPUs and host memory are not looked at.",
    "Jobs that want more GPUs than the cluster has are left out.",
    "Arrivals are those of the trace: nobody sends fewer jobs because the queue is long.",
    "rr and las may stop running jobs and go on with them later, at no cost and as often as they like. That is another "
    "game, so they are shown apart and the best heuristic is not chosen from them.",
    "The best heuristic of a trace is known only afterwards. A cluster would have to choose one before.",
    "A live queue ranks by the base heuristic where the policy cannot be trusted; here the policy always ranks.",
    "The result is that of these windows of these traces; nothing here says how it would fare elsewhere.",
)
_STYLE = (
    ".passed-note{border-left:4px solid var(--best-ink);padding:.3rem .9rem;margin:1rem 0;background:var(--card)}"
    "li{max-width:85ch;margin:.3rem 0}summary{cursor:pointer;font-weight:600;margin:.8rem 0}"
    "h3{font-size:1rem;margin:1.4rem 0 .5rem}.facts+.scroll{margin-top:1rem}"
)


def write_report(
    learned: Learned,
    name: str,
    evaluations: Sequence[Evaluation],
    verdicts: Sequence[dict[str, Any]],
    out: Path,
    command: str,
) -> Path:
    """Write report.html, evaluation.json, windows.csv and the figures; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    figures = _Figures(out)
    title = f"Trained policy {name}"
    parts = [*_parts(learned, evaluations, verdicts, figures), html.reproduce(command, None)]
    found = json.dumps(facts(learned, name, evaluations, verdicts, command), indent=1, allow_nan=False)
    write_atomically(out / "evaluation.json", f"{found}\n".encode())
    write_atomically(out / "windows.csv", windows_csv(evaluations).encode())
    write_atomically(out / "report.html", html.page(title, parts, _STYLE).encode(errors="replace"))
    return out / "report.html"


class _Figures:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._taken: set[str] = set()

    def add(self, figure: Figure, name: str, caption: str, *, narrow: bool = False) -> str:
        plain, count = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-."), 1
        unique = plain
        while unique in self._taken:
            count += 1
            unique = f"{plain}-{count}"
        self._taken.add(unique)
        write_atomically(self._out / f"{unique}.png", png_bytes(figure))
        return html.image(svg_bytes(figure), caption, narrow=narrow)


def _parts(
    learned: Learned, evaluations: Sequence[Evaluation], verdicts: Sequence[dict[str, Any]], figures: _Figures
) -> Iterator[str]:
    by_trace: dict[str, list[tuple[Evaluation, dict[str, Any]]]] = {}
    for pair in zip(evaluations, verdicts, strict=True):
        by_trace.setdefault(pair[0].problem.trace.source, []).append(pair)
    yield html.lead(escape(lead(verdicts)))
    for pairs in by_trace.values():
        yield html.heading(pairs[0][0].problem.name)
        for found, verdict in pairs:
            yield _verdict(learned, found, verdict, len(pairs) > 1)
        if len(pairs) > 1:
            yield _side_by_side(pairs)
        yield from _details(pairs[0][0], figures)
        for found, _ in pairs[1:]:
            yield f"<details><summary>Estimates {escape(found.problem.estimate)}: policies and figures</summary>"
            yield from _details(found, figures)
            yield "</details>"
    yield from _training(learned, figures)
    yield from _prefers(learned, figures)
    yield html.heading("What this does not tell")
    yield html.bullets(NOT_MODELLED)
    yield html.heading("What the columns mean")
    objectives = sorted({found.objective for found in evaluations})
    yield html.legend(column for objective in objectives for column in columns(objective))


def lead(verdicts: Sequence[dict[str, Any]]) -> str:
    passed = [v for v in verdicts if v["passed"]]
    if not verdicts:
        return "Nobody has looked at how it fares."
    if len(verdicts) == 1:
        v = verdicts[0]
        how = "passes the gate" if v["passed"] else "does not pass the gate"
        return f"It {how}: {_ratio(v)} that of {v['best_heuristic']} on {v['trace']} (estimates {v['estimate']})."
    if len(passed) == len(verdicts):
        worst = max(verdicts, key=lambda v: float(v["ratio_high"]))
        least = f"{worst['trace']}, where {_ratio(worst)} that of {worst['best_heuristic']}"
        return f"It passes the gate in all {len(verdicts)} trials. The least sure is {least}."
    if not passed:
        return f"It does not pass the gate in any of {len(verdicts)} trials."
    failed = ", ".join(f"{v['trace']} (estimates {v['estimate']})" for v in verdicts if not v["passed"])
    return f"It passes the gate in {len(passed)} of {len(verdicts)} trials. It does not on: {failed}."


def _ratio(verdict: dict[str, Any]) -> str:
    ends = f"{verdict['ratio_low']:.3f} to {verdict['ratio_high']:.3f}"
    return f"its cost is {verdict['ratio']:.3f} times ({ends} with 95% confidence)"


def _verdict(learned: Learned, found: Evaluation, verdict: dict[str, Any], several: bool) -> str:
    first, *others = verdict_lines(learned, found, verdict)
    kind = "passed-note" if verdict["passed"] else "failed-note"
    text = f"Estimates {found.problem.estimate} ({estimate_text(found.problem.estimate)})"
    head = f"<p>{escape(text)}</p>" if several else ""
    return (
        f'<div class="{kind}">{head}<p><strong>{escape(first)}</strong></p>'
        + "".join(f"<p>{escape(line)}</p>" for line in others)
        + "</div>"
    )


def _side_by_side(pairs: Sequence[tuple[Evaluation, dict[str, Any]]]) -> str:
    heads = (
        "Estimates", "Gate", "Ratio", "95% from", "to", "Ratio of means", "Ratio of p99 waits", "Best heuristic",
        "Its cost", "Cost of learned",
    )  # fmt: skip
    lines = []
    for found, v in pairs:
        kind = KINDS.get(found.objective, "number")
        costs = [html.text_of(float(found.row(n)["geometric_mean"]), kind) for n in (v["best_heuristic"], LEARNED)]
        numbers = [f"{v[key]:.3f}" for key in ("ratio", "ratio_low", "ratio_high", "mean_ratio", "p99_ratio")]
        gate = "passes" if v["passed"] else "does not pass"
        lines.append((found.problem.estimate, gate, *numbers, v["best_heuristic"], *costs))
    note = "What policies are told of run times. The best heuristic, and so what a ratio is relative to, may differ."
    return f"{html.soft(note)}{html.text_table(heads, lines)}"


def columns(objective: str) -> tuple[Column, ...]:
    kind = KINDS.get(objective, "number")
    what = OBJECTIVES[objective]
    return (
        Column("mean", "Cost, mean", f"The mean over windows of {what}.", "low", kind),
        Column("geometric_mean", "Cost, geometric", f"The geometric mean over windows of {what}.", "low", kind),
        Column("ratio", "Ratio", "Its cost relative to the best heuristic's: geometric mean over windows.", "low"),
        Column("beats", "Beats learned", "Windows where learned costs over 2% more.", "", "percent"),
        Column("wait_mean", "Wait mean", "Mean over windows of the mean wait.", "low", "duration"),
        Column("wait_median", "Wait median", "Median over windows of the median wait.", "low", "duration"),
        Column("wait_p99", "Wait p99", "Mean over windows of the wait that one job in 100 exceeds.", "low", "duration"),
        Column("wait_max", "Wait max", "The longest wait of any job in any window.", "low", "duration"),
        Column("fairness", "Fairness", "How evenly users were served: 1 is even; where the trace names users.", "high"),
    )  # fmt: skip


def _details(found: Evaluation, figures: _Figures) -> Iterator[str]:
    problem, policies = found.problem, rows(found)
    yield html.facts(
        {
            "estimates": estimate_text(problem.estimate), "cluster": _cluster(found),
            "discipline": problem.discipline, "placement": problem.placement, "jobs": len(problem.trace),
            "of them held out": len(problem.held_out), "windows": len(found.windows), "load": f"{problem.load:.2f}",
        }
    )  # fmt: skip
    shown = [c for c in columns(found.objective) if any(row.get(c.key) is not None for row in policies)]
    yield html.heading("Policies that stop nobody", 3)
    yield html.metric_table(shown, [row for row in policies if row["policy"] not in PREEMPTIVE], "ratio")
    if apart := [row for row in policies if row["policy"] in PREEMPTIVE]:
        yield html.heading("Policies that stop running jobs, at no cost: another game", 3)
        yield html.metric_table(shown, apart, "ratio")
    name = f"{problem.name}-{problem.estimate}"
    best = found.best_heuristic
    yield figures.add(
        policy_figures.ratios(found),
        f"ratios-{name}",
        f"Every policy's cost relative to {best}, the best heuristic here; an arrow: further.",
    )
    caption = (
        f"Where it loses: the cost of each window under learned and under {best}. Windows of several seeds overlap."
    )
    yield figures.add(policy_figures.paired(found), f"windows-{name}", caption, narrow=True)
    yield figures.add(
        policy_figures.waits(found), f"waits-{name}",
        "Waits: the median of the windows' medians, the means of their means and 99th percentiles, the longest of all.",
    )  # fmt: skip


def _cluster(found: Evaluation) -> str:
    nodes = found.problem.cluster.nodes
    return f"{sum(nodes):,} GPUs on {len(nodes):,} node{'' if len(nodes) == 1 else 's'}"


def _training(learned: Learned, figures: _Figures) -> Iterator[str]:
    network, training = learned.network, learned.training
    yield html.heading("How it was trained")
    added = f"a network of {network.hidden} hidden units" if network.hidden else "a linear function"
    text = (
        f"It is {network.base} and {added} ({len(network.parameters)} numbers) that is added to it, for the discipline "
        f"{learned.discipline}."
    )
    if training.get("curve"):
        text += (
            f" These were searched by evolution over {training.get('generations')} generations. What did best on other "
            "windows was kept (the next part of each trace, and altered ones from there and before), which may be what "
            "the search began with."
        )
    yield f"<p>{escape(text)}</p>"
    if best := training.get("best_heuristic"):
        yield f"<p>{escape(f'On the windows that it was trained on, {best} was the best heuristic.')}</p>"
    yield html.facts(training.get("recipe") or {})
    traces = training.get("traces") or []
    keys = ("name", "jobs", "trained_on", "gpus", "estimate")
    if traces:
        heads = ("Trace", "Jobs", "Trained on the first", "GPUs", "Estimates")
        yield html.text_table(heads, [[html.fact_text(t.get(key)) for key in keys] for t in traces])
    if training.get("curve"):
        caption = (
            "The kept one is the best check by cost and long waits together, so not always that of the least ratio."
        )
        yield figures.add(policy_figures.learning_curve(training), "learning-curve", caption)


def _prefers(learned: Learned, figures: _Figures) -> Iterator[str]:
    try:
        found: Explanation = explain(learned)
    except UserError:  # its file does not say what a typical job is
        return
    yield html.heading("What it prefers")
    yield html.bullets(found.summary)
    caption = (
        "The score as one quantity changes while all others stay as in a typical job of its training. Quantities that "
        "go together in a queue are moved one at a time, so the curves do not say what happens if both change."
    )
    yield figures.add(policy_figures.preferences(found), "preferences", caption)
