"""What another policy would change: told, and not done."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.config import settings
from gpuyard.core.events import Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.policies import POLICIES
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon import planning
from gpuyard.daemon.commands import FIRST, Previews
from gpuyard.daemon.planning import in_time
from gpuyard.errors import UserError
from gpuyard.policies.resolver import make_planner

NOW = 10_000.0


def previews_of(state: State, policy: str = "fcfs@easy") -> Previews:
    clock = SimpleNamespace(now=lambda: NOW)
    views = {job: SimpleNamespace(name=f"n{job}", user="ann") for job in state.ids}
    context: Any = SimpleNamespace(state=state, clock=clock, store=SimpleNamespace(open=views))
    planner = make_planner(policy)
    planning: Any = SimpleNamespace(
        planner=planner,
        plan_by=lambda other, now: other.plan(Snapshot(state, now)),
        by_policy=lambda look: look(planner),
    )
    return Previews(context, planning)


def queue(*waiting: Request, running: Request | None = None, gpus: int = 2) -> State:
    state = State(Cluster((gpus,)))
    if running is not None:
        apply(state, Submitted(0.0, "0", running))
        apply(state, Placed(0.0, "0", 1, tuple(range(running.gpus))))
        apply(state, Started(0.0, "0", 1))
    for n, request in enumerate(waiting, 1):
        apply(state, Submitted(float(n), str(n), request))
    return state


def look(state: State, policy: str, now: str = "fcfs@easy") -> Any:
    return previews_of(state, now).of(make_planner(policy, discipline="easy", lenient=True))


def test_places_in_the_queue() -> None:
    state = queue(*(Request(gpus=2, estimate=e) for e in (300.0, 100.0, 200.0)), running=Request(gpus=1, estimate=1e6))
    found = look(state, "sjf")
    assert (found.policy, found.starts, found.stops) == ("sjf@easy@first", [], [])
    assert [(one.id, one.place, one.was) for one in found.order] == [("2", 1, 2), ("3", 2, 3), ("1", 3, 1)]
    assert (found.order[0].name, found.order[0].user) == ("n2", "ann")
    assert (found.moved, found.waiting, found.note) == (3, 3, None)
    assert look(state, "fcfs").moved == 0


def test_who_would_start_and_who_would_stop() -> None:
    running = Request(gpus=2, estimate=1e5, preemptible=True)
    state = queue(Request(gpus=2, estimate=1e6), Request(gpus=1, estimate=10.0), running=running)
    found = look(state, "srtf", "fcfs@easy")
    assert found.stops == ["0"]
    assert "2" in found.starts
    wide = queue(Request(gpus=3, estimate=10.0), Request(gpus=1), running=Request(gpus=2, estimate=1e6), gpus=3)
    assert (look(wide, "fcfs@strict").starts, look(wide, "fcfs@skip").starts) == ([], ["2"])


def test_who_may_not_be_chosen_comes_last() -> None:
    held_up = Request(gpus=1, estimate=1.0, begin=NOW + 100)
    found = look(queue(held_up, Request(gpus=2, estimate=50.0), running=Request(gpus=2)), "sjf")
    assert [one.id for one in found.order] == ["2", "1"]


def test_what_lots_decide_is_said() -> None:
    assert "drawn by lot" in (look(queue(Request(), Request()), "lottery").note or "")


def test_an_empty_queue() -> None:
    found = look(queue(), "sjf")
    assert (found.starts, found.stops, found.order, found.moved, found.waiting) == ([], [], [], 0, 0)


def test_it_is_looked_at_once_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    state, planner = queue(Request(gpus=2), running=Request(gpus=2)), make_planner("sjf@easy")
    previews = previews_of(state)
    first = previews.of(planner)
    assert previews.of(planner) is first
    apply(state, Submitted(50.0, "9", Request(gpus=2)))
    previews._context.store.open["9"] = cast(Any, SimpleNamespace(name="", user="bob"))
    assert previews.of(planner).waiting == 2
    ticks = previews._kept[planner.text][0]
    monkeypatch.setattr("gpuyard.daemon.commands.time.monotonic", lambda: ticks + 1)
    assert previews.of(planner) is not first


def test_a_policy_that_fails_is_refused() -> None:
    planner = make_planner("sjf@easy")
    broken = SimpleNamespace(text="mine.py:broken", plan=lambda snapshot: 1 / 0, policy=planner.policy)
    with pytest.raises(UserError, match=r"mine\.py:broken fails on this queue \(ZeroDivisionError: division by zero\)"):
        previews_of(queue(Request())).of(cast(Any, broken))


requests = st.builds(
    Request, gpus=st.integers(1, 3), estimate=st.sampled_from((10.0, 500.0, 1e5)), preemptible=st.booleans(),
    priority=st.sampled_from((0.0, 1.0, 5.0)), user=st.sampled_from(("ann", "bob")),
)  # fmt: skip


@given(st.lists(requests, max_size=40), requests, st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(POLICIES)))
def test_nothing_changes_and_the_numbers_fit(waiting: list[Request], running: Request, new: str, old: str) -> None:
    state = queue(*waiting, running=running, gpus=4)
    before, version = state.facts(), state.version
    now = make_planner(old, discipline="easy", lenient=True).text
    found = look(state, new, now)
    assert (state.facts(), state.version) == (before, version)
    assert (found.waiting, len(found.order)) == (len(waiting), min(FIRST, len(waiting)))
    assert [one.place for one in found.order] == list(range(1, len(found.order) + 1))
    assert len({one.was for one in found.order}) == len(found.order)
    assert sum(one.place != one.was for one in found.order) <= found.moved <= found.waiting
    assert found.moved != 1
    assert set(found.starts) <= set(state.ids)
    assert set(found.stops) <= {"0"}


def test_what_never_ends_is_interrupted() -> None:
    caught: list[BaseException] = []

    def endless() -> None:
        while True:
            try:
                while True:
                    pass
            except BaseException as error:  # as where a policy ranks
                caught.append(error)
                raise ValueError from error

    for own in (True, "mine.py:endless"):
        with pytest.raises(UserError, match=r"took .* s, while everybody waits; 0\.05 s"), in_time(own, 0.05):
            endless()
    assert [type(error).__name__ for error in caught] == ["DidNotEnd"] * 2
    with pytest.raises(ZeroDivisionError), in_time(True, 100.0):
        _ = 1 / 0
    with in_time("", 0.0):
        pass


def test_a_file_that_does_not_end_does_not_keep_the_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("while True: pass")
    monkeypatch.setattr(planning, "in_time", partial(in_time, most=0.05))
    store: Any = SimpleNamespace(latest=lambda kind: iter(()))
    with pytest.raises(UserError, match="while everybody waits"):
        planning.configured_policy(store, settings({"policy": f"{tmp_path}/mine.py:later"}, {}))
