"""What of a GPU is used by others: told at once where it is known, in steps, and forgotten slowly."""

from __future__ import annotations

import pytest

from gpuyard.daemon.devices.machine import STEP, ForeignTally, ForeignUse, used_by_others

MIB = 2**20
GIB = 2**30
ALONE = float("inf")


@pytest.mark.parametrize(
    ("used", "processes", "promised", "others"),
    [
        (0, [], {}, ForeignUse(0, 0)),
        (300 * MIB, [], {}, ForeignUse(0, 300 * MIB)),  # what nobody is seen to use
        (3 * GIB, [(None, 2 * GIB)], {}, ForeignUse(2 * GIB, GIB)),
        (3 * GIB, [("1", 2 * GIB), ("1", GIB)], {"1": 4 * GIB}, ForeignUse(0, 0)),  # all processes of a job are its own
        (3 * GIB, [("1", 2 * GIB), (None, GIB)], {"1": 4 * GIB}, ForeignUse(GIB, 0)),
        (5 * GIB, [("1", 5 * GIB)], {"1": 4 * GIB}, ForeignUse(GIB, 0)),  # more than it was promised
        (5 * GIB, [("1", 5 * GIB)], {"1": ALONE}, ForeignUse(0, 0)),
        (5 * GIB, [("1", 5 * GIB)], {}, ForeignUse(5 * GIB, 0)),  # it has no place here
        (
            3 * GIB,
            [("1", 0), (None, GIB)],
            {"1": 4 * GIB},
            ForeignUse(GIB, 0),
        ),  # what is ours of the rest cannot be told
        (3 * GIB, [("1", 0), (None, 0)], {"1": 4 * GIB}, None),
        (3 * GIB, [("1", GIB), (None, 0)], {"1": 4 * GIB}, ForeignUse(0, 2 * GIB)),
        (GIB, [("1", 2 * GIB)], {"1": 4 * GIB}, ForeignUse(0, 0)),  # looked at a moment earlier
    ],
)
def test_who_uses_what(
    used: int, processes: list[tuple[str | None, int]], promised: dict[str, float], others: ForeignUse | None
) -> None:
    assert used_by_others(used, processes, promised) == others


def counted(*uses: tuple[float, float, float]) -> list[float]:
    """What counts after each look, in steps: at a time, so much known and unknown, in MiB."""
    tally = ForeignTally()
    return [tally.add(at, ForeignUse(known * MIB, unknown * MIB)) / STEP for at, known, unknown in uses]


def test_what_is_known_counts_at_once_and_for_a_while() -> None:
    assert counted((0, 0, 0), (1, 1000, 0), (2, 0, 0), (5, 0, 0), (7, 0, 0)) == [0, 16, 16, 16, 0]


def test_what_nobody_can_be_named_for_must_last() -> None:
    assert counted((0, 0, 0), (1, 0, 1000), (1.5, 0, 0)) == [0, 0, 0]
    assert counted((0, 0, 0), (1, 0, 1000), (1.9, 0, 1000), (3.5, 0, 1000)) == [0, 0, 0, 16]
    assert counted((0, 0, 300)) == [5]  # there before we came


def test_a_use_that_trembles_is_told_once() -> None:
    trembling = [(float(n), 639.0 if n % 2 else 641.0, 0.0) for n in range(60)]
    assert set(counted(*trembling)) == {11}
    assert set(counted(*[(float(n), 640.0 - n / 10, 0.0) for n in range(60)])) == {10}


def test_what_a_driver_takes_of_an_idle_gpu_does_not_count() -> None:
    assert counted((0, 0, 4), (10, 0, 49)) == [0, 0]
    assert counted((0, 0, 400), (10, 0, 4)) == [7, 0]
