"""Routes of recordings: what GPUs and jobs did in a span of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import Query, Response

from gpuyard.api import grant_types
from gpuyard.daemon.background.recorder import Recorder
from gpuyard.daemon.store.reader import EventFilter
from gpuyard.daemon.store.statistics import Spell, spells, usage
from gpuyard.daemon.store.views import JobView, gpu_part
from gpuyard.errors import UserError, suggest
from gpuyard.recordings.queries import Told, Track, Values, Wanted
from gpuyard.recordings.series import METRICS, OF_GPUS, names_of
from gpuyard.server import tasks
from gpuyard.server.context import Context
from gpuyard.server.request_fields import Since
from gpuyard.server.responses import iso, reply
from gpuyard.server.routes.gpus import chosen_gpus
from gpuyard.server.routes.statistics import span_of
from gpuyard.server.routing import AT, LATER, NO_JOB, Route, ok

_USUAL, _MOST = 600, 20_000
_HOUR = 3600.0
_SPELLS = 2_000  # attempts with marks, the latest
_OWN = 64  # attempts with series of their own, the latest
_EVENTS = 50_000
_SPANS = frozenset(("Placed", "Started", "Exited", "Preempted", "Requeued"))

Metrics = Annotated[str, Query(max_length=1000, description="Only these, with commas between them.")]
Points = Annotated[
    int, Query(ge=1, le=_MOST, description="At most so many values; if there are more, spans become one.")
]
Attempt = Annotated[int | None, Query(ge=1, le=2**31, description="Only this attempt.")]


RECORDED: dict[str, Any] = {
    "from": AT, "to": LATER, "start": 1794821400.0, "end": 1794826800.0, "period": 60.0, "level": "minutes",
    "simulated": False,
    "gpus": [
        {
            "index": 1, "uuid": "GPU-5c1d4a4e", "name": "NVIDIA A100", "memory_total": 42949672960,
            "at": [1794821400.0, 1794821460.0],
            "metrics": {"power": {"mean": [240.5, None], "min": [212.0, None], "max": [251.0, None]}},
        }
    ],
    "jobs": [
        {
            "id": "19", "attempt": 1, "gpu": 1, "at": [1794821400.0],
            "metrics": {"process_memory": {"mean": [21474836480.0], "min": None, "max": None}},
        }
    ],
    "marks": [{"at": 1794821400.0, "until": 1794826800.0, "label": "job 19 (train)", "gpu": 1, "job": "19"}],
    "energy_wh": 360.7, "gpu_hours": 1.5, "warnings": [],
}  # fmt: skip


class RecordingRoutes:
    def __init__(self, context: Context, recorder: Recorder) -> None:
        self._context, self._recorder = context, recorder
        self._one_at_a_time = asyncio.Lock()

    @Route(
        "GET /recordings", "getRecordings", "What GPUs did in a span of time", "GPUs",
        ok("What.", grant_types.Recorded, RECORDED), (404, 422),
    )  # fmt: skip
    async def recordings(
        self,
        from_: Annotated[
            Since, Query(alias="from", description="From then on; an hour before the end if not said.")
        ] = None,
        to: Annotated[Since, Query(description="Until then; until now if not said.")] = None,
        gpus: Annotated[str, Query(description="Only of these GPUs, with commas between them.")] = "",
        metrics: Metrics = "",
        points: Points = _USUAL,
    ) -> Response:
        """What GPUs did in a span of time, and who was on them; what jobs used by themselves if it is asked for."""
        chosen = chosen_gpus(self._context.daemon.machine, gpus)
        begin, end = span_of(from_, to, time.time(), _HOUR)
        names = _names(metrics, OF_GPUS)

        def look() -> Response:
            columns, more = usage(self._context.settings.database, begin, end, _SPELLS)
            there = [spell for spell in _spells(columns) if chosen is None or {*spell.gpus} & {*chosen}]
            own = [(spell.job, spell.attempt) for spell in there[:_OWN]]
            recorded = self._recorder.read(self._wanted(begin, end, names, points, chosen, own))
            warnings = [f"only the latest {_SPELLS} jobs of that time are told of"] if more else []
            shown = [(spell, gpu) for spell in there for gpu in spell.gpus if chosen is None or gpu in chosen]
            marks = [_mark(spell, gpu) for spell, gpu in shown]
            energies = [track.watt_hours for track in recorded.gpus if track.watt_hours is not None] if recorded else []
            spent = sum(energies) if energies else None, _had(there, chosen, begin, end)
            return self._reply(recorded, (begin, end), marks, spent, warnings)

        async with self._one_at_a_time:  # it may read a month
            return await asyncio.to_thread(look)

    @Route(
        "GET /jobs/{job}/recording", "getRecording", "What a job did on its GPUs", "Jobs",
        ok("What.", grant_types.Recorded, RECORDED), NO_JOB,
    )  # fmt: skip
    async def of_job(
        self, job: str, metrics: Metrics = "", points: Points = _USUAL, attempt: Attempt = None
    ) -> Response:
        """What a job, or the tasks of an array, did on its GPUs while it had them."""
        names, now = _names(metrics, tuple(METRICS)), time.time()

        def look() -> Response:
            views = {view.id: view for view in tasks.chosen(self._context.reader, job)}
            there = [one for one in self._attempts(views) if attempt is None or one.attempt == attempt]
            if attempt is not None and not there:
                raise UserError(f"job {job} has no attempt {attempt} that ran (gpuyard show {job} lists them)")
            if not there:
                why = [f"job {job} has not run yet"]
                return self._reply(None, (now, now), [], (None, 0.0), why)
            begin, end = min(one.begin for one in there), max(one.end or now for one in there)
            gpus = sorted({gpu for one in there for gpu in one.gpus})
            own = [(one.job, one.attempt) for one in there[-_OWN:]]
            recorded = self._recorder.read(self._wanted(begin, max(end, begin + 1e-3), names, points, gpus, own))
            for track in recorded.gpus if recorded else ():
                _only_within(track, [one for one in there if track.who.gpu in one.gpus], now)
            marks = [_mark(one._replace(name=views[one.job].name), gpu) for one in there for gpu in one.gpus]
            return self._reply(recorded, (begin, end), marks, self._spent(there, views, now), [])

        async with self._one_at_a_time:
            return await asyncio.to_thread(look)

    def _wanted(
        self, begin: float, end: float, names: list[str], points: int, gpus: Sequence[int] | None,
        own: Sequence[tuple[str, int]],
    ) -> Wanted:  # fmt: skip
        recorder = self._recorder
        return Wanted(begin, end, names, points, gpus, own, max(recorder.period, 1e-3), recorder.apart)

    def _attempts(self, views: dict[str, JobView]) -> list[Spell]:
        reader, last = self._context.reader, self._context.daemon.store.last
        found = [
            spell
            for job in list(views)[-_SPELLS:]
            for spell in spells(row for _, row, _ in reader.happened(0, last, EventFilter(job, _SPANS), _EVENTS))
        ]
        return sorted(found, key=lambda spell: spell.begin)

    def _spent(self, there: Iterable[Spell], views: dict[str, JobView], now: float) -> tuple[float | None, float]:
        measures, energies, hours = self._context.daemon.measures, list[float](), 0.0
        for one in there:
            live = measures.of(one.job) if one.end is None else None
            energy = live.energy_wh if live and live.attempt == one.attempt else one.measured.get("energy_wh")
            energies += [] if energy is None else [energy]
            seconds = (one.end or now) - one.begin
            hours += len(one.gpus) * seconds * gpu_part(views[one.job].work, measures.gpu_memory) / _HOUR
        return (round(sum(energies), 6) if energies else None), round(hours, 6)

    def _reply(
        self, recorded: Told | None, span: tuple[float, float], marks: list[dict[str, Any]],
        spent: tuple[float | None, float], warnings: list[str],
    ) -> Response:  # fmt: skip
        settings, recorder = self._context.settings, self._recorder
        if not settings.record:
            warnings = [*warnings, "nothing is recorded (setting record)"]
        elif recorder.failing:
            warnings = [*warnings, f"nothing is recorded now: {recorder.failing}"]
        tracks = recorded.gpus if recorded else []
        made_up = (
            any(track.who.simulated for track in tracks) if tracks else self._context.daemon.machine.gpus.simulated
        )
        errors = [_error(track, at, xid) for track in tracks for at, xid in track.errors]
        return reply(
            {
                "from": iso(span[0]), "to": iso(span[1]), "start": round(span[0], 3), "end": round(span[1], 3),
                "period": recorded.period if recorded else recorder.period,
                "level": recorded.level.name if recorded else "samples",
                "simulated": made_up, "gpus": [_gpu(track) for track in tracks],
                "jobs": [_job(track) for track in recorded.jobs] if recorded else [], "marks": [*marks, *errors],
                "energy_wh": spent[0], "gpu_hours": spent[1], "warnings": warnings,
            }
        )  # fmt: skip


def _names(text: str, usual: tuple[str, ...]) -> list[str]:
    if not text:
        return list(usual)
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in METRICS:
            near = suggest(name[:80], METRICS)
            raise UserError(f"there is no metric '{name[:80]}'{near}; there are {', '.join(METRICS)}")
    return names_of(wanted)


def _spells(columns: dict[str, list[Any]]) -> list[Spell]:
    rows = zip(*(columns[name] for name in ("job", "attempt", "gpu", "begin", "end", "name")), strict=True)
    return [Spell(job, attempt, tuple(gpus), begin, end, {}, name) for job, attempt, gpus, begin, end, name in rows]


def _had(there: Iterable[Spell], gpus: Sequence[int] | None, begin: float, end: float) -> float:
    """Hours for which jobs had GPUs in a span of time; a shared GPU counts once."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for one in there:
        for gpu in one.gpus:
            if gpus is None or gpu in gpus:
                spans.setdefault(gpu, []).append((max(begin, one.begin), min(end, one.end or end)))
    seconds = 0.0
    for some in spans.values():
        until = begin
        for first, last in sorted(some):
            seconds += max(0.0, last - max(first, until))
            until = max(until, last)
    return round(seconds / _HOUR, 6)


def _only_within(track: Track, there: Sequence[Spell], now: float) -> None:
    """Drop what a GPU did outside the job's attempts; one NaN between two attempts makes a gap in plots."""
    slack = max(1.0, float(np.median(np.diff(track.at))) if len(track.at) > 1 else 1.0)
    inside = np.zeros(len(track.at), dtype=bool)
    for one in there:
        inside |= (track.at >= one.begin - slack) & (track.at <= (one.end or now))
    kept = inside | np.append(False, inside[:-1])
    if kept.any() and not inside[np.flatnonzero(kept)[-1]]:
        kept[np.flatnonzero(kept)[-1]] = False

    def cut(values: Any) -> Any:
        return None if values is None else np.where(inside, values, np.nan)[kept]

    track.metrics = {name: Values(cut(v.mean), cut(v.low), cut(v.high)) for name, v in track.metrics.items()}
    track.at = track.at[kept]


def _mark(spell: Spell, gpu: int) -> dict[str, Any]:
    named = f" ({spell.name})" if spell.name else ""
    label = f"job {spell.job}{named}" + f", attempt {spell.attempt}" * (spell.attempt > 1)
    return {"at": spell.begin, "until": spell.end, "label": label, "gpu": gpu, "job": spell.job}


def _error(track: Track, at: float, xid: int) -> dict[str, Any]:
    return {"at": at, "until": None, "label": f"XID {xid}", "gpu": track.who.gpu, "job": None}


def _gpu(track: Track) -> dict[str, Any]:
    who = track.who
    return {
        "index": who.gpu, "uuid": who.uuid, "name": who.name, "memory_total": who.memory or None,
        "at": track.at.round(3).tolist(), "metrics": {name: _values(name, v) for name, v in track.metrics.items()},
    }  # fmt: skip


def _job(track: Track) -> dict[str, Any]:
    who = track.who
    return {
        "id": who.job, "attempt": who.attempt, "gpu": who.gpu, "at": track.at.round(3).tolist(),
        "metrics": {name: _values(name, v) for name, v in track.metrics.items()},
    }  # fmt: skip


def _values(name: str, values: Values) -> dict[str, Any]:
    digits = 0 if METRICS[name].unit == "bytes" else 2
    parts = (("mean", values.mean), ("min", values.low), ("max", values.high))
    return {kind: None if part is None else part.round(digits).tolist() for kind, part in parts}
