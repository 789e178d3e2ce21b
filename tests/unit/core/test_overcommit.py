"""Whether more samples of GPUs could let anybody in, and what they would do without the guard: the core alone."""

from __future__ import annotations

import numpy as np

from gpuyard.core.engine import Engine
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.usage.admission import Peak, Usage, Window, statistics_of
from gpuyard.core.usage.overcommit import hopeful
from gpuyard.policies.resolver import make_planner


def yard(*sizes: float) -> Engine:
    """One GPU of 16 GiB; jobs a, b, ... ask for so much of it, and those start that fit by that."""
    engine = Engine(Cluster((1,), 16 * GIB), make_planner("fcfs@skip"))
    for job, size in zip("abcdef", sizes, strict=False):
        assert engine.submit(0.0, job, Request(memory=size * GIB, compute=0.0)) is None
    for start in engine.plan(0.0).starts:
        engine.place(0.0, start)
    return engine


def expects(**gib: float) -> dict[str, Peak]:
    return {job: Peak(1.05 * size * GIB, size * GIB) for job, size in gib.items()}


def test_nobody_waits_nobody_hopes() -> None:
    assert not hopeful(yard(8).state, Usage())
    assert not hopeful(yard(8).state, Usage(guarded=False))


def test_who_asks_for_more_than_all_will_leave_waits_for_an_end_and_not_for_samples() -> None:
    engine = yard(8, 8, 8)
    assert not hopeful(engine.state, Usage())
    assert not hopeful(engine.state, Usage(peaks=expects(a=6.0, b=6.0)))
    assert hopeful(engine.state, Usage(peaks=expects(a=4.0, b=4.0)))
    assert hopeful(engine.state, Usage(peaks=expects(a=6.0, b=6.0, c=3.0)))


def test_whole_gpus_are_not_had_by_samples() -> None:
    engine = yard(8)
    engine.submit(1.0, "whole", Request())
    assert not hopeful(engine.state, Usage(peaks=expects(a=1.0)))


def test_without_the_guard_a_window_alone_lets_in() -> None:
    engine, used = yard(8, 8, 8), np.full(20, 2 * GIB)
    seen = {0: statistics_of(Window(16 * GIB, used, 16 * GIB - used))}
    assert engine.plan(1.0, Usage(seen)).starts == []
    (start,) = engine.plan(1.0, Usage(seen, guarded=False)).starts
    assert (start.job, start.by) == ("c", "cbp")
    assert hopeful(engine.state, Usage(seen, guarded=False))
