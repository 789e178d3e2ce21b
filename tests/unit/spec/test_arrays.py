"""Arrays as people write them."""

from __future__ import annotations

import pytest

from gpuyard.errors import UserError
from gpuyard.spec.notation import Array, array_of, folded, number_of, parse_array, ranges, some_of


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("0-3", Array((0, 1, 2, 3))),
        ("0-3%2", Array((0, 1, 2, 3), 2)),
        ("7,1,3", Array((1, 3, 7))),
        ("0-20:5", Array((0, 5, 10, 15, 20))),
        ("1-3, 2-4", Array((1, 2, 3, 4))),
        ("5", Array((5,))),
    ],
)
def test_what_people_write(text: str, array: Array) -> None:
    assert parse_array(text) == array


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not an array"),
        ("a-b", "is not an array"),
        ("1-", "is not an array"),
        ("0-9:0", "is not an array"),
        ("5-3", "goes backwards; write 3-5"),
        ("0-9%0", "1 or more"),
        ("0-9%x", "1 or more"),
        ("0-100000", "more than 100,000 tasks"),
        ("0-99999,200000", "more than 100,000 tasks"),
        (",".join(["0-99999"] * 100_000), "…' has more than 100,000 tasks"),
        ("9" * 5000, "is not an array"),
        ("0-9%" + "9" * 5000, "1 or more"),
        ("9999999999", "at most 2147483647"),
    ],
)
def test_what_is_no_array(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_array(text)


def test_the_most_tasks_are_fine() -> None:
    assert len(parse_array("0-99999").tasks) == 100_000


def test_ids() -> None:
    assert some_of("12_[3-5,9]") == ("12", (3, 4, 5, 9))
    assert some_of("12_[7-8%4]") == ("12", (7, 8))  # as ps shows it
    assert some_of("12_3") is None
    assert (array_of("12_3"), array_of("12"), array_of("x_3")) == ("12", "", "")
    assert (number_of("12"), number_of("12_3"), number_of("x")) == (12, 12, 0)


def test_many_tasks_in_one_word() -> None:
    assert ranges([3, 0, 1, 2, 7]) == "0-3,7"
    assert folded("12", [7, 8, 9], 4) == "12_[7-9%4]"
    assert folded("12", [7]) == "12_7"
