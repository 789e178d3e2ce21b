"""Some of a trace's jobs: those that meet conditions such as `vc=103959` or `gpus<=8`, or came in a span of time."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gpuyard.errors import UserError, suggest
from gpuyard.sim.trace import Flags, Trace
from gpuyard.sim.traces.columns import LABEL, RULES
from gpuyard.sim.traces.source import quoted
from gpuyard.sim.traces.times import are_dates, format_time, parse_instant
from gpuyard.units import format_number

_CONDITION = re.compile(r"\s*([^=!<>]*?)\s*(==|!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "=": operator.eq,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
)
_MOST_SHOWN = 5


def select(
    trace: Trace, where: Iterable[str] = (), since: str | float | None = None, until: str | float | None = None
) -> Trace:
    keep = np.ones(len(trace), dtype=np.bool_)
    for condition in where:
        keep = _narrowed(trace, keep, matching(trace, condition), condition)
    if since is not None:
        keep = _narrowed_in_time(trace, keep, trace.submit >= _instant(since, "--since"), f"since {since}")
    if until is not None:
        keep = _narrowed_in_time(trace, keep, trace.submit < _instant(until, "--until"), f"until {until}")
    return trace if keep.all() else trace.take(np.flatnonzero(keep))


def matching(trace: Trace, condition: str) -> Flags:
    """Which jobs meet one condition: NAME=VALUE, NAME!=VALUE, or a comparison with a number."""
    match = _CONDITION.fullmatch(condition)
    if match is None or not match[1]:
        raise UserError(f"{quoted(condition)} is not a condition; write for example vc=103959, user!=ann or gpus<=8")
    name, sign, value = match.groups()
    compare = _OPERATORS[sign]
    if name in RULES:
        return np.asarray(compare(getattr(trace, name), _number(name, value)), dtype=np.bool_)
    texts = _texts(trace, name)
    if sign not in ("=", "==", "!="):
        raise UserError(f"{name} is text, which {sign} cannot compare; use = or !=")
    return np.fromiter((compare(text, value) for text in texts), dtype=np.bool_, count=len(trace))


def names(trace: Trace) -> list[str]:
    return [*trace.labels, "id", "user", "gpu_type", *RULES]


def _texts(trace: Trace, name: str) -> list[str]:
    columns = {"id": trace.ids, "job": trace.ids, "user": trace.users, "gpu_type": trace.gpu_types}
    label = name.removeprefix(LABEL)
    if name in columns:
        return columns[name]
    if label in trace.labels:
        return trace.labels[label]
    known = names(trace)
    raise UserError(f"the trace has no column {quoted(name)}, only {', '.join(known)}{suggest(name, known)}")


def _number(name: str, text: str) -> float:
    """A value as the column's cells are written; submit may be a date."""
    if not text:
        raise UserError(f"--where: a value for {name} is missing")
    if name == "submit":
        return parse_instant(text)
    rule = RULES[name]
    try:
        return rule.parse(text)
    except UserError as error:
        raise UserError(f"--where: {name}: {error}") from None


def _instant(text: str | float, label: str) -> float:
    if not isinstance(text, str):
        return float(text)
    try:
        return parse_instant(text)
    except UserError as error:
        raise UserError(f"{label}: {error}") from None


def _narrowed(trace: Trace, keep: Flags, more: Flags, condition: str) -> Flags:
    narrowed: Flags = keep & more
    if narrowed.any():
        return narrowed
    if more.any():
        raise UserError(f"no job is left: {condition} fits {int(more.sum()):,} jobs, but none that meets the rest")
    match = _CONDITION.fullmatch(condition)
    found = ""
    if match is not None and match[1] not in RULES:
        common = Counter(_texts(trace, match[1])).most_common(_MOST_SHOWN + 1)
        shown = ", ".join(f"{quoted(text)} ({count:,})" for text, count in common[:_MOST_SHOWN])
        found = f"; {match[1]} is {shown}{' and others' if len(common) > _MOST_SHOWN else ''}"
    elif match is not None:
        values = getattr(trace, match[1])[keep].astype(np.float64)
        known = values[np.isfinite(values)]
        if len(known):
            found = f"; {match[1]} is {format_number(known.min())} to {format_number(known.max())}"
    raise UserError(f"no job has {condition}{found}")


def _narrowed_in_time(trace: Trace, keep: Flags, more: Flags, said: str) -> Flags:
    narrowed: Flags = keep & more
    if narrowed.any():
        return narrowed
    first, last = float(trace.submit[keep].min()), float(trace.submit[keep].max())
    show = format_time if are_dates(first, last) else format_number
    raise UserError(f"no job is left {said}: the jobs were submitted from {show(first)} to {show(last)}")
