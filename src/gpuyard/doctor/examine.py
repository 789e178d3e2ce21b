"""All looks, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuyard.doctor import machine, network, place, queue
from gpuyard.doctor.finding import Finding, Patient, bad, meet

Look = Callable[[Patient], Finding | Iterable[Finding] | None]
LOOKS: tuple[Look, ...] = (
    machine.installation, machine.program, machine.settings, machine.policy, machine.gpus, machine.cgroups,
    machine.systemd,
    place.directory, place.file_system, place.disk, place.socket,
    network.network, network.certificate,
    queue.daemon, queue.environment, queue.mps, queue.store, queue.clock, queue.leftovers, queue.notifications,
)  # fmt: skip


def examine(flags: dict[str, Any]) -> Iterator[Finding]:
    """What is found, whatever goes wrong on the way."""
    patient = meet(flags)
    for look in LOOKS:
        try:
            found = look(patient)
            yield from [found] if isinstance(found, Finding) else found or ()
        except Exception as error:  # what is ill may be so in ways that nobody thought of
            name = look.__name__.replace("_", " ")
            yield bad(name, f"this look failed: {type(error).__name__}: {error}", "please report this")
