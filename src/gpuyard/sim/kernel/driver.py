"""From a trace to a schedule with the compiled drivers: what they can do, their arguments, and reruns for training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from gpuyard.core.columns import ALWAYS, COLUMNS
from gpuyard.core.loops import backfill, conservative, formulas, placement, pool, victims
from gpuyard.core.loops.pool import PACKING, RANDOM, Flags, Floats, Ints, Site, on_copy
from gpuyard.core.model import Cluster, Request
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policy import Policy, PolicyError
from gpuyard.core.queue_features import length_of
from gpuyard.core.state import State
from gpuyard.errors import Bug, UserError
from gpuyard.sim.kernel import (
    compiler,
    dynamic_priority,
    job_columns,
    preemption_driver,
    preemption_state,
    queue_scoring,
    schedule,
    static_priority,
)
from gpuyard.sim.kernel.compilation import Compilation
from gpuyard.sim.replay import Progress, check_timing
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.trace import Trace

MODULES = (
    pool, placement, formulas, backfill, victims, conservative, schedule, static_priority, preemption_state,
    job_columns, dynamic_priority, preemption_driver,
)  # fmt: skip
SCORING_MODULES = (
    pool, placement, formulas, backfill, conservative, schedule, static_priority, job_columns,
    dynamic_priority, queue_scoring,
)  # fmt: skip
"""Of a module of its own: what trained policies need is not compiled with the rest."""
SCORING_ENTRY = "run_queue_scoring"
_UNKNOWN_BEFOREHAND = frozenset({"virtual_finish", "turn", "requeued"})
_USAGE = frozenset({"user_usage", "usage_share"})
_DISCIPLINES = {
    "strict": static_priority.STRICT,
    "commit": static_priority.COMMIT,
    "skip": static_priority.SKIP,
    "easy": static_priority.EASY,
    "easy-shadow": static_priority.EASY_SHADOW,
    "conservative": static_priority.CONSERVATIVE,
}


def why_not(trace: Trace, cluster: Cluster, planner: OrderedPlanner) -> str | None:
    """Why the compiled drivers cannot run a simulation; None if they can."""
    policy = planner.policy
    if planner.code >= PACKING:
        return f"placement {planner.placement} looks at single GPUs"
    if len(trace) and trace.compute.min() < 100:
        return "jobs share GPUs"
    if (cluster.cpus and trace.cpus.any()) or (cluster.host_memory and trace.host_memory.any()):
        return "CPUs or host memory of nodes count"
    if cluster.models and any(trace.gpu_types):
        return "GPU models count"
    if policy.preemptive and policy.changes == ALWAYS:
        return f"ranks of policy {policy.name} change at any time, and it preempts"
    return None


def entry_for(planner: OrderedPlanner) -> str:
    policy = planner.policy
    if policy.preemptive:
        return "run_preempting"
    if policy.looks_around:
        return SCORING_ENTRY
    if not policy.static or _UNKNOWN_BEFOREHAND.intersection(policy.columns):
        return "run_dynamic_priority" if planner.discipline in ("strict", "skip") else SCORING_ENTRY
    return "run_in_order" if planner.discipline in ("strict", "skip", "commit") else "run_backfilling"


Variant = tuple[str, bool]
"""A compiled driver: its entry, and whether it can do what few runs need."""
_RARE = ("CONSERVATIVE", "RANDOM", "DRAW")  # constants whose code is left out where a run needs none of them


def variant_for(planner: OrderedPlanner) -> Variant:
    policy = planner.policy
    draws = "draw" in {*policy.columns, *(policy.next_change.columns if policy.next_change else ())}
    return entry_for(planner), draws or planner.discipline == "conservative" or planner.code == RANDOM


@cache
def loop(variant: Variant) -> Any:
    return getattr(compiler.load(variant[0], _source(variant)), variant[0])


def _source(variant: Variant) -> str:
    entry, complete = variant
    modules = SCORING_MODULES if entry == SCORING_ENTRY else MODULES
    return compiler.merged_source(modules, entry, () if complete else _RARE)


_ON_DISK: set[Variant] = set()


def is_compiled(planner: OrderedPlanner) -> bool:
    variant = variant_for(planner)
    if variant not in _ON_DISK and compiler.is_compiled(variant[0], _source(variant), variant[0]):
        _ON_DISK.add(variant)
    return variant in _ON_DISK


def drive(
    trace: Trace,
    cluster: Cluster,
    planner: OrderedPlanner,
    *,
    estimates: Floats,
    restart_cost: Floats,
    round_length: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    check_timing(planner, restart_cost, round_length)
    trace.check()
    if not trace.in_order:
        by_arrival = trace.arrival_order()
        trace, estimates, restart_cost = trace.take(by_arrival), estimates[by_arrival], restart_cost[by_arrival]
    run = Run(trace, cluster, planner, estimates, restart_cost, round_length, seed)
    watched(run.call, run.schedule.done, len(trace), progress)
    return run.result()


def compilation(planner: OrderedPlanner) -> Compilation:
    variant = variant_for(planner)
    return Compilation(variant[0], _source(variant), variant[0])


def compile_for(planner: OrderedPlanner, show: Callable[[Compilation], None] | None = None) -> None:
    """Load the driver and the policy, or compile them, by simulating one job; `show` is called every now and then."""
    one = replace(Trace.of([0.0], [1.0], [1]), in_order=True)

    def drive_one(progress: Progress | None) -> None:
        fresh = ordered(planner.policy, planner.discipline, planner.placement)
        drive(one, Cluster((1,)), fresh, estimates=one.run, restart_cost=np.zeros(1), progress=progress)

    if is_compiled(planner):
        drive_one(None)
        return
    variant = variant_for(planner)
    with compiler.alone(variant[0], _source(variant)), compilation(planner) as under_way:
        drive_one(None if show is None else lambda *_: show(under_way))


def watched(call: Callable[[], None], done: Ints, total: int, progress: Progress | None) -> None:
    """Run a compiled loop beside this thread, which shows progress and handles Ctrl-C."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # raised again in the waiting thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
        if progress is not None:
            progress(int(done[0]), total)
    if failed:
        raise failed[0]


def _only(record: Any, *names: str) -> Any:
    """A named tuple with only these fields: the compiled loops never look at the others."""
    return type(record)(*(value if name in names else None for name, value in record._asdict().items()))


class Run:
    def __init__(
        self, trace: Trace, cluster: Cluster, planner: OrderedPlanner, estimates: Floats, restart: Floats,
        every: float, seed: int,
    ) -> None:  # fmt: skip
        self.trace, self.cluster, self.planner = trace, cluster, planner
        self.every, self.seed = float(every), int(seed)  # one type each: another would compile the driver again
        restart = np.ascontiguousarray(restart, dtype=np.float64)
        self.state = State(cluster, seed)
        self.users: dict[str, int] = {}
        self._load(estimates)
        self.rejected = self._rejected()
        n, gpus, full = len(trace), cluster.gpus, self.state.pool
        refused = np.zeros(n, dtype=np.bool_)
        refused[list(self.rejected)] = True
        offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.where(refused, 0, trace.gpus))))
        self.work = schedule.Work(trace.submit, trace.run, restart, refused)
        self.site = Site(
            _only(self.state.table.demand, "gpus", "estimate"), _only(full, "size", "idle"), planner.code, 0, False,
            None,  # type: ignore[arg-type]
        )  # fmt: skip
        self.clock = schedule.new_clock(gpus + 1)
        self.pieces: schedule.Pieces | None = None
        self.schedule = schedule.Schedule(
            pool=_only(full, "first", "node", "tenants"),
            lowest=full.first[:-1].copy(),
            free=np.array([gpus]),
            ends=schedule.new_ends(gpus + 1, n if planner.policy.preemptive else 0),
            start=np.full(n, np.nan),
            end=np.full(n, np.nan),
            preemptions=np.zeros(n, dtype=np.int64),
            offset=offset,
            gpus=np.empty(int(offset[-1]), dtype=np.int64),
            nodes=np.empty(int(offset[-1]), dtype=np.int64),
            done=np.zeros(1, dtype=np.int64),
        )

    def _load(self, estimates: Floats) -> None:
        trace = self.trace
        columns: dict[str, Floats | Ints | Flags] = {
            name: getattr(trace, name)
            for name in ("submit", "gpus", "memory", "compute", "priority", "weight", "tickets", "deadline",
                         "preemptible", "cpus", "host_memory")
        }  # fmt: skip
        columns["estimate"] = np.ascontiguousarray(estimates, dtype=np.float64)
        if {*_USAGE, "virtual_finish"}.intersection(self.planner.policy.columns):
            codes = self.users
            columns["user"] = np.array([codes.setdefault(u, len(codes)) for u in trace.users], dtype=np.int64)
        else:
            self.users[""] = 0
        self.state.table.load(columns)

    def _rejected(self) -> dict[int, str]:
        trace = self.trace
        if trace.memory.any():
            kinds, kind = np.unique(np.stack((trace.gpus, trace.memory)), axis=1, return_inverse=True)
            asked = [(int(k), float(memory), kind.ravel() == i) for i, (k, memory) in enumerate(kinds.T)]
        else:
            asked = [(int(k), 0.0, None) for k in np.flatnonzero(np.bincount(trace.gpus))]
        found: dict[int, str] = {}
        for k, memory, rows in asked:
            reason = self.planner.refuses(self.state, Request(gpus=k, memory=memory))
            if reason is not None:
                found |= dict.fromkeys(np.flatnonzero(trace.gpus == k if rows is None else rows).tolist(), reason)
        return dict(sorted(found.items()))

    def call(self) -> None:
        entry, wrong = entry_for(self.planner), -1
        run = loop(variant_for(self.planner))
        if entry == "run_preempting":
            wrong = self._preempting(run)
        elif entry == "run_dynamic_priority":
            wrong = self._scored(run)
        elif entry == SCORING_ENTRY:
            wrong = run(*self.scoring_arguments())
        elif entry == "run_in_order":
            run(
                self.work, self._order(), self.site, self.schedule, self.clock, self._starts(),
                static_priority.new_notes(), self._rules(),
            )  # fmt: skip
        else:
            state = static_priority.new_backfill_state(self.cluster.gpus, len(self.trace))
            run(
                self.work, self._order(), self.site, on_copy(self.site), self.schedule, self.clock, state, self._rules()
            )
        if wrong >= 0:
            name = self.planner.policy.name
            raise PolicyError(f"policy {name} returned 'not a number' for job {self.trace.ids[wrong]}")
        if self.schedule.done[0] < len(self.trace):
            raise Bug("the simulation came to a halt with jobs waiting")

    def _rules(self) -> schedule.Rules:
        return schedule.Rules(_DISCIPLINES[self.planner.discipline], self.seed, self.every)

    def _starts(self) -> backfill.Starts:
        return backfill.new_starts(self.cluster.gpus + 1, 2 * self.cluster.gpus + 1)

    def _order(self) -> static_priority.Order:
        keys = self.planner.policy.rank(self.state, np.arange(len(self.trace)), 0.0)
        return static_priority.new_order(np.argsort(keys, kind="stable"), self.trace.gpus)

    def _facts(self) -> job_columns.JobColumns:
        table, n = self.state.table, len(self.trace)
        return job_columns.JobColumns(
            **{name: getattr(table, name)[:n] for name in job_columns.JobColumns._fields if hasattr(table, name)},
            asked=np.stack([getattr(table, name)[:n].astype(np.float64, copy=False) for name in job_columns.ASKED]),
            named=np.array([user != "" for user in self.users]),
            usage=np.zeros(len(self.users)),
            last_finish=np.zeros(len(self.users)),
            numbers=np.array([0, 0, self.seed]),
            virtual_time=np.zeros(1),
        )

    def _scored(self, entry: Callable[..., int]) -> int:
        policy = self.planner.policy
        waiting = dynamic_priority.new_waiting_jobs(
            len(self.trace), len(policy.columns), self.cluster.gpus, len(self.users)
        )
        rules = dynamic_priority.PriorityRules(
            _codes(policy),
            _when(policy),
            "user_usage" in policy.columns,
            self.planner.discipline == "strict",
            self.every,
        )
        return entry(
            self.work, self.site, self.schedule, self.clock, self._facts(), waiting, self._starts(), rules,
            compiler.compile_policy(policy),
        )  # fmt: skip

    def scoring_arguments(self) -> tuple[Any, ...]:
        """The arguments of `run_queue_scoring`; a trained policy's weights come last."""
        policy, gpus = self.planner.policy, self.cluster.gpus
        length = length_of(self.state.table.estimate[: len(self.trace)])
        scoring = queue_scoring.ScoringState(
            work=self.work,
            schedule=self.schedule,
            facts=self._facts(),
            waiting=dynamic_priority.new_waiting_jobs(len(self.trace), len(policy.columns), gpus, len(self.users)),
            features=queue_scoring.new_features(length, gpus),
            expected=schedule.new_expected(gpus + 1),
            starts=self._starts(),
            columns=_codes(policy),
            with_features=bool((_codes(policy) >= queue_scoring.FIRST_CODE).any()),
            with_usage=bool(_USAGE.intersection(policy.columns)),
            held=np.zeros(len(self.users)),
            chosen=np.full(1, -1),
            shadow=np.full(1, np.inf),
            begun=np.zeros(1, np.int64),
            wrong=np.full(1, -1),
        )
        weights = np.empty(0) if policy.weights is None else policy.weights
        return (
            scoring, self.site, on_copy(self.site), self.clock, self._rules(), compiler.compile_scorer(policy), weights
        )  # fmt: skip

    def _preempting(self, entry: Callable[..., int]) -> int:
        policy, n, gpus = self.planner.policy, len(self.trace), self.cluster.gpus
        change = policy.next_change
        any_fixed = not bool(self.trace.preemptible.all())
        rank = compiler.compile_policy(policy)
        rules = preemption_state.PreemptionRules(
            columns=_codes(policy),
            change_columns=_codes(change) if change else np.empty(0, dtype=np.int64),
            changes=change is not None,
            ranks_hold=_ranks_hold(policy),
            quantum=float(policy.quantum),
            sliced=bool(policy.sliced),
            strict=self.planner.discipline == "strict",
            any_fixed=any_fixed,
            improves=bool(policy.improves) and change is None and policy.quantum == 0 and not any_fixed,
            seed=self.seed,
            every=self.every,
        )
        most = max(len(rules.columns), len(rules.change_columns))
        state = preemption_state.new_preemption_state(self.cluster, self.trace.gpus, self.schedule.nodes, most)
        self.pieces = schedule.new_pieces(n + 2 * gpus + 1, int(self.schedule.offset[-1]) + 2 * gpus + 1)
        facts, starts, when = self._facts(), self._starts(), compiler.compile_policy(change) if change else rank
        while True:
            ended = entry(
                self.work, self.site, self.schedule, self.clock, facts, starts, self.pieces, state, rules, rank, when
            )
            if ended != preemption_driver.FULL:
                return ended
            self.pieces = schedule.longer(self.pieces)

    def result(self) -> Result:
        of = self.schedule
        if self.pieces is None:
            rows = np.arange(len(self.trace))
            job = np.repeat(rows, np.diff(of.offset))
            segments = Segments(job, of.gpus, of.start[job], of.end[job])
        else:
            count, total = self.pieces.sizes
            rows = self.pieces.row[:count]
            sizes = self.trace.gpus[rows]
            times = (np.repeat(values[:count], sizes) for values in (self.pieces.start, self.pieces.end))
            segments = Segments(np.repeat(rows, sizes), self.pieces.gpus[:total], *times)
        return Result(
            trace=self.trace,
            cluster=self.cluster,
            policy=self.planner.text,
            start=of.start,
            end=of.end,
            preemptions=of.preemptions,
            placements=Placements(of.gpus, of.offset[1:]),
            rejected=self.rejected,
            segments=segments,
        )


def _codes(policy: Policy) -> Ints:
    return np.array([queue_scoring.CODES[name] for name in policy.columns], dtype=np.int64)


def _ranks_hold(policy: Policy) -> bool:
    change = policy.next_change
    if change is None or policy.quantum > 0:
        return False
    columns = {*policy.columns, *change.columns}
    return "requeued" not in columns and all(COLUMNS[name].changes != ALWAYS for name in columns)


def _when(policy: Policy) -> int:
    moving = {name for name in policy.columns if COLUMNS[name].changes == ALWAYS}
    if not moving:
        return dynamic_priority.ONCE
    if moving == {"draw"}:
        return dynamic_priority.AT_STARTS
    return dynamic_priority.ONE_WAY if policy.one_way and moving == {"wait"} else dynamic_priority.EVERY_PLAN


_KEPT = frozenset(
    {"asked", "values", "near", "near_keys", "spare", "spare_keys", "keys", "rows", "gpus", "nodes", "submit", "run"}
)
"""Arrays that no run writes, or that are written before they are read: these need no reset."""


class Rerun:
    """A simulation whose arrays are allocated once and reset before every run."""

    def __init__(self, trace: Trace, cluster: Cluster, planner: OrderedPlanner, estimates: Floats) -> None:
        if entry_for(planner) != SCORING_ENTRY:
            raise Bug(f"policy {planner.policy.name} does not score the queue at every plan")
        if reason := why_not(trace, cluster, planner):
            raise UserError(f"this cannot be learned on: {reason}, which the compiled simulator does not do")
        run = Run(trace, cluster, planner, estimates, np.zeros(len(trace)), 0.0, 0)
        self._entry, self._arguments = loop(variant_for(planner)), run.scoring_arguments()
        self._start, self._done, self._jobs = run.schedule.start, run.schedule.done, len(trace)
        self._fresh = [(array, array.copy()) for array in _written(self._arguments)]

    def starts(self, weights: Floats) -> Floats:
        """When each job starts under these weights, NaN if it never can; to be read before the next run."""
        for array, fresh in self._fresh:
            array[...] = fresh
        wrong = self._entry(*self._arguments[:-1], weights)
        if wrong >= 0:
            self._start[:] = np.nan  # a policy without a number for a job is no policy
        elif self._done[0] < self._jobs:
            raise Bug("the simulation came to a halt with jobs waiting")
        return self._start


def _written(value: Any, name: str = "") -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [] if name in _KEPT else [value]
    if isinstance(value, tuple):
        names = getattr(value, "_fields", [""] * len(value))
        return [array for part, called in zip(value, names, strict=True) for array in _written(part, called)]
    return []
