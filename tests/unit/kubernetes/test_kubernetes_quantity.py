"""Amounts and times as Kubernetes writes them."""

from __future__ import annotations

import pytest

from gpuyard.errors import UserError
from gpuyard.kubernetes.cluster.quantity import amount, memory, moment

MIB, GIB = 2.0**20, 2.0**30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0), ("0", 0.0), ("250m", 0.25), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("2e3", 2000.0), ("1E2", 100.0),
        ("3k", 3000.0), ("3M", 3e6), ("3G", 3e9), ("3T", 3e12), ("3P", 3e15), ("3E", 3e18), ("1Ki", 1024.0),
        ("6994Mi", 6994 * MIB), ("2Gi", 2 * GIB), ("1Ti", 2.0**40), ("1Pi", 2.0**50), ("1Ei", 2.0**60),
        ("100n", 1e-7), ("100u", 1e-4), ("+2", 2.0), ("-2", -2.0), (" 7 ", 7.0), (7, 7.0),
    ],
)  # fmt: skip
def test_amounts(text: object, value: float) -> None:
    assert amount(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1GB", "0x10", "1,5", "Mi", "1e", "--1", "nan", "inf", None])
def test_what_is_no_amount(text: object) -> None:
    with pytest.raises(UserError, match="is no quantity"):
        amount(text)


def test_memory_may_be_a_number_in_a_unit() -> None:
    assert memory("6994Mi") == 6994 * MIB
    assert memory("6994", MIB) == 6994 * MIB
    assert memory("1.5", GIB) == 1.5 * GIB
    assert memory("6994Mi", GIB) == 6994 * MIB
    assert memory("20G") == 20 * GIB  # as everywhere in gpuyard
    assert memory(7333740544) == 7333740544


@pytest.mark.parametrize("text", ["0", "-1Gi", "0Mi"])
def test_no_memory_is_no_amount_of_it(text: str) -> None:
    with pytest.raises(UserError, match="is no amount of memory"):
        memory(text)


@pytest.mark.parametrize("text", ["0", "0.0"])
def test_nor_is_it_in_a_unit(text: str) -> None:
    with pytest.raises(UserError, match="is no amount of memory"):
        memory(text, MIB)


def test_times() -> None:
    assert moment("1970-01-01T00:01:00Z") == 60
    assert moment("1970-01-01T00:01:00.500000Z") == 60.5
    assert moment("1970-01-01T01:01:00+01:00") == 60
    assert moment(None) is None
    assert moment("") is None
