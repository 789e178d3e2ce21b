"""GPU usage: windows of samples, the usage of pods, and forecasts for others."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpuyard.core.usage.admission import USUAL, Peak, Statistics, Usage, Window, statistics_of
from gpuyard.core.usage.charging import settle
from gpuyard.core.usage.overcommit import hopeful
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.kubernetes.gpu_samples import Outage, Sampler, Samples, Series
from gpuyard.kubernetes.settings import Settings
from gpuyard.kubernetes.workload_history import WorkloadHistory
from gpuyard.predict.similar_runs import Run
from gpuyard.units import format_size

if TYPE_CHECKING:
    from gpuyard.kubernetes.cluster.cluster_state import ClusterState
    from gpuyard.kubernetes.cluster.inventory import Assignment

Place = tuple[str, int]  # a node, and the index of a GPU there
_LONGEST = 600  # samples of a window
_MIB = 2**20
_NOTHING = 50.0 * _MIB  # bytes that a process takes before it does anything
_FEW = 3  # samples at least for which a run that is over must not have grown, if its peak is to tell anything
_BEGUN = 0.1  # part of the request below which a pod is still starting
_FEW_STEADY = 5  # samples without growth that tell something if they are spread over ...
_PART = 0.25  # ... this part of the time that a pod is known to run
_GROWS = 1.02  # times as much is growth, less is noise
_BITE = 250  # jobs whose charge changes before a plan
_DISTRUST = 3600.0  # seconds for which a kind of pod counts with what it asks for, after one was killed beside others


@dataclass(slots=True)
class PodUsage:
    peak: float = 0.0
    samples: int = 0
    steady: int = 0  # samples since it last grew
    enough: float = math.inf  # seconds after which a few steady samples suffice: a good part of its known run time
    least: float = _NOTHING  # bytes: a pod below has not begun, so that no growth says nothing
    grew_at: float = 0.0
    seen_at: float = 0.0

    @property
    def settled(self) -> bool:
        long = self.steady >= _FEW_STEADY and self.seen_at - self.grew_at >= self.enough
        return self.peak > self.least and (self.steady >= USUAL.samples or long)

    @property
    def tells(self) -> bool:
        """Whether the peak of a finished run is meaningful: it had stopped growing."""
        return self.peak > _NOTHING and self.steady >= max(_FEW, self.samples / 4)

    def saw(self, used: float, at: float = 0.0) -> None:
        self.samples += 1
        self.seen_at = at
        if used > _GROWS * self.peak:
            self.peak, self.steady, self.grew_at = used, 0, at
        else:
            self.peak, self.steady = max(self.peak, used), self.steady + 1


@dataclass(slots=True)
class GpuWindow:
    """One GPU: its samples since the last placement, and its pods in the order of placement."""

    window: deque[float] = field(default_factory=lambda: deque(maxlen=_LONGEST))
    since: float = 0.0
    tenants: dict[str, None] = field(default_factory=dict)
    idle_use: float = 0.0  # what was used without pods on it
    used: float | None = None
    free: float | None = None
    utilization: float | None = None
    at: float = 0.0


class GpuUsage:
    """Usage of all GPUs and pods. Only the scheduler's thread calls it."""

    world: ClusterState

    def __init__(self, settings: Settings, learned: WorkloadHistory, *, period: float = 1.0) -> None:
        self._settings, self.learned, self._period = settings, learned, period
        self._sampler: Sampler | None = None
        self.cards: dict[Place, GpuWindow] = {}
        self.measures: dict[str, PodUsage] = {}
        self.trouble = ""  # why nothing is known of usage at present; empty: all is well
        self._distrusted: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._ranks: dict[tuple[Place, str], int] = {}
        self._node_by: dict[str, str] = {}
        self._stamp = self._planned_stamp = 0
        self._known: tuple[tuple[int, int], Usage] | None = None
        self._planned: Usage | None = None
        self.crowded: list[tuple[Pod, str]] = []  # pods whose memory others want now, and the reason

    @property
    def on(self) -> bool:
        return self._settings.admission == "usage"

    def start(self, tell: Callable[[Samples | Outage], None]) -> None:
        if self._settings.prometheus:
            self._sampler = Sampler(self._settings.prometheus, tell, self._period)
            self._sampler.start()

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    # -- pods on GPUs ------------------------------------------------------------------------------

    def card(self, place: Place) -> GpuWindow:
        return self.cards.setdefault(place, GpuWindow())

    def placed(self, pod: Pod, assignment: Assignment, now: float) -> None:
        """A pod was given GPUs: earlier samples say nothing about them any more."""
        for index in assignment.indices:
            self._moved_in(pod, (assignment.node, index), now)

    def _moved_in(self, pod: Pod, place: Place, now: float) -> None:
        card = self.card(place)
        card.tenants[pod.uid] = None
        card.window.clear()
        card.since = now

    def saw(self, pod: Pod, now: float) -> None:
        if pod.over:
            self.gone(pod, now)
            return
        if pod.node and pod.indices and self.world.is_ours(pod):
            for index in pod.indices:
                if pod.uid not in self.card((pod.node, index)).tenants:
                    self._moved_in(pod, (pod.node, index), pod.started or now)
        if pod.restarts > self._restarts.get(pod.uid, 0) and pod.admitted_by in ("history", "cbp", "pp"):
            self._distrusted[pod.signature] = now + _DISTRUST
        if pod.restarts:
            self._restarts[pod.uid] = pod.restarts

    def gone(self, pod: Pod, now: float) -> None:
        """A pod has ended: its use predicts that of similar pods."""
        self._restarts.pop(pod.uid, None)
        measure, known = self.measures.pop(pod.uid, None), False
        for place in [(pod.node, index) for index in pod.indices]:
            if place in self.cards and self.cards[place].tenants.pop(pod.uid, "") is None:
                known = True
                self.cards[place].window.clear()
                self.cards[place].since = now
        if not known or pod.started is None or not pod.signature:
            return
        peak = measure.peak if measure is not None and measure.tells else 0.0
        outcome = {"Succeeded": "succeeded", "Failed": "failed"}.get(pod.phase, "cancelled")  # servers run until then
        seconds = max((pod.ended or now) - pod.started, 0.001)
        self.learned.add(pod.signature, Run(now, seconds, outcome, peak))
        self._stamp += 1

    # -- what Prometheus tells ----------------------------------------------------------------------

    def heard(self, message: Samples | Outage, now: float) -> None:
        if isinstance(message, Outage):
            self._stamp += not self.trouble
            self.trouble = message.why
            return
        self._stamp += 1
        self.trouble = ""
        touched = dict[Place, None]()
        for series in message.series:
            place = self._place(series)
            if place is not None and self._counts(place, series):
                self._take(place, series)
                touched[place] = None
        for place in touched:  # now that what is used and what is free are of the same moment
            card = self.card(place)
            if card.used is not None and card.free is not None:
                self._size(place[0], card.used + card.free)
                self._look_for_crowds(place, card, card.free)

    def _place(self, series: Series) -> Place | None:
        """The GPU that samples are about; None if the cluster has no such node."""
        for host in series.hosts:
            if (name := self._node(host)) is not None:
                return name, series.gpu
        return None

    def _node(self, host: str) -> str | None:
        nodes = self.world.nodes
        if host in nodes:
            return host
        known = self._node_by.get(host)
        if known in nodes:
            return known
        found = next((node.name for node in nodes.values() if host in node.addresses), None)
        if found is None:
            found = next((pod.node for pod in self.world.pods.values() if pod.ip == host and pod.node in nodes), None)
        if found is not None:
            self._node_by[host] = found
        return found

    def _counts(self, place: Place, series: Series) -> bool:
        """Whether the metric has no better name among the series."""
        rank = self._ranks.setdefault((place, series.metric), series.rank)
        self._ranks[place, series.metric] = min(rank, series.rank)
        return series.rank <= rank

    def _take(self, place: Place, series: Series) -> None:
        card = self.card(place)
        if series.metric == "utilization":
            card.utilization = series.values[-1] if series.values else card.utilization
        elif series.metric == "memory_free":
            card.free = series.values[-1] if series.values else card.free
        elif series.metric == "memory_used":
            for at, used in zip(series.times, series.values, strict=True):
                self._sample(card, at, used)

    def _size(self, node: str, size: float) -> None:
        """Measure the GPUs of a node that does not declare their memory."""
        known = self.world.measured.get(node, 0.0)
        if node in self.world.nodes and not self.world.nodes[node].gpu_memory and abs(size - known) > 0.02 * size:
            self.world.measured[node] = size
            self.world.stale = True

    def _sample(self, card: GpuWindow, at: float, used: float) -> None:
        card.used, card.at = used, at
        if at <= card.since:
            return
        card.window.append(used)
        tenants = list(card.tenants)
        if not tenants:
            if at > card.since + 5.0:
                card.idle_use = used
            return
        others = [self._measure(uid) for uid in tenants[:-1]]
        if all(one.settled for one in others):
            own = used - min(card.idle_use, used) - sum(one.peak for one in others)
            self._measure(tenants[-1]).saw(max(own, 0.0), at)

    def _measure(self, uid: str) -> PodUsage:
        if uid not in self.measures:
            pod = self.world.pods.get(uid)
            seconds = self._known_seconds(pod) if pod is not None else None
            asked = pod.gpu_memory if pod is not None and pod.shares else 0.0
            least = max(_NOTHING, _BEGUN * asked)
            self.measures[uid] = PodUsage(enough=_PART * seconds if seconds else math.inf, least=least)
        return self.measures[uid]

    def _look_for_crowds(self, place: Place, card: GpuWindow, left: float) -> None:
        if len(card.tenants) < 2 or left >= self._settings.buffer:
            return
        for uid in reversed(card.tenants):
            pod = self.world.pods.get(uid)
            if pod is not None and pod.admitted_by in ("history", "cbp", "pp"):
                if pod.controlled and not pod.deleting:
                    why = (
                        f"evicted: others on GPU {place[1]} want what they asked for, and {format_size(left)} were left"
                    )
                    self.crowded.append((pod, why))
                return

    # -- what is expected ---------------------------------------------------------------------------

    def estimate(self, pod: Pod) -> float:
        return self._known_seconds(pod) or self._settings.default_duration

    def _known_seconds(self, pod: Pod) -> float | None:
        """The estimate, or None without any evidence."""
        if pod.duration is not None:
            return pod.duration
        named = self._settings.duration_of(pod.name, pod.signature)
        return named if named is not None else self.learned.of(pod.signature).seconds or None

    def _expected(self, signature: str, running: dict[str, tuple[str, PodUsage]]) -> Peak | None:
        """Peak memory of a kind of pod; None without evidence."""
        if self._distrusted.get(signature, 0.0) > time.time():
            return None
        runs = self.learned.of(signature)
        past = Peak(runs.memory, runs.peak or runs.memory, runs.evidence) if runs.memory > 0 else None
        now = self._by_running(*running[signature]) if signature in running else None
        if now is None or past is None:
            return now or past
        return max(now, past, key=lambda peak: peak.memory)

    def _by_running(self, name: str, measure: PodUsage) -> Peak:
        margin = self._settings.memory_margin
        memory = math.ceil(measure.peak * (1 + margin) / _MIB) * float(_MIB)
        evidence = f"{name} has used {format_size(measure.peak)} for {measure.steady} samples + {100 * margin:.0f} %"
        return Peak(memory, measure.peak, evidence)

    def usage(self, now: float) -> Usage | None:
        """Current knowledge; None where usage does not count or is unknown."""
        state = self.world.state
        if not self.on or self.trouble or state is None:
            return None
        version = state.version, self._stamp
        if self._known is None or self._known[0] != version:
            self._known = version, self._learnt()
        return self._known[1]

    def _learnt(self) -> Usage:
        state, world = self.world.state, self.world
        assert state is not None
        running = self._settled()
        found, peaks, exempt = dict[str, Peak | None](), dict[str, Peak](), set[str]()
        for uid, job in world.job_of.items():
            pod = world.pods.get(uid)
            if pod is None or not pod.shares:
                continue
            if not pod.usage:
                exempt.add(job)
                continue
            if pod.signature not in found:
                found[pod.signature] = self._expected(pod.signature, running)
            peak = found[pod.signature]
            if peak is not None and not self._outgrew(uid, peak):
                peaks[job] = peak
        return Usage(dict(self._statistics()), peaks, exempt=frozenset(exempt))

    def _outgrew(self, uid: str, expected: Peak) -> bool:
        """Whether a pod uses more than expected; then its request counts."""
        measure = self.measures.get(uid)
        return measure is not None and measure.peak > expected.memory

    def _settled(self) -> dict[str, tuple[str, PodUsage]]:
        found = dict[str, tuple[str, PodUsage]]()
        for uid, measure in self.measures.items():
            pod = self.world.pods.get(uid)
            if pod is None or not measure.settled:
                continue
            if pod.signature not in found or measure.peak > found[pod.signature][1].peak:
                found[pod.signature] = f"pod {pod.key}", measure
        return found

    def _statistics(self) -> Iterator[tuple[int, Statistics]]:
        layout = self.world.layout
        for (node, index), card in self.cards.items():
            gpus = layout.gpus(node, [index])
            if not card.tenants or gpus is None:
                continue
            capacity = layout.memory[layout.number[node]] - self._settings.buffer
            used = np.array(card.window)
            yield gpus[0], statistics_of(Window(capacity, used, np.maximum(capacity - used, 0.0)))

    # -- plans --------------------------------------------------------------------------------------

    def charge(self, now: float) -> None:
        state = self.world.state
        if state is None or (not self.on and not state.charges):
            return
        self._planned, self._planned_stamp = self.usage(now), self._stamp
        for event in settle(state, self._planned, now, _BITE):
            self.world.record(event)

    def is_due(self, now: float) -> bool:
        state = self.world.state
        if not self.on or state is None or self._stamp == self._planned_stamp:
            return False
        known = self.usage(now)
        self._planned_stamp = self._stamp
        if known is None or self._planned is None:
            return known is not self._planned
        if known.peaks != self._planned.peaks:
            return True
        ready = any(seen.samples >= USUAL.samples for seen in known.statistics.values())
        return ready and hopeful(state, known)
