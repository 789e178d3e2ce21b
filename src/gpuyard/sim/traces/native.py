"""gpuyard's own formats, CSV and JSON lines, read and written; and traces written in any format."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TextIO

import numpy as np

from gpuyard.errors import UserError, suggest
from gpuyard.files import without_formula
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.accounting import swf_lines
from gpuyard.sim.traces.columns import LABEL, Jobs, name_of
from gpuyard.sim.traces.source import Source, first_line, quoted
from gpuyard.units import format_number

COLUMNS = (
    "job", "submit", "run", "gpus", "requested", "priority", "user", "weight", "tickets",
    "memory", "compute", "deadline", "preemptible", "cpus", "host_memory", "gpu_type",
)  # fmt: skip
REQUIRED = COLUMNS[:4]
_BATSIM = re.compile(r'"(?:jobs|profiles|nb_res)"\s*:')


def is_csv(head: str) -> bool:
    """A header with at least two of our columns: a wrong one is then reported by name."""
    return cells.has_columns(first_line(head).lower(), COLUMNS, 2)


def is_jsonl(head: str) -> bool:
    """A whole JSON object on the first line that does not hold a list of jobs itself."""
    line = first_line(head)
    return line.startswith("{") and line.endswith("}") and not _BATSIM.search(line)


def read_csv(source: Source) -> Trace:
    found = cells.rows(source)
    names = cells.header(source, found, REQUIRED, COLUMNS, free=LABEL)
    jobs = Jobs(source, {name: name for name in names})
    for line, row in found:
        if any(cell[:1] == "'" for cell in row):
            row = [cell[1:] if cell[:1] == "'" and _guarded(cell[1:]) != cell[1:] else cell for cell in row]
        jobs.add(line, dict(zip(names, row, strict=True)))
    return jobs.trace("gpuyard")


def _guarded(text: str) -> str:
    """A text that spreadsheets do not take for a formula, and that `read_csv` reads as it was."""
    bare = text.lstrip("'")
    return f"'{text}" if without_formula(bare) != bare or (bare != text and bare.startswith(("+", "-"))) else text


def read_jsonl(source: Source) -> Trace:
    jobs = Jobs(source, {name: name for name in COLUMNS})
    known = set(COLUMNS)
    for line, text in source.lines():
        text = text.strip()
        if not text or text[0] == "#":
            continue
        record = _object(source, line, text)
        if not known.issuperset(record):
            for key in record.keys() - known:
                if not key.startswith(LABEL) or key == LABEL:
                    raise source.error(line, f"unknown key {quoted(key)}{suggest(key, COLUMNS)}")
                jobs.add_label(key)
                known.add(key)
        jobs.add(line, record)
    return jobs.trace("jsonl")


def _object(source: Source, line: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
        if isinstance(record, dict) and text.count(":") > len(record):  # more colons than keys: look closer
            json.loads(text, object_pairs_hook=_pairs)
    except UserError as error:
        raise source.error(line, str(error)) from None
    except json.JSONDecodeError as error:
        raise source.error(line, f"not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise source.error(line, "not valid JSON: a number is too long or brackets are too deep") from None
    if not isinstance(record, dict):
        raise source.error(line, 'each line must be a JSON object, such as {"job": "a", ...}')
    return record


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"the key {quoted(twice)} is there twice")
    return record


_SUFFIXES = {".swf": "swf", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_PACKERS: dict[str, Callable[[IO[bytes]], AbstractContextManager[Any]]] = {
    # No name and no time in the header: the same trace gives the same file.
    ".gz": lambda stream: gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0),
    ".xz": partial(lzma.LZMAFile, mode="wb"),
    ".bz2": partial(bz2.BZ2File, mode="wb"),
}


def write(trace: Trace, target: str | Path | TextIO, format: str | None = None) -> None:
    """Write a trace to a path (`-`: standard output) or an open text stream.

    Without `format` the path's ending decides; .gz, .xz and .bz2 are compressed. A file is replaced
    in one step, so a failure leaves the old one as it was.
    """
    if not isinstance(target, str | Path):
        target.writelines(_lines_of(trace, format or "gpuyard"))
    elif str(target) == "-":
        sys.stdout.writelines(_lines_of(trace, format or "gpuyard"))
    else:
        path = Path(target)
        lines = _lines_of(trace, format or _format_of(path))
        _refuse_input(trace, path)
        with _replacing(path) as stream:
            stream.writelines(line.encode() for line in lines)


def _lines_of(trace: Trace, format: str) -> Iterator[str]:
    """The lines of the file; what the format cannot hold is found before anything is written."""
    if format not in WRITERS:
        raise UserError(
            f"cannot write the format '{format}'{suggest(format, WRITERS) or ', only ' + ', '.join(WRITERS)}"
        )
    if not trace.gpus.all():
        job = trace.ids[int(np.argmin(trace.gpus))]
        raise UserError(
            f"job {quoted(job)} asks for no GPU, which cannot be written; leave such jobs out: --where 'gpus>0'"
        )
    return WRITERS[format](trace)


def _format_of(path: Path) -> str:
    suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKERS]
    return _SUFFIXES.get(suffixes[-1].lower() if suffixes else "", "gpuyard")


def _refuse_input(trace: Trace, path: Path) -> None:
    source = Path(trace.source)
    if source.exists() and path.exists() and os.path.samefile(source, path):
        raise UserError(f"{path} is the trace that is being read; write to another file")


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    final = Path(os.path.realpath(path))  # a link goes on pointing at the file
    # /dev/stdout may be a file that a shell has open: that one must be written, not another in its place.
    direct = path.is_absolute() and path.parts[1] in ("dev", "proc")
    direct = direct or (final.exists() and not final.is_file())  # a pipe, for example
    draft = final if direct else final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp")
    try:
        with draft.open("wb" if direct else "xb") as raw:
            with _PACKERS.get(path.suffix, nullcontext)(raw) as stream:
                yield stream
            raw.flush()
            if not direct:
                os.fsync(raw.fileno())
        if not direct:
            if final.exists():
                shutil.copymode(final, draft)
            os.replace(draft, final)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        if not direct:
            draft.unlink(missing_ok=True)


def _informative(trace: Trace) -> dict[str, list[str | None]]:
    """The optional columns that say something, as text; None where a job says nothing."""
    neutral = {
        "requested": np.nan, "priority": 0.0, "weight": 1.0, "tickets": 1.0, "memory": 0.0,
        "compute": np.where(trace.memory > 0, 0.0, 100.0), "deadline": np.inf, "cpus": 0.0, "host_memory": 0.0,
    }  # fmt: skip
    columns: dict[str, list[str | None]] = {}
    for name, nothing in neutral.items():
        values = getattr(trace, name)
        silent = (values == nothing) | np.isnan(values)
        if not silent.all():
            columns[name] = [
                None if quiet else format_number(value)
                for quiet, value in zip(silent.tolist(), values.tolist(), strict=True)
            ]
    for name, texts in _texts(trace).items():
        if any(texts):
            columns[name] = [_plain(text, name) or None for text in texts]
    if not trace.preemptible.all():
        columns["preemptible"] = [None if flag else "false" for flag in trace.preemptible.tolist()]
    return columns


def _texts(trace: Trace) -> dict[str, list[str]]:
    labels = {LABEL + _plain(name, "label"): texts for name, texts in trace.labels.items()}
    return {"user": trace.users, "gpu_type": trace.gpu_types, **labels}


def _table(trace: Trace) -> dict[str, list[str | None]]:
    optional = _informative(trace)
    columns: dict[str, list[str | None]] = {"job": [_plain(job, "job") for job in trace.ids]}
    for name in ("submit", "run", "gpus"):
        columns[name] = [format_number(value) for value in getattr(trace, name).tolist()]
    labels = [name for name in optional if name.startswith(LABEL)]
    return columns | {name: optional[name] for name in (*COLUMNS, *labels) if name in optional}


def _plain(name: str, label: str) -> str:
    if (label in ("job", "label") and not name) or name_of(name, label) != name:
        raise UserError(f"the {label} name {quoted(name)} cannot be written: it is empty or has blanks around it")
    return name


def _csv(trace: Trace) -> Iterator[str]:
    columns = _table(trace)
    for name in _texts_in(columns):
        columns[name] = [_cell(_guarded(text or "")) for text in columns[name]]
    yield ",".join(map(_cell, columns)) + "\n"
    for row in zip(*columns.values(), strict=True):
        yield ",".join(cell or "" for cell in row) + "\n"


def _texts_in(columns: Iterable[str]) -> list[str]:
    return [name for name in columns if name in ("job", "user", "gpu_type") or name.startswith(LABEL)]


def _cell(text: str) -> str:
    """Quoted where a comma, a quotation mark, or a `#` (a comment, at a line's start) asks for it."""
    if any(mark in text for mark in ',"#'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _jsonl(trace: Trace) -> Iterator[str]:
    columns = _table(trace)
    for name in _texts_in(columns):
        columns[name] = [text and json.dumps(text, ensure_ascii=False) for text in columns[name]]
    keys = [json.dumps(name) for name in columns]
    for row in zip(*columns.values(), strict=True):
        cells = (f"{key}: {cell}" for key, cell in zip(keys, row, strict=True) if cell is not None)
        yield "{" + ", ".join(cells) + "}\n"


WRITERS: MappingProxyType[str, Callable[[Trace], Iterator[str]]] = MappingProxyType(
    {"gpuyard": _csv, "jsonl": _jsonl, "swf": lambda trace: swf_lines(trace, _informative(trace))}
)
