"""watchmen's words for how a client stands, and who is ahead of it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.leases.heartbeats import Heartbeats, Silence
from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.server.routes.watchmen import Ahead, client_json, status_of


def view(id: str, state: str = "queued", among: list[int] | None = None, **more: Any) -> JobView:
    work = {"from": among, "watchmen": ["queue", 0]}
    return JobView(int(id), id, f"u@{id}", "u", state, 1.7e9, 0.0, work, kind="lease", **more)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (view("1"), "waiting"),
        (view("1", "held"), "waiting"),
        (view("1", "running", gpus=(0,)), "waiting"),  # it is just about to begin
        (view("1", "running", started=1.0), "ready"),
        (view("1", "running", started=1.0, recalled="cancelled"), "cancelled"),
        (view("1", "succeeded", started=1.0, ended=2.0), "ok"),
        (view("1", "failed", started=1.0, ended=2.0, message="its GPUs were not used within 5m 00s"), "timeout"),
        (view("1", "interrupted", started=1.0, ended=2.0), "timeout"),
        (view("1", "cancelled", ended=2.0, message="given up: no sign of life for 5m 00s"), "timeout"),
        (view("1", "cancelled", ended=2.0, message="given up by whoever asked for it"), "cancelled"),
        (view("1", "cancelled", ended=2.0, message="cancelled while it waited by ann"), "cancelled"),
        (view("1", "cancelled", started=1.0, ended=2.0, message="the lease was ended"), "cancelled"),
    ],
)
def test_how_a_client_stands(found: JobView, status: str) -> None:
    assert status_of(found) == status
    assert client_json(found, 0, "", None)["status"] == status


def test_only_those_are_ahead_who_have_or_want_the_same_gpus() -> None:
    views = [
        view("1", "running", [0], gpus=(0,), started=1.0), view("2", "running", gpus=(3,), started=1.0),
        view("3", among=[0]), view("4", among=[1]), view("5"), view("6", among=[0, 3]), view("7", "held", [0]),
    ]  # fmt: skip
    ahead = Ahead(views, ["3", "5", "6", "4"], 4)
    assert [ahead(one) for one in views] == [0, 0, 1, 1, 3, 4, 4]


def test_a_gpu_is_in_use_if_somebody_is_seen_on_it() -> None:
    class Real(SimulatedGpus):
        simulated = False
        readings: list[Reading]

        def read(self) -> list[Reading]:
            return self.readings

    class Nodes:
        def nodes(self) -> list[Any]:
            return [Device(0, "here", "here", 0)]

    gpus = Real([16 * 2**30] * 4)
    busy = Reading(2, memory_used=2**30, utilization=90)
    gpus.readings = [Reading(0), Reading(1, processes=(Process(1, 0),)), busy, Reading(3, lost=True)]
    machine = Machine(gpus, Nodes())  # type: ignore[arg-type]
    assert machine.in_use(1, 60.0) is None  # nobody has looked yet
    machine._sampler.fresh()
    machine._seen = 1.0
    assert [machine.in_use(gpu, 60.0) for gpu in range(4)] == [False, True, True, None]
    assert machine.in_use(2, 1.0) is False  # what the last one left takes a while to fade
    simulated = Machine(SimulatedGpus.parse("1"), Nodes())  # type: ignore[arg-type]
    simulated._sampler.fresh()
    simulated._seen = 1.0
    assert simulated.in_use(0, 60.0) is None


def test_a_day_without_a_sign_is_a_day() -> None:
    signs, silence = Heartbeats(), Silence(300.0)
    signs.expect("1")
    heard = signs._last["1"]
    assert signs.silent("1", heard + 86410) > 86400  # not 10
    assert silence.broken(signs.silent("1", heard + 299)) == ""
    assert silence.broken(signs.silent("1", heard + 86410)) == "no sign of life for 5m 00s"
