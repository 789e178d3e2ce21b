"""HTML reports: the frame and the parts of one file that needs nothing else, readable in light, dark and on paper."""

from __future__ import annotations

import base64
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.metadata import version
from typing import Any

import gpuyard
from gpuyard.units import format_duration, format_interval, format_number

_STYLE = """
:root{color-scheme:light dark;--ink:#23272e;--soft:#5d6673;--line:#dde1e7;--page:#fff;--card:#f6f7f9;
--best:#dcf3e0;--best-ink:#12602a;--bad:#b3261e;--accent:#1f6fb4}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a3abb6;--line:#3a404a;--page:#16191d;
--card:#20252b;--best:#1c4229;--best-ink:#b5efc3;--bad:#ff9d94;--accent:#7db8ee}}
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
td small,th small{display:block;color:var(--soft);font-size:.88em;font-weight:400}
tr.failed td{white-space:normal;text-align:left;color:var(--bad)}
.failed-note{border-left:4px solid var(--bad);padding:.3rem .9rem;margin:1rem 0;background:var(--card)}
td.best small{color:inherit}
td.best{background:var(--best);color:var(--best-ink);font-weight:700}
figure{margin:1.2rem 0;max-width:1120px}
figure img{display:block;width:100%;height:auto;background:#fff;padding:.5rem}
.plot{border:1px solid var(--line);border-radius:8px;overflow:hidden}
@media (prefers-color-scheme:dark){@media screen{figure img{filter:invert(.9) hue-rotate(180deg) saturate(1.15)}}}
figcaption{color:var(--soft);font-size:.92rem;margin-top:.35rem}
figure.narrow .plot{max-width:820px}
pre{background:var(--card);padding:.9rem 1rem;border-radius:8px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:.9rem;margin:.4rem 0}
.scroll.fit{width:fit-content;max-width:100%}
table.users{width:auto;font-size:.85rem}table.users td,table.users th{padding:.3rem .8rem}
.legend{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0;font-size:.92rem}
.legend dt{font-weight:600}.legend dd{margin:0}
@media (max-width:600px){body{padding:1rem .7rem 3rem}th:first-child{min-width:7rem;max-width:9rem}
.plot{overflow-x:auto}.plot img{min-width:640px}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--line:#ccc;--page:#fff;--card:#f4f5f7;
--best:#dcf3e0;--best-ink:#12602a}body{max-width:none;padding:0;font-size:11pt}
.scroll{overflow:visible;border:0}
table{font-size:6.4pt}th,td{padding:.2rem .25rem}th:first-child{position:static;min-width:0}
thead th{white-space:normal}table.users{font-size:8pt}figure,tr,.legend,.facts{break-inside:avoid}h2{break-after:avoid}
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


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    meaning: str
    better: str = ""  # `low`, `high`, or empty where no value is better than another
    kind: str = "number"  # `number`, `count`, `duration`, `percent`, or `rate` (a number per second, shown per hour)


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """The whole document: the title as its heading, and the parts; `style` comes on top of what all have."""
    body = "\n".join(("<main>", f"<h1>{escape(title)}</h1>", *(part for part in parts if part), "</main>"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def lead(html: str) -> str:
    """The answer of the report, before any table."""
    return f'<p class="lead">{html}</p>'


def soft(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def paragraphs(texts: Iterable[str], kind: str) -> str:
    """A box of sentences of a kind (`warned`, `failed-note`, `passed-note`); nothing if there are none."""
    items = "".join(f"<p>{escape(text)}</p>" for text in texts)
    return f'<div class="{kind}">{items}</div>' if items else ""


def bullets(texts: Iterable[str], kind: str = "") -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    of = f' class="{kind}"' if kind else ""
    return f"<ul{of}>{items}</ul>" if items else ""


def facts(values: Mapping[str, Any], *, wide: int | None = None) -> str:
    """Names and values side by side; a value of more than `wide` letters has a row of its own."""
    items = []
    for key, value in values.items():
        text = fact_text(value)
        of = ' class="wide"' if wide is not None and len(text) > wide else ""
        items.append(f"<div{of}><dt>{escape(str(key).replace('_', ' '))}</dt><dd>{escape(text)}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def fact_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {fact_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(fact_text(item) for item in value) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def legend(columns: Iterable[Column]) -> str:
    """The meanings of columns; those in several tables come once."""
    meanings = {column.title: column.meaning for column in columns}
    items = "".join(f"<dt>{escape(title)}</dt><dd>{escape(meaning)}</dd>" for title, meaning in meanings.items())
    return f'<dl class="legend">{items}</dl>' if items else ""


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "users", *, fit: bool = True) -> str:
    """A table of texts, as wide as they are; the first cell of a row is its head."""
    head = "".join(f'<th scope="col">{breakable(text)}</th>' for text in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for first, *cells in rows
    )
    of, top = f' class="{kind}"' if kind else "", f"<thead><tr>{head}</tr></thead>\n" if head else ""
    return f'<div class="scroll{" fit" * fit}"><table{of}>{top}<tbody>{body}</tbody></table></div>'


def reproduce(command: str, when: datetime | None) -> str:
    """The end of a page: the command that made it, and the versions."""
    versions = (
        f"gpuyard {gpuyard.__version__}, Python {platform.python_version()}, numpy {version('numpy')}, "
        f"matplotlib {version('matplotlib')}"
    )
    made = f"Made on {when:%Y-%m-%d %H:%M %Z} with" if when is not None else "Made with"
    return f"{heading('Reproduce')}\n<pre><code>{escape(command)}</code></pre>\n{soft(f'{made} {versions}.')}"


def metric_table(columns: Sequence[Column], rows: Sequence[dict[str, Any]], sorted_by: str) -> str:
    """A row per policy, the best value of a column marked; `<metric>_ci` is shown beneath its metric."""
    best = {column.key: _best(column, rows) for column in columns}
    head = "".join(
        f'<th scope="col" title="{escape(c.meaning)}"{_SORTED if c.key == sorted_by else ""}>'
        f"<button>{escape(c.title)}</button></th>"
        for c in columns
    )
    body = "\n".join(
        f'<tr><th scope="row">{breakable(str(row["policy"]))}{_how(row)}</th>'
        + "".join(_cell(column, row, best[column.key]) for column in columns)
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="scroll"><table><thead><tr><th scope="col"><button>Policy</button></th>'
        f"{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


_SORTED = ' aria-sort="ascending"'


def _how(row: dict[str, Any]) -> str:
    parts = [str(row[key]) for key in ("discipline", "placement") if row.get(key)]
    return f"<small>{escape(', '.join(parts))}</small>" if parts else ""


def breakable(policy: str) -> str:
    return escape(policy).replace("@", "@<wbr>").replace(",", ",<wbr>")


def number(raw: Any) -> float:
    return math.nan if raw is None or not math.isfinite(raw) else float(raw)


def text_of(value: float, kind: str) -> str:
    if kind == "duration":
        return format_duration(value)
    if kind == "percent":
        return f"{value:.1%}"
    if kind == "rate":
        return text_of(3600 * value, "number")
    if kind == "count":
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 1e4 or value.is_integer() else f"{value:,.4g}"


def image(svg: bytes, caption: str, *, narrow: bool = False) -> str:
    """A figure with its caption. An image and not inline markup, because ids of several SVGs in one page clash."""
    data = base64.b64encode(svg).decode()
    width = ' class="narrow"' if narrow else ""
    source = f'<div class="plot"><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}"></div>'
    return f"<figure{width}>{source}<figcaption>{escape(caption)}</figcaption></figure>"


def _best(column: Column, rows: Sequence[dict[str, Any]]) -> float:
    """The value to mark; NaN (equal to nothing) where all are alike or none is better than another."""
    values = [v for row in rows if not math.isnan(v := number(row.get(column.key)))]
    if not column.better or len(set(values)) < 2:
        return math.nan
    return max(values) if column.better == "high" else min(values)


def _cell(column: Column, row: dict[str, Any], best: float) -> str:
    value = number(row.get(column.key))
    if math.isnan(value):
        return '<td data-v="">–</td>'
    mark = ' class="best"' if value == best else ""
    ends = row.get(f"{column.key}_ci")
    hint = f"{format_number(value)} s" if column.kind == "duration" else ""
    sure = ""
    if ends is not None and ends[1] > ends[0]:
        hint = f"{hint}; " if hint else ""
        hint += f"with 95% confidence from {format_number(ends[0])} to {format_number(ends[1])}"
        interval = format_interval(value, ends, lambda end: text_of(end, column.kind), share=column.kind == "percent")
        sure = f"<small>{interval}</small>"
    title = f' title="{hint}"' if hint else ""
    return f'<td data-v="{format_number(value)}"{mark}{title}>{text_of(value, column.kind)}{sure}</td>'
