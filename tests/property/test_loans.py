"""Whatever happens, and in whatever order: no GPU has two, a loan keeps nobody from starting, restarts know them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.daemon.test_offers import Lending

from gpuyard.core.model import Phase, Request
from gpuyard.core.plan import Snapshot
from gpuyard.engines.base import Ended, Running

POLICIES = ("fcfs@strict", "multifactor@easy", "sjf@conservative", "rr")


def _check(place: Lending) -> None:
    state = place.yard.state
    on: dict[int, str] = dict(state.lent)
    for row in state.running.array.tolist():
        for gpu in state.spot[row].tolist():
            assert gpu not in on, f"GPU {gpu} is of {on[gpu]} and {state.ids[row]}"
            on[gpu] = state.ids[row]
    for gpu, job in state.lent.items():
        assert state.phase[state.row_of[job]] is Phase.RUNNING
        if any(gpu in gpus for gpus in state.promises.values()):
            assert gpu in state.reclaimed, "somebody needs it, and its borrower was not told"
    for _ in range(5):
        place.turn()  # what was lent just now is planned around
    assert place.yard.planning.is_current
    plan = place.yard.planner.plan(Snapshot(state, place.yard.clock.now()))
    assert plan.starts == [], "somebody could start, and was neither placed nor promised a GPU"


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_things_books_a_gpu_twice(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(Lending, "gpus", "3x16G")
    place = Lending(tmp_path, policy=POLICIES[seed % len(POLICIES)])
    monkeypatch.setattr("gpuyard.daemon.jobs.loans.time", SimpleNamespace(monotonic=lambda: place.ticks))
    place.engine.quick = True
    lent = 0
    for _ in range(60):
        _step(place, chance)
        place.ticks += chance.choice((0.0, 0.5, 6.0, 70.0))
        place.turn()
        _check(place)
        lent += bool(place.lent)
    assert lent > 0, "nothing was ever lent, so nothing was tried"
    place.store.close()
    place.engine.close()


def _step(place: Lending, chance: random.Random) -> None:
    state, offers = place.yard.state, place.yard.offers
    running = [state.ids[row] for row in state.running.array.tolist() if state.phase[row] is Phase.RUNNING]
    what = chance.choice(
        ("submit", "submit", "report", "report", "report", "end", "end", "return", "cancel", "restart")
    )
    if what == "submit" and len(state.waiting) < 2:
        gpus = chance.choice((1, 1, 2))
        request = Request(gpus=gpus, estimate=60.0, preemptible=chance.random() < 0.3, user=chance.choice(("a", "b")))
        place.submit(request, adaptive=chance.random() < 0.8, grace=5.0)
    elif what == "restart":
        before = dict(place.lent)
        place.store.close()
        place.engine.adopted = {
            job: Running(job, state.attempt[state.row_of[job]], time.time(), "1") for job in running
        }
        place.begin()
        assert {gpu: job for gpu, job in before.items() if job in running} == place.lent
    elif running:
        job = chance.choice(running)
        attempt = state.attempt[state.row_of[job]]
        if what == "report":
            decision = {"decision": "x", "accepted": False} if chance.random() < 0.2 else {}
            place.ask(lambda: offers.heard(job, attempt, {"gain_per_second": chance.random()}, decision))
        elif what == "return":
            place.ask(lambda: offers.give_back(job, attempt, None))
        elif what == "end":
            place.tell(Ended(job, attempt, time.time(), 0, asked=chance.random() < 0.5))
        elif what == "cancel":
            place.ask(lambda: place.desk.cancel(job))
