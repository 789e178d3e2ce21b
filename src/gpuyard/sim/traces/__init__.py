"""Reading and writing traces. A new format is a module and one entry in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import accounting, datacenters, history, native, simulators
from gpuyard.sim.traces.info import describe
from gpuyard.sim.traces.native import WRITERS, write
from gpuyard.sim.traces.source import Source, open_source

__all__ = ["FORMATS", "WRITERS", "Format", "describe", "read", "write"]


class Format(NamedTuple):
    read: Callable[[Source], Trace]
    recognises: Callable[[str], bool]  # given the beginning of the file
    about: str
    option: str = ""  # what may stand after the name and a colon, as in `gavel:k80`; empty: nothing


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "swf": Format(accounting.read_swf, accounting.is_swf, "Standard Workload Format, 18 columns"),
        "philly": Format(
            datacenters.read_philly, datacenters.is_philly, "CSV of Microsoft's Philly jobs: timestamp,duration,..."
        ),
        "philly-json": Format(datacenters.read_philly_json, datacenters.is_philly_json, "Philly's cluster_job_log"),
        "helios": Format(
            accounting.read_helios, accounting.is_helios, "cluster_log.csv of SenseTime's Helios clusters"
        ),
        "openb": Format(datacenters.read_openb, datacenters.is_openb, "pods of Alibaba's GPU-sharing trace of 2023"),
        "pai": Format(datacenters.read_pai, datacenters.is_pai, "pai_task_table of Alibaba's PAI trace of 2020"),
        "sacct": Format(accounting.read_sacct, accounting.is_sacct, "Slurm's accounting: sacct --parsable2"),
        "gavel": Format(
            simulators.read_gavel, simulators.is_gavel, "Gavel's traces, with throughputs beside", "the GPU type"
        ),
        "pollux": Format(simulators.read_pollux, simulators.is_pollux, "Pollux' workloads, with a column duration"),
        "tiresias": Format(simulators.read_tiresias, simulators.is_tiresias, "CSV of the Tiresias simulator"),
        "gpuyard": Format(native.read_csv, native.is_csv, "CSV with a header: job,submit,run,gpus,..."),
        "jsonl": Format(native.read_jsonl, native.is_jsonl, "one JSON object a line, keys as in gpuyard"),
        "batsim": Format(simulators.read_batsim, simulators.is_batsim, "Batsim's JSON workloads with delay profiles"),
    }
)
"""In the order in which they are tried."""


def read(path: str | Path, format: str | None = None) -> Trace:
    """Read a trace file, standard input for `-`, or the log of the local daemon for `history`.

    `format` overrides what the file looks like.
    """
    if format is None and (store := history.store_of(path)):
        trace = history.read(store)
    else:
        trace = _read_file(path, *(_named(format) if format is not None else (None, "")))
    if not len(trace):
        reasons = ", ".join(f"{count} dropped: {reason}" for reason, count in trace.dropped.items())
        raise UserError(f"{trace.source} holds no jobs{f' to use ({reasons})' if reasons else ''}")
    return trace


def _read_file(path: str | Path, name: str | None, option: str) -> Trace:
    with open_source(path) as source:
        if "\0" in source.head:
            raise UserError(f"{source.name} is not a text file")
        source.option = option
        return FORMATS[name or _recognised(source)].read(source)


def _named(text: str) -> tuple[str, str]:
    name, colon, option = text.partition(":")
    if name not in FORMATS:
        known = suggest(name, FORMATS) or f"; known are {', '.join(FORMATS)}"
        raise UserError(f"unknown trace format '{name}'{known}")
    if colon and not (option and FORMATS[name].option):
        raise UserError(f"the format {name} takes {FORMATS[name].option or 'nothing'} after the colon, not '{option}'")
    return name, option


def _recognised(source: Source) -> str:
    for name, kind in FORMATS.items():
        if kind.recognises(source.head):
            return name
    if not source.readable_head:
        raise UserError(f"{source.name} is not UTF-8 text")
    if not source.head.strip():
        raise UserError(f"{source.name} is empty")
    *others, last = FORMATS
    formats = f"{', '.join(others)} or {last}"
    raise UserError(f"{source.name} does not look like a trace; if it is one, give --format {formats}")
