"""Batsim's JSON workloads, as far as the length of their jobs is known: delay profiles."""

from __future__ import annotations

import json
import math
from typing import Any

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.columns import RULES, Rule, name_of
from gpuyard.sim.traces.source import Source, first_line, quoted

_COUNT = Rule(low=1.0, high=RULES["gpus"].high)


def recognises(head: str) -> bool:
    """A JSON object; one whole object per line is jsonl, which is asked first."""
    return first_line(head).startswith("{")


def read(source: Source) -> Trace:
    """Jobs in file order. A job runs for its delay, or until Batsim kills it at its walltime."""
    workload = _loaded(source)
    profiles = workload.get("profiles", {})
    listed = workload.get("jobs")
    if not isinstance(listed, list) or not isinstance(profiles, dict):
        raise UserError(f"{source.name}: a Batsim workload needs a list 'jobs' and an object 'profiles'")
    rows: dict[str, tuple[float, float, float, float]] = {}
    for position, job in enumerate(listed):
        name = _name(source, position, job)
        if name in rows:
            raise UserError(f"{source.name}: two jobs have the id {quoted(name)}")
        try:
            rows[name] = _row(job, profiles)
        except UserError as error:
            raise UserError(f"{source.name}, job {name}: {error}") from None
    return _trace(source, rows, _capacity(source, workload))


def _trace(source: Source, rows: dict[str, tuple[float, float, float, float]], capacity: int | None) -> Trace:
    submit, run, gpus, requested = zip(*rows.values(), strict=True) if rows else ((), (), (), ())
    return Trace.of(
        submit,
        run,
        gpus,
        requested=requested,
        ids=list(rows),
        source=source.name,
        format="batsim",
        capacity=capacity,
    )


def _loaded(source: Source) -> dict[str, Any]:
    text = "".join(line for _, line in source.lines())
    try:
        workload = json.loads(text)
    except json.JSONDecodeError as error:
        raise source.error(error.lineno, f"not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise UserError(f"{source.name}: not valid JSON: a number is too long or brackets are too deep") from None
    if not isinstance(workload, dict):
        raise UserError(f"{source.name}: a Batsim workload is a JSON object")
    return workload


def _name(source: Source, position: int, job: object) -> str:
    where = f"{source.name}, jobs[{position}]"
    if not isinstance(job, dict):
        raise UserError(f"{where}: a job is a JSON object")
    try:
        name = name_of(job.get("id"), "id")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not name:
        raise UserError(f"{where}: id is missing")
    return name


def _row(job: dict[str, Any], profiles: dict[str, Any]) -> tuple[float, float, float, float]:
    """Submit time, run time, machines and walltime of one job."""
    submit = _value(job, "subtime", RULES["submit"])
    machines = _value(job, "res", _COUNT)
    if not machines.is_integer():
        raise UserError(f"res must be a whole number, not {machines:g}")
    delay = _delay(str(job.get("profile", "")), profiles)
    walltime = job.get("walltime")
    if walltime is None or walltime == -1:  # Batsim's own way to say: none
        return submit, delay, machines, math.nan
    limit = RULES["requested"].read(walltime, "walltime")
    return submit, min(delay, limit), machines, limit


def _delay(name: str, profiles: dict[str, Any]) -> float:
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        raise UserError(f"there is no profile {quoted(name)}")
    if profile.get("type") != "delay":
        kind = quoted(str(profile.get("type")))
        raise UserError(f"profile {quoted(name)} has the type {kind}, and only delay profiles have a known length")
    return _value(profile, "delay", RULES["run"])


def _value(record: dict[str, Any], key: str, rule: Rule) -> float:
    if record.get(key) is None:
        raise UserError(f"{key} is missing")
    return rule.read(record[key], key)


def _capacity(source: Source, workload: dict[str, Any]) -> int | None:
    if workload.get("nb_res") is None:
        return None
    try:
        return int(_value(workload, "nb_res", _COUNT))
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from None
