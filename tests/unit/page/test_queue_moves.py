"""Which priority brings a job to a place, and what is said of the policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.page.views.queue import JobRank, PriorityOrder, order_of, priority_between, simplest

KNOWN = {
    "policies": [
        {"name": "fcfs", "doc": "First come, first served.", "settings": {}, "columns": ["submit"]},
        {
            "name": "multifactor",
            "doc": "Priority first; an hour adds `ageing`, a GPU-hour takes `fairness` away.",
            "settings": {"ageing": 1.0, "fairness": 1.0},
            "columns": ["priority", "submit", "user_usage", "weight"],
        },
    ]
}
PLAIN = PriorityOrder("priority", "", counts=True, known=True)


def test_the_policy_in_force_is_understood() -> None:
    order = order_of({"name": "multifactor:ageing=2.5"}, KNOWN)
    assert (order.counts, order.known, order.ageing, order.fairness) == (True, True, 2.5, 1.0)
    assert order.doc == "Priority first; an hour adds 2.5, a GPU-hour takes 1 away."


def test_a_policy_that_does_not_look_at_priorities_is_known_as_such() -> None:
    assert not order_of({"name": "fcfs"}, KNOWN).counts


def test_a_trained_policy_does_not_look_at_priorities() -> None:
    order = order_of({"name": "learned:/srv/week.json"}, KNOWN)
    assert (order.name, order.counts, order.known) == ("learned:/srv/week.json", False, False)


def test_of_a_policy_from_a_file_nothing_is_known() -> None:
    assert not order_of({"name": "mine.py:rank"}, KNOWN).known


def test_a_job_comes_between_two_by_the_simplest_priority() -> None:
    above, below = JobRank(7.0, 0.0), JobRank(3.0, 0.0)
    assert priority_between(PLAIN, JobRank(0.0, 0.0), above, below) == 5.0


def test_a_job_that_is_there_already_keeps_its_priority() -> None:
    assert priority_between(PLAIN, JobRank(6.5, 0.0), JobRank(7.0, 0.0), JobRank(3.0, 0.0)) == 6.5


def test_nothing_comes_between_two_that_are_ranked_alike() -> None:
    assert priority_between(PLAIN, JobRank(0.0, 0.0), JobRank(3.0, 0.0), JobRank(3.0, 0.0)) is None


def test_at_an_end_it_goes_no_farther_than_it_must() -> None:
    first = priority_between(PLAIN, JobRank(0.0, 0.0), None, JobRank(3.0, 0.0))
    last = priority_between(PLAIN, JobRank(9.0, 0.0), JobRank(3.0, 0.0), None)
    assert first is not None
    assert last is not None
    assert 3.0 < first < 4.0
    assert 2.0 < last < 3.0


numbers = st.floats(-1000.0, 1000.0)
standings = st.builds(JobRank, numbers, st.floats(-1e6, 1e6), st.floats(0.0, 1000.0))


@given(standings, standings, standings, st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_the_priority_brings_it_there(
    job: JobRank, one: JobRank, other: JobRank, ageing: float, fairness: float
) -> None:
    order = PriorityOrder("multifactor", "", counts=True, known=True, ageing=ageing, fairness=fairness)
    above, below = sorted((one, other), key=order.rank)
    found = priority_between(order, job, above, below)
    if order.rank(below) - order.rank(above) > 1e-6:
        assert found is not None
        moved = order.rank(JobRank(found, job.submitted, job.usage))
        assert order.rank(above) - 1e-9 <= moved <= order.rank(below) + 1e-9


@pytest.mark.parametrize(
    ("least", "most", "found"),
    [(0.0, 1.0, 0.5), (4.9, 5.1, 5.0), (-3.0, 3.0, 0.0), (0.12, 0.14, 0.13), (2.0, 4.0, 3.0)],
)
def test_the_simplest_number_has_the_fewest_digits(least: float, most: float, found: float) -> None:
    assert simplest(least, most) == pytest.approx(found)
