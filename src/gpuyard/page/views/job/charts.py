"""What a job's GPUs did while it ran: the browser asks for what is recorded, and is sent the samples that come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from nicegui import ui
from nicegui.element import Element

from gpuyard.page.parts import heading
from gpuyard.page.samples import METRICS
from gpuyard.page.sections import Section
from gpuyard.page.views.job import telling
from gpuyard.page.visit import Visit

Run = tuple[tuple[int, ...], float]
"""The GPUs of an attempt, and when it began."""


class Curves(Element, component="../../assets/curves.js"):
    """The charts; samples are sent to `take`."""

    def __init__(self, job: Mapping[str, Any], run: Run, end: float | None) -> None:
        super().__init__()
        gpus, begin = run
        self._props |= {
            "job": job["id"], "attempt": job["attempt"], "gpus": list(gpus), "begin": begin, "end": end,
            "promised": job["gpu_memory"] or None,
        }  # fmt: skip

    def show(self, end: float) -> None:
        """The job has ended."""
        self._props["end"] = end
        self.update()


class Charts:
    """The part of the view that has them: of the latest attempt."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._box = ui.element("section").classes("gy-job-charts")
        with self._box:
            self._facts = Section()
            self._drawn = ui.element("div")
        self._run: Run | None = None
        self._curves: Curves | None = None
        self._end: float | None = None
        self._last = 0.0

    def show(self, job: Mapping[str, Any]) -> None:
        """Draw them once it runs, and add what is new."""
        gpus, begin = tuple(job["gpus"]), _seconds(job["started_at"])
        if not gpus or begin is None:
            return
        end = _seconds(job["ended_at"])
        used = list(telling.used(job))
        self._facts.show(used, lambda: _head(used))
        if (gpus, begin) != self._run:
            self._run, self._end, self._last = (gpus, begin), end, begin
            self._drawn.clear()
            with self._drawn:
                self._curves = Curves(job, self._run, end)
        if self._curves is not None and self._end is None:
            self._go_on(self._curves, gpus)
            if end is not None:
                self._end = end
                self._curves.show(end)

    def _go_on(self, curves: Curves, gpus: tuple[int, ...]) -> None:
        samples = self._visit.feed.samples
        at = [time for time in samples.at if time > self._last]
        if not at:
            return
        self._last = at[-1]
        told = [{"index": gpu, **{name: _latest(samples.of(gpu, name), len(at)) for name in METRICS}} for gpu in gpus]
        curves.run_method("take", json.dumps({"at": at, "gpus": told}))


def _head(used: Sequence[tuple[str, str]]) -> None:
    heading("Its GPUs")
    if used:
        with ui.element("dl").classes("gy-job-used"):
            for label, value in used:
                with ui.element("div"):
                    with ui.element("dt"):
                        ui.label(label)
                    with ui.element("dd"):
                        ui.label(value)


def _latest(values: Sequence[float | None], count: int) -> list[float | None]:
    known = list(values[-count:])
    return [None] * (count - len(known)) + known


def _seconds(iso: str | None) -> float | None:
    return None if iso is None else datetime.fromisoformat(iso).timestamp()
