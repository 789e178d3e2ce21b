"""What jobs say that they use of simulated GPUs, and who dies when more is wanted than there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import UserError
from gpuyard.gpus.simulated import Demand, Use, check_variable, parse_use, run_out, use_of

M, G = 2**20, 2**30


def test_constant() -> None:
    assert parse_use("2G") == parse_use("constant:2G") == Use((2 * G,))
    assert [parse_use("2G").at(at) for at in (-1.0, 0.0, 1e9)] == [2 * G] * 3
    assert parse_use("0").peak == 0


def test_a_ramp_has_a_value_for_each_second_and_keeps_the_last() -> None:
    use = parse_use("ramp:391M,713M,1045M,1399M,1819M,1753M")
    assert [use.at(at) // M for at in (0.0, 0.99, 1.0, 4.5, 5.0, 60.0)] == [391, 391, 713, 1819, 1753, 1753]
    assert use.peak == 1819 * M
    assert [parse_use("ramp/0.5:1G,2G").at(at) for at in (0.4, 0.5)] == [G, 2 * G]
    assert parse_use("ramp/2m:1G,2G").step == 120.0


def test_spikes_come_after_a_while_and_again() -> None:
    use = parse_use("spikes:500M,3G,10s,1s")
    seen = [use.at(at) == 3 * G for at in (0.0, 0.5, 9.9, 10.0, 10.9, 11.0, 19.9, 20.5, 21.0)]
    assert seen == [False, False, False, True, True, False, False, True, False]
    assert use.peak == 3 * G


def test_how_busy_it_keeps_a_gpu() -> None:
    assert parse_use("2G").utilization is None
    assert parse_use("2G;util=40").utilization == 40.0
    assert parse_use("ramp:1G,2G ; util=12.5").utilization == 12.5
    assert parse_use("spikes:1G,2G,4s,1s;util=0").utilization == 0.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a size"), ("lots", "'lots' is not a size"), (":2G", "write for example"), ("-1G", "is not a size"),
        ("constant", "is not a size"), ("constant/2:1G", "write for example"), ("ramp:", "is not a size"),
        ("ramp:1G,,2G", "is not a size"), ("ramp/:1G", "not a duration"), ("ramp/0:1G", "0.01 s or more"),
        ("ramp/inf:1G", "not a duration"), ("ramp/1e999:1G", "0.01 s or more"), ("saw:1G", "write for example"),
        ("spikes:1G,2G,1s", "a base, a peak"), ("spikes:1G,2G,1s,2s", "cannot last longer"),
        ("2G;util=101", "not a percentage"), ("2G;util=x", "not a percentage"), ("2G;util=nan", "not a percentage"),
        ("2G;other=1", "not a percentage"), ("9999999T", "more than any GPU has"),
        ("ramp:" + "1," * 10_000 + "1", "more than 10000 values"),
    ],
)  # fmt: skip
def test_what_makes_no_sense(text: str, said: str) -> None:
    with pytest.raises(UserError, match="does not say what a job uses") as caught:
        parse_use(text)
    assert said in str(caught.value)


def test_a_variable_may_differ_by_command() -> None:
    said = "train_a.py=1G;util=30;*/b?.py=ramp:1G,2G\n512M\n--model=large=3G;x=2G;"
    assert use_of(said, ["python", "/data/train_a.py"]) == "1G;util=30"
    assert use_of(said, ["python", "src/b1.py"]) == "ramp:1G,2G"
    assert use_of(said, ["python", "b1.py"]) == "512M"
    assert use_of(said, ["python", "c.py", "--model=large"]) == "3G"
    assert use_of("2G;util=5", ["anything"]) == "2G;util=5"
    assert use_of("a.py=2G", ["b.py"]) == ""
    assert use_of("a.py=1G;a*=2G", ["a.py"]) == "1G"
    check_variable(said)
    with pytest.raises(UserError, match="GPUYARD_SIMULATE_USE: 'much'"):
        check_variable("a.py=1G;b.py=much")


@given(st.text(max_size=40))
def test_any_text_is_a_use_or_refused(text: str) -> None:
    try:
        use = parse_use(text)
    except UserError:
        return
    assert all(0 <= use.at(at / 3) <= use.peak for at in range(60))


def died(memory: int, *demands: Demand) -> list[str]:
    return [demand.job for demand in run_out(memory * G, demands)]


def wants(job: str, wanted: int, promised: int, grew_at: float = 0.0, capped: bool = False) -> Demand:
    return Demand(job, wanted * G, promised * G, grew_at, capped)


def test_nobody_dies_while_there_is_enough() -> None:
    assert died(8, wants("liar", 5, 1), wants("honest", 3, 3)) == []


def test_the_largest_excess_dies_first_and_only_as_many_as_must() -> None:
    honest, small, large = wants("honest", 4, 4), wants("small", 2, 1, 9.0), wants("large", 4, 1)
    assert died(8, honest, small, large) == ["large"]
    assert died(5, honest, small, large) == ["large", "small"]
    assert died(8, honest, wants("early", 3, 2, 1.0), wants("late", 3, 2, 9.0)) == ["late"]


def test_where_all_kept_their_promise_the_last_to_grow_dies() -> None:
    assert died(8, wants("first", 5, 5, 1.0), wants("second", 5, 5, 2.0)) == ["second"]
    assert died(8, wants("alone", 20, 20)) == ["alone"]


def test_a_capped_job_dies_even_if_there_is_enough() -> None:
    assert died(80, wants("capped", 3, 2, capped=True), wants("free", 3, 2)) == ["capped"]
    assert died(80, wants("within", 2, 2, capped=True)) == []


_DEMANDS = st.lists(
    st.builds(Demand, st.uuids().map(str), st.integers(0, 40), st.integers(0, 20), st.floats(0, 9), st.booleans()),
    max_size=8,
)


@given(st.integers(0, 60), _DEMANDS)
def test_who_is_left_fits_and_the_honest_are_never_harmed_by_liars(memory: int, demands: list[Demand]) -> None:
    dead = run_out(memory, demands)
    left = [demand for demand in demands if demand not in dead]
    assert sum(demand.wanted for demand in left) <= memory
    assert len({demand.job for demand in dead}) == len(dead)
    if sum(min(demand.wanted, demand.promised) for demand in demands) <= memory:
        assert all(demand.excess for demand in dead)
