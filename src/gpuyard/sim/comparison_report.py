"""A comparison of policies as one HTML file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gpuyard.core.model import Cluster
from gpuyard.figures import html_page as html
from gpuyard.figures.html_page import Column
from gpuyard.figures.style import png_bytes, svg_bytes
from gpuyard.files import write_atomically
from gpuyard.sim import schedule_plots
from gpuyard.sim.compare import FEWEST, Comparison
from gpuyard.sim.summary import Groups, Summary, baseline
from gpuyard.units import format_duration, format_interval, format_size

COLUMNS = (
    Column(
        "jct_mean", "JCT mean",
        "Job completion time: from submit to end, averaged over the completed jobs.", "low", "duration",
    ),
    Column(
        "jct_mean_diff", "vs best",
        "How much longer the mean completion time is than under the best policy, run by run.", "", "duration",
    ),
    Column("jct_median", "JCT median", "Half of the jobs complete within this time.", "low", "duration"),
    Column("jct_p95", "JCT p95", "95% of the jobs complete within this time.", "low", "duration"),
    Column("jct_p99", "JCT p99", "99% of the jobs complete within this time.", "low", "duration"),
    Column("wait_mean", "Wait mean", "Time that a job spends waiting, on average.", "low", "duration"),
    Column("wait_p99", "Wait p99", "99% of the jobs wait no longer than this.", "low", "duration"),
    Column("wait_max", "Wait max", "The longest wait of any job.", "low", "duration"),
    Column(
        "slowdown_mean", "Slowdown",
        "Bounded slowdown: completion time by run time, runs below 10 s counted as 10 s; on average, at best 1.", "low",
    ),
    Column("makespan", "Makespan", "From the first submit to the last end.", "low", "duration"),
    Column("throughput", "Jobs/h", "Completed jobs per hour of makespan.", "high", "rate"),
    Column("utilization", "GPUs used", "Share of the cluster's GPU time that jobs held.", "high", "percent"),
    Column("energy_kwh", "Energy kWh", "Estimated energy of all GPUs over the makespan.", "low"),
    Column("fairness", "Fairness", "How evenly users were served: 1 is even, lower is less so.", "high"),
    Column("preemptions", "Preempted", "Times that a running job was stopped for another.", "low", "count"),
    Column("deadline_missed", "Missed", "Jobs that ended after their deadline or never ran.", "low", "count"),
    Column("tardiness_mean", "Tardiness", "Time from their deadline to the end of jobs, averaged.", "low", "duration"),
    Column("completed", "Done", "Jobs that ran to their end.", "high", "count"),
    Column("rejected", "Rejected", "Jobs that can never run on this cluster.", "low", "count"),
)  # fmt: skip

TOP_GROUPS = 12


@dataclass(frozen=True, slots=True)
class Drawn:
    svg: bytes
    png: bytes
    heading: str
    caption: str
    narrow: bool = False


def draw(comparison: Comparison) -> dict[str, Drawn]:
    summaries = comparison.summaries
    if not summaries:
        return {}
    found: dict[str, Drawn] = {}

    def add(name: str, figure: Figure, heading: str, caption: str, narrow: bool = False) -> None:
        found[name] = Drawn(svg_bytes(figure), png_bytes(figure), heading, caption, narrow)

    add("ranking", schedule_plots.ranking(comparison.rows), "Ranking", "Mean job completion time of each policy.", True)
    add(
        "cdf", schedule_plots.cdfs(summaries), "Distributions",
        "How completion times, waits and slowdowns are distributed: a line further to the left is better; "
        "where it nears 100% late, a few jobs fare badly.",
    )  # fmt: skip
    which = _window_text(comparison)
    add("utilisation", schedule_plots.utilisation(summaries), "Utilisation", f"Share of the GPUs in use{which}.")
    add(
        "queue",
        schedule_plots.queue_length(summaries),
        "Queue length",
        f"Jobs that are submitted and not running{which}.",
    )
    if len(summaries[0].groups) > 1:
        add(
            "users", schedule_plots.by_group(summaries), _groups_heading(summaries[0].groups),
            "The narrower the spread of a policy's dots, the more evenly people are served.", True,
        )  # fmt: skip
    for name, summary, caption in _charts(summaries):
        assert summary.chart is not None
        add(name, schedule_plots.gantt(summary.chart), "Schedule", caption)
    return found


def _charts(summaries: Sequence[Summary]) -> Iterator[tuple[str, Summary, str]]:
    best = summaries[0]
    if best.chart is not None:
        yield "gantt", best, "The schedule with the lowest mean completion time."
    other = _baseline(summaries)
    if other is not None and other.chart is not None:
        yield "gantt-baseline", other, "First come, first served, for comparison."


def _baseline(summaries: Sequence[Summary]) -> Summary | None:
    """The baseline, if it is not the best itself."""
    found = baseline(summaries)
    return None if found is summaries[0] else found


def _window_text(comparison: Comparison) -> str:
    if len(comparison.windows) > 1:
        return f", in window {comparison.shown + 1} of {len(comparison.windows)} (the one with the most work)"
    return ", with the first of the seeds" if comparison.seeds > 1 else ""


def _groups_heading(groups: Groups) -> str:
    return "Fairness between users" if groups.kind == "user" else f"Fairness between groups (by {groups.kind})"


def write_report(
    path: str | Path,
    *,
    title: str,
    command: str,
    trace_facts: dict[str, Any],
    comparison: Comparison,
    notes: Sequence[str],
    figures: Mapping[str, Drawn] | None = None,
    when: datetime | None = None,
) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    meanings = html.legend(_present(comparison.rows))
    parts = [
        html.lead(_answer(comparison.rows)),
        _failures(comparison.failures),
        html.heading("What was simulated"),
        html.facts(_facts(trace_facts, comparison)),
        _table(comparison),
        html.bullets(notes, "soft"),
        *_figures(comparison, draw(comparison) if figures is None else figures),
        f"{html.heading('What the metrics mean')}\n{meanings}" if meanings else "",
        html.reproduce(command, when),
    ]
    write_atomically(target, html.page(title, parts).encode())
    return target


def _answer(ranked: Sequence[dict[str, Any]]) -> str:
    timed = [row for row in ranked if row.get("jct_mean") is not None]
    if not timed:
        return "No job was completed under any policy."
    best, worst = timed[0], timed[-1]
    text = f"<strong>{escape(str(best['policy']))}</strong> has the lowest mean job completion time"
    text += f" ({_with_interval(best, 'jct_mean')})"
    if len(timed) > 1 and best["jct_mean"] > 0:
        factor = worst["jct_mean"] / best["jct_mean"]
        text += f" of {len(timed)} policies; {escape(str(worst['policy']))} has the highest:"
        text += f" {factor:.3g} times that"
    if len({row.get("completed") for row in ranked}) > 1:
        text += ". Policies did not complete the same number of jobs, so their means are over different jobs"
    return f"{text}.{_lead_over_second(timed)}"


def _with_interval(row: dict[str, Any], key: str) -> str:
    text, ends = format_duration(row[key]), row.get(f"{key}_ci")
    return text if ends is None else f"{text} {format_interval(row[key], ends, format_duration)}"


def _lead_over_second(timed: Sequence[dict[str, Any]]) -> str:
    if len(timed) < 2 or "jct_mean_diff_ci" not in timed[1]:
        return ""
    low, _ = timed[1]["jct_mean_diff_ci"]
    name = escape(str(timed[1]["policy"]))
    if low > 0:
        return f" Its lead over {name} is {_with_interval(timed[1], 'jct_mean_diff')} with 95% confidence."
    return f" Whether it is better than {name} cannot be told from these runs with 95% confidence."


def _failures(failures: Mapping[str, str]) -> str:
    items = "".join(f"<li><strong>{escape(policy)}</strong>: {escape(why)}</li>" for policy, why in failures.items())
    return f'<div class="failed-note"><p>Not simulated to the end:</p><ul>{items}</ul></div>' if items else ""


def _facts(trace_facts: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
    found, summaries = dict(trace_facts), comparison.summaries
    found.setdefault("cluster", cluster_text(comparison.cluster))
    if summaries and summaries[0].metrics.get("pools"):
        found["pools"] = f"{len(summaries[0].metrics['pools'])}, each a cluster of its own"
    if summaries:
        for key, value in summaries[0].settings.items():
            same = all(other.settings.get(key) == value for other in summaries)
            found.setdefault(key, value if same else "differs between the policies")
    if len(comparison.windows) > 1:
        found["windows"] = f"{len(comparison.windows)}, each from an empty cluster"
    if comparison.seeds > 1:
        found["seed"] = f"{comparison.seeds} seeds, for what is random"
    return found


def cluster_text(cluster: Cluster) -> str:
    """`4 x 8 GPUs, 16G each`."""
    groups = [(size, len(list(nodes))) for size, nodes in itertools.groupby(cluster.nodes)]
    shape = ", ".join(f"{count} x {size}" for size, count in groups)
    return f"{shape} GPUs, {format_size(cluster.memory)} each"


def _table(comparison: Comparison) -> str:
    repeated = " A number after ± is half of the 95% confidence interval of a mean." if comparison.repeated else ""
    if comparison.repeated and not comparison.with_intervals:
        repeated = f" Numbers are means; fewer than {FEWEST} runs give no confidence intervals."
    return (
        f"{html.heading('Policies, by mean job completion time')}\n"
        f'<p class="soft">The best value of a column is marked.{repeated} Click on a heading to sort by it; '
        "point at a duration for the exact seconds. A narrow screen scrolls the table sideways.</p>\n"
        + html.metric_table(_present(comparison.rows), comparison.rows, "jct_mean")
    )


def _present(rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Columns with values in some of the rows; rare events only if there were any."""
    rare = ("preemptions", "rejected")
    return [
        column
        for column in COLUMNS
        if any(row.get(column.key) if column.key in rare else row.get(column.key) is not None for row in rows)
    ]


def _figures(comparison: Comparison, figures: Mapping[str, Drawn]) -> Iterator[str]:
    last = ""
    for name, drawn in figures.items():
        if drawn.heading != last:
            last = drawn.heading
            yield html.heading(last)
        yield html.image(drawn.svg, drawn.caption, narrow=drawn.narrow)
        if name == "users":
            yield _users_table(comparison.summaries)


def _users_table(summaries: Sequence[Summary]) -> str:
    best, other = summaries[0], _baseline(summaries)
    shown = [best] if other is None else [best, other]
    groups = best.groups
    served = [{name: i for i, name in enumerate(s.groups.names)} for s in shown]
    heads = [
        groups.kind,
        "jobs",
        "GPU-hours",
        *(f"{what} under {s.policy}" for what in ("wait", "slowdown") for s in shown),
    ]
    rows = []
    for row, name in enumerate(groups.names[:TOP_GROUPS]):
        cells = [f"{groups.jobs[row]:,}", f"{groups.gpu_seconds[row] / 3600:,.1f}"]
        for kind in ("duration", "number"):
            for summary, place in zip(shown, served, strict=True):
                means = summary.groups.mean_wait if kind == "duration" else summary.groups.mean_slowdown
                cells.append(html.text_of(float(means[place[name]]), kind) if name in place else "–")
        rows.append([name, *cells])
    more = f", of {len(groups):,}" if len(groups) > TOP_GROUPS else ""
    note = f"Those with the most GPU time{more}; waits and slowdowns are means over their jobs."
    return f"{html.soft(note)}\n{html.text_table(heads, rows)}"
