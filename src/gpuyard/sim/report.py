"""A comparison of policies as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gpuyard.core.model import Cluster
from gpuyard.sim import gantt as gantt_chart
from gpuyard.sim import plots
from gpuyard.sim.figures import svg_bytes, write_atomically
from gpuyard.sim.result import Result
from gpuyard.units import format_duration, format_number, format_size


@dataclass(frozen=True, slots=True)
class Column:
    """A metric in the table, and what it means."""

    key: str
    title: str
    meaning: str
    better: str = ""
    """`low`, `high`, or empty where no value is better than another."""
    kind: str = "number"
    """`number`, `count`, `duration`, `percent`, or `rate` (a number per second, shown per hour)."""


COLUMNS = (
    Column(
        "jct_mean", "JCT mean",
        "Job completion time: from submit to end, averaged over the completed jobs.", "low", "duration",
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
    Column("jobs", "Jobs", "Jobs in the trace.", "", "count"),
    Column("completed", "Done", "Jobs that ran to their end.", "high", "count"),
    Column("rejected", "Rejected", "Jobs that can never run on this cluster.", "low", "count"),
)  # fmt: skip

_STYLE = """
:root{color-scheme:light dark;--ink:#23272e;--soft:#5d6673;--line:#dde1e7;--page:#fff;--card:#f6f7f9;
--best:#dcf3e0;--best-ink:#12602a;--accent:#1f6fb4}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a3abb6;--line:#3a404a;--page:#16191d;
--card:#20252b;--best:#1c4229;--best-ink:#b5efc3;--accent:#7db8ee}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:1400px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
p{margin:.4rem 0;max-width:75ch}.soft{color:var(--soft);font-size:.92rem}
.lead{font-size:1.08rem;overflow-wrap:anywhere}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:.7rem 1.2rem;margin:0;
padding:1rem;background:var(--card);border-radius:8px}
.facts div{min-width:0}.facts dt{color:var(--soft);font-size:.82rem}
.facts dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:.8rem;font-variant-numeric:tabular-nums}
th,td{padding:.42rem .3rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
thead th{background:var(--card);vertical-align:bottom;white-space:normal}
th:first-child{text-align:left;position:sticky;left:0;background:var(--page);padding-left:.7rem;
border-right:1px solid var(--line);white-space:normal;overflow-wrap:break-word;
min-width:10.5rem;max-width:17rem}
thead th:first-child{background:var(--card)}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--accent)}
th[aria-sort=ascending] button::after{content:" \\25B2"}
th[aria-sort=descending] button::after{content:" \\25BC"}
td.best{background:var(--best);color:var(--best-ink);font-weight:700}
figure{margin:1.2rem 0;max-width:1120px}
figure img{display:block;width:100%;height:auto;background:#fff;border-radius:8px;
padding:.5rem;border:1px solid var(--line)}figcaption{color:var(--soft);font-size:.92rem;margin-top:.35rem}
figure.narrow img{max-width:820px}
pre{background:var(--card);padding:.9rem 1rem;border-radius:8px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:.9rem;margin:.4rem 0}
.legend{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0;font-size:.92rem}
.legend dt{font-weight:600}.legend dd{margin:0}
@media (max-width:600px){body{padding:1rem .7rem 3rem}th:first-child{min-width:7rem;max-width:9rem}
.plot{overflow-x:auto}.plot img{min-width:640px}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--line:#ccc;--page:#fff;--card:#f4f5f7;
--best:#dcf3e0;--best-ink:#12602a}body{max-width:none;padding:0;font-size:11pt}
.scroll{overflow:visible;border:0}
table{font-size:6.4pt}th,td{padding:.2rem .25rem}th:first-child{position:static;min-width:0}
thead th{white-space:normal}figure,.legend,.facts{break-inside:avoid}h2{break-after:avoid}
td.best{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

_SCRIPT = """
document.querySelectorAll("thead button").forEach(function(button){button.onclick=function(){
var head=button.parentNode,row=head.parentNode,body=head.closest("table").tBodies[0];
var up=head.getAttribute("aria-sort")!=="ascending",at=Array.prototype.indexOf.call(row.cells,head);
Array.prototype.forEach.call(row.cells,function(c){c.removeAttribute("aria-sort")});
head.setAttribute("aria-sort",up?"ascending":"descending");
function value(r){var v=r.cells[at].dataset.v;return v===undefined?r.cells[at].textContent:v===""?null:+v}
Array.prototype.slice.call(body.rows).sort(function(a,b){var x=value(a),y=value(b);
if(x===null||y===null)return (x===null)-(y===null);
return (x<y?-1:x>y?1:0)*(up?1:-1)}).forEach(function(r){body.appendChild(r)})}});
"""

# The page may show what is in it and nothing else, whatever a job id or a policy is called.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(
    path: str | Path,
    *,
    title: str,
    command: str,
    trace_facts: dict[str, Any],
    results: list[Result],
    rows: list[dict[str, Any]],
    notes: list[str],
) -> Path:
    """Write the comparison as one HTML file with its plots inside, and return its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    ranked = sorted(rows, key=lambda row: _order(row.get("jct_mean")))
    parts = [
        f"<h1>{escape(title)}</h1>",
        _lead(ranked),
        _facts(trace_facts, results),
        _table(ranked),
        _notes(notes),
        "<h2>Plots</h2>",
        *_plots(ranked, results),
        _legend(ranked),
        _reproduce(command),
    ]
    write_atomically(target, _page(title, "\n".join(part for part in parts if part)).encode())
    return target


def _page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _lead(ranked: Sequence[dict[str, Any]]) -> str:
    """The answer in one sentence, before any table."""
    timed = [row for row in ranked if not math.isnan(_value(row.get("jct_mean")))]
    if not timed:
        return '<p class="lead">No job was completed under any policy.</p>'
    best, worst = timed[0], timed[-1]
    text = f"<strong>{escape(str(best['policy']))}</strong> has the lowest mean job completion time"
    text += f" ({format_duration(_value(best['jct_mean']))})"
    if len(timed) > 1 and _value(best["jct_mean"]) > 0:
        factor = _value(worst["jct_mean"]) / _value(best["jct_mean"])
        text += f" of {len(timed)} policies; {escape(str(worst['policy']))} has the highest:"
        text += f" {factor:.3g} times that"
    if len({row.get("completed") for row in ranked}) > 1:
        text += ". Policies did not complete the same number of jobs, so their means are over different jobs"
    return f'<p class="lead">{text}.</p>'


def _facts(trace_facts: dict[str, Any], results: Sequence[Result]) -> str:
    facts = dict(trace_facts)
    if results:
        facts.setdefault("cluster", _cluster_text(results[0].cluster))
        for key, value in results[0].settings.items():
            same = all(other.settings.get(key) == value for other in results)
            facts.setdefault(key, value if same else "differs between the policies")
    items = "".join(
        f"<div><dt>{escape(str(key).replace('_', ' '))}</dt><dd>{escape(_fact_text(value))}</dd></div>"
        for key, value in facts.items()
    )
    return f'<h2>What was simulated</h2>\n<dl class="facts">{items}</dl>' if items else ""


def _cluster_text(cluster: Cluster) -> str:
    groups = [(size, len(list(nodes))) for size, nodes in itertools.groupby(cluster.nodes)]
    shape = ", ".join(f"{count} x {size}" for size, count in groups)
    return f"{shape} GPUs, {format_size(cluster.memory)} each"


def _fact_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_fact_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(_fact_text(item) for item in value) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _table(ranked: Sequence[dict[str, Any]]) -> str:
    columns = _present(ranked)
    best = {column.key: _best(column, ranked) for column in columns}
    sort = {"jct_mean": ' aria-sort="ascending"'}
    head = "".join(
        f'<th scope="col" title="{escape(c.meaning)}"{sort.get(c.key, "")}><button>{escape(c.title)}</button></th>'
        for c in columns
    )
    body = "\n".join(
        f'<tr><th scope="row">{_breakable(str(row["policy"]))}</th>'
        + "".join(_cell(column, row.get(column.key), best[column.key]) for column in columns)
        + "</tr>"
        for row in ranked
    )
    return (
        "<h2>Policies, by mean job completion time</h2>\n"
        '<p class="soft">The best value of a column is marked. Click on a heading to sort by it; '
        "point at a duration for the exact seconds. A narrow screen scrolls the table sideways.</p>\n"
        '<div class="scroll"><table><thead><tr><th scope="col"><button>Policy</button></th>'
        f"{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _breakable(policy: str) -> str:
    """The policy, with places where a narrow column may break it."""
    return escape(policy).replace("@", "@<wbr>").replace(",", ",<wbr>")


def _present(rows: Sequence[dict[str, Any]]) -> list[Column]:
    return [column for column in COLUMNS if any(column.key in row for row in rows)]


def _best(column: Column, rows: Sequence[dict[str, Any]]) -> float:
    """The value to mark; NaN (equal to nothing) where all are alike or none is better than another."""
    values = [v for row in rows if not math.isnan(v := _value(row.get(column.key)))]
    if not column.better or len(set(values)) < 2:
        return math.nan
    return max(values) if column.better == "high" else min(values)


def _cell(column: Column, raw: Any, best: float) -> str:
    value = _value(raw)
    if math.isnan(value):
        return '<td data-v="">–</td>'
    mark = ' class="best"' if value == best else ""
    exact = f' title="{format_number(value)} s"' if column.kind == "duration" else ""
    return f'<td data-v="{format_number(value)}"{mark}{exact}>{_text(value, column.kind)}</td>'


def _text(value: float, kind: str) -> str:
    if kind == "duration":
        return format_duration(value)
    if kind == "percent":
        return f"{value:.1%}"
    if kind == "rate":
        return f"{3600 * value:,.4g}"
    if kind == "count" or value.is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.4g}"


def _value(raw: Any) -> float:
    return math.nan if raw is None or not math.isfinite(raw) else float(raw)


def _order(raw: Any) -> float:
    value = _value(raw)
    return math.inf if math.isnan(value) else value


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="soft">{items}</ul>' if items else ""


def _plots(ranked: Sequence[dict[str, Any]], results: Sequence[Result]) -> Iterator[str]:
    if ranked:
        yield _image(plots.ranking(ranked), "Mean job completion time of each policy.", narrow=True)
    if not results:
        return
    yield _image(
        plots.cdfs(results),
        "How completion and waiting times are distributed: a line further to the left is better; "
        "where it nears 100% late, a few jobs take very long.",
    )
    yield _image(plots.utilisation(results), "Share of the GPUs in use.")
    yield _image(plots.queue_length(results), "Jobs that are submitted and not running.")
    best = results[plots.by_mean_jct(results)[0]]
    yield _gantt(best, "The schedule with the lowest mean completion time.")
    baseline = next((r for r in results if r.policy.split("@")[0] == "fcfs"), None)
    if baseline is not None and baseline is not best:
        yield _gantt(baseline, "First come, first served, for comparison.")


def _gantt(result: Result, caption: str) -> str:
    count = len(result.segments)
    if count <= gantt_chart.MAX_LABELLED and result.cluster.gpus <= gantt_chart.MAX_ROWS:
        return _image(plots.gantt(result), caption)
    size = f"{count:,} bars on {result.cluster.gpus:,} GPUs"
    return f'<p class="soft">The Gantt chart of {escape(result.policy)} is left out here: {size}.</p>'


def _image(figure: Figure, caption: str, *, narrow: bool = False) -> str:
    # As an image and not as inline markup, because ids of several SVGs in one page clash.
    data = base64.b64encode(svg_bytes(figure)).decode()
    width = ' class="narrow"' if narrow else ""
    source = f'<div class="plot"><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}"></div>'
    return f"<figure{width}>{source}<figcaption>{escape(caption)}</figcaption></figure>"


def _legend(rows: Sequence[dict[str, Any]]) -> str:
    items = "".join(f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in _present(rows))
    return f'<h2>What the metrics mean</h2>\n<dl class="legend">{items}</dl>' if items else ""


def _reproduce(command: str) -> str:
    return f"<h2>Reproduce</h2>\n<pre><code>{escape(command)}</code></pre>"
