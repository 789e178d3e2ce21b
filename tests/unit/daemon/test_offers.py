"""Who is lent idle GPUs, who has to leave them, and when: a yard whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.chaos.test_yard import Place

from gpuyard.config import settings
from gpuyard.core.events import Adapted, Granted, Reclaimed, Returned
from gpuyard.core.model import Request
from gpuyard.daemon.commands import Edit
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.jobs.loans import FRESH
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.engines.base import Ended, Running
from gpuyard.gpus.simulated import SimulatedGpus

ANY = Request(estimate=60.0, preemptible=False)


class Lending(Place):
    """Two GPUs, and jobs that adapt."""

    gpus = "2x16G"

    def __init__(self, data_dir: Path, **flags: Any) -> None:
        super().__init__(data_dir, flags.get("policy", "fcfs"))
        self.ticks = 1000.0
        self.told: list[Record] = []
        if flags:
            self.yard.context.settings = settings({"data_dir": data_dir, "policy": "fcfs", **flags}, {})

    def begin(self) -> None:
        self.store = Store(self.database)
        machine = Machine(SimulatedGpus.parse(self.gpus), self.engine)
        self.yard = Daemon(self.store, self.engine, machine, self._settings)
        self.yard.open(machine.cluster, machine.uuids)
        self.desk = self.yard.commands

    def running(self, request: Request = ANY, **more: Any) -> str:
        """A job that runs."""
        self.engine.quick = True
        job = self.submit(request, **more)
        self.turn()
        return job

    def turn(self) -> None:
        self.yard.ask(lambda: None)
        self.yard.turn(0)

    def report(self, job: str, gain: float | None = 1e-4, attempt: int = 1, **more: Any) -> None:
        decision: dict[str, Any] = {name: more.pop(name) for name in ("decision", "reason", "accepted") if name in more}
        numbers = more if gain is None else {"gain_per_second": gain, **more}
        self.ask(lambda: self.yard.offers.heard(job, attempt, numbers, decision))

    def events(self, *kinds: type) -> list[Any]:
        return [record for record in self.told if isinstance(record.event, kinds)]

    @property
    def lent(self) -> dict[int, str]:
        return self.yard.state.lent


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lending]:
    yield from _place(tmp_path, monkeypatch)


def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> Iterator[Lending]:
    found = Lending(tmp_path, **flags)
    monkeypatch.setattr("gpuyard.daemon.jobs.loans.time", SimpleNamespace(monotonic=lambda: found.ticks))
    found.yard.listeners.append(found.told.extend)
    yield found
    found.store.close()
    found.engine.close()


def test_an_idle_gpu_is_lent_and_it_is_said_why(place: Lending) -> None:
    job = place.running(adaptive=True)
    place.report(job)
    [granted] = place.events(Granted)
    assert (granted.job, granted.event.gpus) == (job, (1,))
    assert granted.details["why"] == "nobody waits for it, and it gains 0.6 points per minute"
    assert place.store.open[job].message == f"was given GPU 1: {granted.details['why']}"


def test_who_did_not_opt_in_is_offered_nothing(place: Lending) -> None:
    job = place.running()
    place.report(job)
    assert place.lent == {}


@pytest.mark.parametrize(
    "report",
    [{"gain": 0.0}, {"gain": -1e-3}, {"gain": None, "step_seconds": 1.0}, {"gain": 1e-4, "noise": 2e-4}],
    ids=["no gain", "a loss", "it is not told", "noise"],
)
def test_who_gains_nothing_is_offered_nothing(place: Lending, report: dict[str, Any]) -> None:
    place.report(place.running(adaptive=True), **report)
    assert place.lent == {}


def test_who_gains_most_is_offered_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lending, "gpus", "3x16G")
    for place in _place(tmp_path, monkeypatch):
        first, second, other = place.running(adaptive=True), place.running(adaptive=True), place.running()
        place.report(first, 1e-4)
        place.report(second, 3e-4)
        place.tell(Ended(other, 1, 0.0, 0))
        place.turn()
        assert list(place.lent.values()) == [second]
        [granted] = place.events(Granted)
        assert granted.details["why"] == (
            f"nobody waits for it, and it gains 1.8 points per minute, more than job {first} (0.6)"
        )


def test_a_report_counts_for_one_offer_and_for_a_while(place: Lending) -> None:
    job = place.running(adaptive=True)
    place.report(job, 0.0)
    place.report(job, 1e-4)
    assert place.lent == {1: job}
    place.report(job, None, decision="no use for it", accepted=False)
    assert place.lent == {}
    [back] = place.events(Returned)
    assert back.details["why"] == "it declined: no use for it"
    place.ticks += 30
    place.report(job, 1e-4)
    assert place.lent == {}, "it has just declined"
    place.ticks += FRESH + 1
    place.turn()
    assert place.lent == {}, "that is too long ago"
    place.report(job, 1e-4)
    assert place.lent == {1: job}


def test_who_is_about_to_end_is_offered_nothing(place: Lending) -> None:
    short = place.running(adaptive=True, time_limit=4.0)
    place.report(short, step_seconds=10.0)
    assert place.lent == {}
    offers = place.yard.offers
    report = offers.report_of(short)
    assert report is not None
    assert "of its budget are left" in offers.refusal(short, report, place.yard.clock.now())
    place.ask(lambda: place.desk.edit(short, Edit({"time_limit"}, lambda w, r: (replace(w, time_limit=100.0), r))))
    place.turn()
    assert place.lent == {}, "so few steps are left"
    place.report(short, step_seconds=0.1)
    assert place.lent == {1: short}


def test_whoever_comes_gets_it_when_the_borrower_has_left(place: Lending) -> None:
    job = place.running(adaptive=True, grace=5.0)
    place.report(job)
    place.report(job, None, decision="grew", accepted=True)
    waits = place.submit(ANY)
    [told] = place.events(Reclaimed)
    assert (told.event.gpus, told.details) == ((1,), {"why": f"job {waits} needs it", "grace": 5.0})
    assert place.store.open[waits].state == "queued"
    place.ask(lambda: place.yard.offers.give_back(job, 1, [1]))
    assert place.store.open[waits].gpus == (1,)
    assert place.events(Returned)[-1].details["why"] == "it left as it was told to"


def test_who_does_not_leave_loses_it_after_its_grace(place: Lending) -> None:
    job = place.running(adaptive=True, grace=5.0)
    place.report(job)
    waits = place.submit(ANY)
    assert place.yard.offers.due() == place.ticks + 5.0
    place.ticks += 4.9
    place.turn()
    assert place.store.open[waits].state == "queued"
    place.ticks += 0.2
    place.turn()
    assert place.store.open[waits].gpus == (1,)
    assert (place.lent, place.yard.offers.due()) == ({}, float("inf"))


def test_a_grace_is_never_longer_than_half_a_minute(place: Lending) -> None:
    job = place.running(adaptive=True, grace=3600.0)
    place.report(job)
    place.submit(ANY)
    assert place.events(Reclaimed)[0].details["grace"] == 30.0


def test_who_does_not_answer_has_to_give_it_back(place: Lending) -> None:
    job = place.running(adaptive=True)
    place.report(job)
    place.ticks += 61
    place.turn()
    assert place.events(Reclaimed)[0].details["why"] == "it did not say what it makes of it"


def test_who_is_not_adaptive_any_more_has_to_give_it_back(place: Lending) -> None:
    job = place.running(adaptive=True)
    place.report(job)
    place.ask(
        lambda: place.desk.edit(job, Edit({"adaptive"}, lambda work, asked: (replace(work, adaptive=False), asked)))
    )
    assert place.events(Reclaimed)[0].details["why"] == "it is not adaptive any more"


def test_loans_end_with_the_job(place: Lending) -> None:
    job = place.running(adaptive=True)
    place.report(job)
    place.ask(lambda: place.desk.cancel(job))
    place.tell(Ended(job, 1, 0.0, 0))
    place.turn()
    assert (place.lent, place.yard.offers.report_of(job), place.yard.offers.due()) == ({}, None, float("inf"))


def test_another_life_knows_what_is_lent_and_asks_it_back(place: Lending) -> None:
    job = place.running(adaptive=True, grace=5.0)
    place.report(job)
    waits = place.submit(ANY)
    place.store.close()
    place.engine.adopted[job] = Running(job, 1, 0.0, "17")
    place.begin()
    place.turn()
    assert (place.lent, place.yard.state.reclaimed) == ({1: job}, frozenset({1}))
    assert place.store.open[waits].state == "queued"
    place.ticks += 5.1
    place.turn()
    assert place.store.open[waits].gpus == (1,)


def test_decisions_are_recorded_but_not_without_end(place: Lending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.daemon.jobs.loans._MOST_DECISIONS", 2)
    job = place.running(adaptive=True)
    for number in range(4):
        place.report(job, None, decision=f"step {number}", reason="why not")
    assert [record.details["decision"] for record in place.events(Adapted)] == ["step 0", "step 1"]
    assert place.store.open[job].message == "step 1: why not"


@pytest.mark.parametrize("flags", [{"offers": False}, {"offer_most": 0}])
def test_offers_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]) -> None:
    for place in _place(tmp_path, monkeypatch, **flags):
        place.report(place.running(adaptive=True))
        assert place.lent == {}


def test_late_reports_are_ignored(place: Lending) -> None:
    job = place.running(adaptive=True)
    place.report(job, attempt=2)
    place.report("99")
    assert (place.lent, place.yard.offers.report_of(job)) == ({}, None)
