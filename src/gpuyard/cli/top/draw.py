"""The screen as lines of styled text: a function of the model alone, as large as the model says."""

from __future__ import annotations

import textwrap

from gpuyard.cli.output import many
from gpuyard.cli.table import columns, cut, how_far, instant, span, visible
from gpuyard.cli.top import lists
from gpuyard.cli.top.cells import Line, Piece, clip
from gpuyard.cli.top.layout import Layout, lay_out
from gpuyard.cli.top.logview import LogView, fold
from gpuyard.cli.top.model import MESSAGE_TIME, Model
from gpuyard.client import OVER
from gpuyard.units import format_duration

LINES, ASCII = "━─", "#."
_LETTERS = {"·": "-", "…": "~", "↑": "^", "↓": "v"}
_NOTHING = {"running": "nothing runs", "waiting": "nothing waits", "ended": "nothing has ended yet"}
_KEYS = (
    ("Enter", "log"), ("e", "explain"), ("c", "cancel"), ("h", "hold"), ("+-", "priority"), ("/", "filter"),
    ("u", "mine"), ("Tab", "next list"),
)  # fmt: skip
_ALWAYS = (("?", "help"), ("q", "quit"))
_LOG_KEYS = (("↑↓ PgUp PgDn", "scroll"), ("End", "follow"), ("/", "search"), ("n N", "next, previous"))
HELP = """\
Up Down j k PgUp PgDn Home End   move
Tab                              to the next list: running, waiting, ended
Enter l                          the job's output, as it comes
e                                why it waits, and what has to end first
c                                cancel it (asks first)
h                                hold it, or release it
+ -                              more or less priority: higher runs first
/                                only jobs with a text in them; Esc: all again
u                                only mine
q Ctrl-C                         quit; nothing happens to the jobs

In the output: / searches, n and N go on, End follows, q or Esc goes back."""


def frame(model: Model, bars: str = LINES, *, keys: bool = True) -> list[Line]:
    """All lines of the screen, none of them wider than it is."""
    if model.mode in ("log", "search") and model.log is not None:
        lines = _log(model, model.log)
    else:
        lines = [_title(model), *_body(model, bars)]
    room = model.height - 1 if keys and model.height > 1 else model.height
    lines = [clip(line, model.width) for line in lines[:room]]
    lines += [[] for _ in range(room - len(lines))]
    lines += [clip(_footer(model), model.width)] if keys and model.height > 1 else []
    return [[Piece(_ascii(text), style) for text, style in line] for line in lines] if bars == ASCII else lines


def _ascii(text: str) -> str:
    """A text for a terminal that knows nothing else, of the same width."""
    if text.isascii():
        return text
    return "".join(_LETTERS.get(letter, "?" * columns(letter)) if letter > "~" else letter for letter in text)


def text_of(line: Line) -> str:
    """A line without its styles."""
    return "".join(piece.text for piece in line).rstrip()


# -- the lists ------------------------------------------------------------------------------------


def _title(model: Model) -> Line:
    problem = ""
    if model.away:
        since = format_duration(round(max(model.ticks - model.away_since, 0.0)))
        problem = f" NO DAEMON for {since}: start one with gpuyard up, and this goes on by itself"
    elif model.picture is not None and (failing := model.picture.status.get("store", {}).get("problem")):
        problem = f" STORE FAILING: {failing}"
    if problem:
        return [Piece(_wide(visible(problem), model.width), "alert")]
    return [Piece(_wide(" gpuyard  " + " · ".join(_facts(model)), model.width), "title")]


def _facts(model: Model) -> list[str]:
    if model.picture is None:
        return []
    status = model.picture.status
    jobs = status.get("jobs", {})
    facts = []
    if model.filter or model.mine:
        only = [f"'{visible(model.filter)}'"] * bool(model.filter) + ["mine"] * model.mine
        facts.append(f"ONLY {', '.join(only)}")
    facts += [many(len(model.picture.gpus), "SIMULATED GPU")] if model.picture.simulated else []
    facts += [f"{jobs.get('running', 0):,} running", f"{jobs.get('queued', 0):,} queued"]
    facts += [f"{jobs['held']:,} held"] if jobs.get("held") else []
    facts.append(str(status.get("policy", "")))
    if status.get("since"):
        facts.append(f"daemon up {span(instant(status['since']).timestamp(), model.now)}")
    return facts


def _body(model: Model, bars: str) -> list[Line]:
    if model.panel is not None:
        return _panel(model)
    if model.picture is None:
        told = visible(model.away) or "asking the daemon ..."
        return [[], *([Piece(f" {part}")] for part in _words(told, max(model.width - 2, 1)))]
    layout = lay_out(model)
    lines = _gpus(model, layout, bars)
    for name, rows in layout.lists.items():
        lines += _list(model, name, rows, bars)
    return lines


def _gpus(model: Model, layout: Layout, bars: str) -> list[Line]:
    if not layout.gpus or model.picture is None:
        return []
    gpus = model.picture.gpus
    shown = gpus if len(gpus) <= layout.gpus else gpus[: layout.gpus - 1]
    head, rows = lists.gpu_table(model, shown, bars)
    lines: list[Line] = [[Piece(_wide(f" {head}", model.width), "head")]]
    lines += [[Piece(" "), *row] for row in rows]
    if len(shown) < len(gpus):
        rest = gpus[len(shown) :]
        free = sum(gpu["state"] == "free" for gpu in rest)
        lines.append([Piece(f" … and {many(len(rest), 'more GPU')}, {free} free", "faint")])
    return lines


def _list(model: Model, name: str, rows: int, bars: str) -> list[Line]:
    part, place, focused = model.part(name), model.places[name], name == model.focus
    seen = range(place.top, min(place.top + rows, part.total))
    title = f"{name.upper()} {part.total:,}"
    if focused and part.total > rows > 0:
        title = f"{name.upper()} {place.index + 1:,}/{part.total:,}"
    head, lines = lists.job_table(model, name, [part.get(index) for index in seen], title, bars)
    found: list[Line] = [[Piece(_wide(f" {head}", model.width), "focus" if focused else "head")]]
    for index, line in zip(seen, lines, strict=True):
        if focused and index == place.index:
            found.append([Piece(_wide(" " + "".join(piece.text for piece in line), model.width), "selected")])
        else:
            found.append([Piece(" "), *line])
    if not part.total and rows:
        none = "no job that is meant" if model.filter or model.mine else _NOTHING[name]
        found.append([Piece(f" {none}", "faint")])
    return found


def _panel(model: Model) -> list[Line]:
    assert model.panel is not None
    width = max(model.width - 2, 1)
    lines = [piece for line in model.panel.lines for piece in _words(visible(line), width)]
    room = max(model.height - 3, 1)
    model.panel.top = max(0, min(model.panel.top, len(lines) - room))
    seen = lines[model.panel.top : model.panel.top + room]
    head: Line = [Piece(_wide(f" {visible(model.panel.title)}", model.width), "focus")]
    return [head, *([Piece(f" {line}")] for line in seen)]


def _words(line: str, width: int) -> list[str]:
    """A line folded between words, if it has to be."""
    if columns(line) <= width:
        return [line]
    folded = textwrap.wrap(line, width, subsequent_indent=" " * min(8, width // 4), drop_whitespace=True)
    return [piece for part in folded for piece in fold(part, width)]  # what is wider than it is long


# -- a job's output -------------------------------------------------------------------------------


def _log(model: Model, log: LogView) -> list[Line]:
    row = next((row for row in model.part("running").rows if row.id == log.id), None)
    facts = [f"job {log.id}", *([visible(log.name)] if log.name != "-" else []), log.state or "..."]
    if row is not None and row.progress is not None:
        facts.append(how_far(row.progress))
    if log.bottom is not None:
        facts.append(f"line {log.bottom:,} of {log.count():,}" + ("" if log.start == 0 else " that were read"))
    elif log.state not in OVER:
        facts.append("following")
    if model.away:
        facts.append("NO DAEMON")
    title: Line = [Piece(_wide(" " + " · ".join(facts), model.width), "alert" if model.away else "title")]
    seen = log.seen(max(model.width, 1), max(model.height - 2, 0))
    if not log.count():
        return [title, [Piece(_no_output(log), "faint")]]
    return [title, *(_marked(line, log.found) for line in seen)]


def _no_output(log: LogView) -> str:
    if log.state in ("queued", "held"):
        return " it has not started yet; what it prints appears here"
    return " it has not printed anything" if log.state else " ..."


def _marked(line: str, wanted: str) -> Line:
    """A line of output, in which what was looked for stands out."""
    at = line.casefold().find(wanted.casefold()) if wanted else -1
    if at < 0 or len(line.casefold()) != len(line):
        return [Piece(line)]
    end = at + len(wanted)
    return [Piece(line[:at]), Piece(line[at:end], "selected"), Piece(line[end:])]


# -- the last line --------------------------------------------------------------------------------


def _footer(model: Model) -> Line:
    if model.mode == "confirm" and model.asked is not None:
        name = f" ({visible(model.asked.name)})" if model.asked.name != "-" else ""
        return [Piece(_wide(f" Cancel job {model.asked.id}{name}?  y: yes   n: no", model.width), "alert")]
    if model.mode in ("filter", "search"):
        return [Piece(f" {model.mode.capitalize()}: {visible(model.typed)}"), Piece(" ", "selected")]
    if model.message and model.ticks - model.said_at < MESSAGE_TIME:
        return [Piece(f" {visible(model.message)}", "warn")]
    if model.mode == "panel":
        return _hints((), (("↑↓", "scroll"), ("q", "back")), model.width)
    if model.mode == "log":
        return _hints(_LOG_KEYS, (("q", "back"),), model.width)
    return _hints(_KEYS, _ALWAYS, model.width)


def _hints(some: tuple[tuple[str, str], ...], always: tuple[tuple[str, str], ...], width: int) -> Line:
    """As many keys as fit; some of them in any case."""
    room = width - 1 - sum(columns(f"{key} {what}  ") for key, what in always)
    line: Line = [Piece(" ")]
    shown = []
    for key, what in some:
        room -= columns(f"{key} {what}  ")
        if room < 0:
            break
        shown.append((key, what))
    for key, what in (*shown, *always):
        line += [Piece(key, "key"), Piece(f" {what}  ")]
    return line


def _wide(text: str, width: int) -> str:
    """A text that fills the line."""
    text = cut(text, width)
    return text + " " * (width - columns(text))
