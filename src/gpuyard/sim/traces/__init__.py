"""Reading and writing traces. A new format is a module of its own and one entry in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import batsim, swf, table, tiresias
from gpuyard.sim.traces.info import describe
from gpuyard.sim.traces.source import Source, open_source
from gpuyard.sim.traces.writing import WRITERS, write

__all__ = ["FORMATS", "WRITERS", "Format", "describe", "read", "write"]


class Format(NamedTuple):
    """How one kind of trace file is read, and how it is told from the others."""

    read: Callable[[Source], Trace]
    recognises: Callable[[str], bool]
    """Given the beginning of the file."""
    about: str


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "swf": Format(swf.read, swf.recognises, "Standard Workload Format, 18 columns"),
        "tiresias": Format(tiresias.read, tiresias.recognises, "CSV of the Tiresias simulator"),
        "gpuyard": Format(table.read_csv, table.recognises_csv, "CSV with a header: job,submit,run,gpus,..."),
        "jsonl": Format(table.read_jsonl, table.recognises_jsonl, "one JSON object a line, keys as in gpuyard"),
        "batsim": Format(batsim.read, batsim.recognises, "Batsim's JSON workloads with delay profiles"),
    }
)
"""In the order in which they are tried."""


def read(path: str | Path, format: str | None = None) -> Trace:
    """Read a trace file, or standard input for `-`; `format` overrides what the file looks like."""
    if format is not None and format not in FORMATS:
        raise UserError(f"unknown trace format '{format}'{suggest(format, FORMATS)}{_or_known(format)}")
    with open_source(path) as source:
        if "\0" in source.head:
            raise UserError(f"{source.name} is not a text file")
        trace = FORMATS[format or _recognised(source)].read(source)
    if not len(trace):
        reasons = ", ".join(f"{count} dropped: {reason}" for reason, count in trace.dropped.items())
        raise UserError(f"{source.name} holds no jobs{f' to use ({reasons})' if reasons else ''}")
    return trace


def _or_known(format: str) -> str:
    return "" if suggest(format, FORMATS) else f"; known are {', '.join(FORMATS)}"


def _recognised(source: Source) -> str:
    for name, kind in FORMATS.items():
        if kind.recognises(source.head):
            return name
    if not source.readable_head:
        raise UserError(f"{source.name} is not UTF-8 text")
    if not source.head.strip():
        raise UserError(f"{source.name} is empty")
    raise UserError(f"{source.name} does not look like a trace; if it is one, name its format: {', '.join(FORMATS)}")
