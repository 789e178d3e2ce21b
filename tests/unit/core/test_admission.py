"""Admission by usage, against numbers worked out by hand and those that Kube-Knots' scheduler logged."""

from __future__ import annotations

import math
from itertools import cycle, islice

import numpy as np
import pytest

from gpuyard.core.usage.admission import (
    Decision,
    Statistics,
    Thresholds,
    Window,
    ar1,
    autocorrelation,
    decide,
    forecast,
    foreseen,
    need,
    percentile,
    statistics_of,
    variation,
)

MIB = float(2**20)
GPU = 32_510.0


def window(used: list[float], capacity: float = GPU) -> Window:
    values = np.array(used)
    return Window(capacity, values, capacity - values)


def seen(used: list[float], unit: float = MIB) -> Statistics:
    return statistics_of(window([size * unit for size in used], GPU * unit))


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        (range(20), 0.8, 16),  # place int(20 * 0.8)
        (range(24), 0.8, 19),  # int(19.2)
        ([5, 1, 3], 0.8, 5),  # int(2.4), of the sorted ones
        ([5, 1, 3], 1.0, 5),  # there is no place 3
        ([7], 0.8, 7),
        ([], 0.8, 0),
    ],
)
def test_a_percentile_is_the_value_at_its_place(values: list[float], share: float, expected: float) -> None:
    assert percentile(list(values), share) == expected


def test_variation_is_the_deviation_of_a_population_by_the_mean() -> None:
    assert variation([2, 4, 4, 4, 5, 5, 7, 9]) == pytest.approx(2 / 5)
    assert variation([]) == variation([0, 0, 0]) == 0.0
    assert variation([-1, 1]) == math.inf


@pytest.mark.parametrize("level", [0.1, 7008.0, 25_502 * MIB, 1e17 / 3])
def test_a_constant_series_does_not_vary_and_tells_of_no_pattern(level: float) -> None:
    values = [level] * 30
    assert variation(values) == 0.0
    assert autocorrelation(values, 10) == 0.0
    assert ar1(values, 10) == pytest.approx((level, 0.0))
    assert forecast(values, 10, 1e18) == pytest.approx(level)


def test_what_varies_but_a_little_on_a_high_level_is_no_rounding() -> None:
    high = [25_502 * MIB + (i % 2) for i in range(40)]  # the difference of squares and squared mean is below 0 here
    assert variation(high) == pytest.approx(0.5 / (25_502 * MIB + 0.5), rel=1e-6)


def test_autocorrelation_is_the_one_of_the_hand_worked_example() -> None:
    # mean 3; deviations -2 -1 0 1 2; lag 1: 2 + 0 + 0 + 2 = 4 of 10; lag 2: 0 - 1 + 0 = -1 of 10
    assert autocorrelation([1, 2, 3, 4, 5], 1) == pytest.approx(0.4)
    assert autocorrelation([1, 2, 3, 4, 5], 2) == pytest.approx(-0.1)
    assert autocorrelation([1, 2, 3], 3) == autocorrelation([], 1) == 0.0


def test_ar1_is_the_line_of_least_squares() -> None:
    # pairs (1, 2) (2, 4) (4, 3), means 7/3 and 3: slope (4/3 - 1/3 + 0) / (16/9 + 1/9 + 25/9)
    phi0, phi1 = ar1([1, 2, 4, 3], 1)
    assert phi1 == pytest.approx(3 / 14)
    assert phi0 == pytest.approx(3 - 3 / 14 * 7 / 3)
    assert forecast([1, 2, 4, 3], 1, 100) == pytest.approx(phi0 + phi1 * 3)


def test_the_logged_model_gives_the_logged_forecast() -> None:
    values = [float(v) for v in range(9_000, 19_000, 1_000)]
    for i in range(10, 40):
        values.append(4627.45 + 0.5167 * values[i - 10])
    model = ar1(values, 10)
    assert model == pytest.approx((4627.45, 0.5167))
    assert round(foreseen(model, 18_532.0, GPU)) == 14_203


def test_a_forecast_stays_between_nothing_and_all_of_a_gpu() -> None:
    rising, falling = [float(2**i) for i in range(12)], [1e6 - 2.0**i for i in range(20)]
    assert forecast(rising, 1, 3000.0) == 3000.0  # 4096 by the model
    assert forecast(falling, 1, 1e6) == 0.0  # -48,576 by the model
    assert forecast([], 10, GPU) == 0.0


def test_too_short_a_series_is_expected_to_stay_at_its_mean() -> None:
    assert ar1([3.0, 5.0], 10) == (4.0, 0.0)


def test_what_is_not_used_in_four_of_five_samples_can_be_harvested() -> None:
    found = statistics_of(window([7_000.0] * 16 + [7_008.0] * 4))
    assert (found.p80_used, found.harvested) == (7_008, 25_502)
    assert found.variation == pytest.approx(0.000125, rel=0.01)


def test_steady_use_lets_in_who_wants_less_than_it_leaves() -> None:
    decision = decide(13_988 * MIB, 4_534 * MIB, seen([7_000.0] * 16 + [7_008.0] * 4))
    assert (decision.admitted, decision.by) == (True, "cbp")
    assert (decision.harvested, decision.available) == (25_502 * MIB, 4_534 * MIB)
    assert decision.samples == 20
    assert "24.9G free in 80 % of 20 samples" in decision.why


def test_who_wants_more_than_is_left_is_refused_and_a_smaller_one_is_not() -> None:
    statistics = seen([27_943.0] * 30)
    refused = decide(13_988 * MIB, -23_442 * MIB, statistics)
    assert (refused.admitted, refused.by, refused.harvested) == (False, "", 4_567 * MIB)
    assert refused.available == -23_442 * MIB
    assert "4.46G harvested" in refused.why
    assert decide(4_567 * MIB, -23_442 * MIB, statistics).by == "cbp"


def test_a_pattern_lets_in_who_wants_less_than_is_expected() -> None:
    # ten seconds busy, ten seconds idle: lag 10 is the opposite, lag 20 the same again
    used = list(islice(cycle([30_000.0] * 10 + [1_000.0] * 10), 45))
    thresholds = Thresholds(lag=20)
    statistics = statistics_of(window([size * MIB for size in used], GPU * MIB), thresholds)
    assert statistics.variation > 0.5
    assert statistics.autocorrelation > 0.35
    decision = decide(2_000 * MIB, 0.0, statistics, thresholds=thresholds)
    assert decision.by == "pp"
    assert decision.forecast == pytest.approx(2_510 * MIB)
    assert not decide(2_511 * MIB, 0.0, statistics, thresholds=thresholds).admitted
    assert not decide(2_000 * MIB, 0.0, statistics_of(window(used))).admitted  # ten ahead there is no such pattern


def test_what_fits_needs_no_samples_and_what_does_not_needs_twenty() -> None:
    assert decide(MIB, MIB, None).by == "fit"
    few = decide(2 * MIB, MIB, seen([1.0] * 19))
    assert (few.by, few.samples, few.why) == ("", 19, "19 of 20 samples since the last start there")
    assert decide(2 * MIB, MIB, None).why == "0 of 20 samples since the last start there"
    assert decide(2 * MIB, MIB, seen([1.0] * 20)).by == "cbp"


def test_the_guard_keeps_out_who_would_find_no_room_once_all_have_grown() -> None:
    statistics = seen([7_000.0] * 20)
    assert decide(13_988 * MIB, 4_534 * MIB, statistics, bound=14_000 * MIB).by == "cbp"
    kept_out = decide(13_988 * MIB, 4_534 * MIB, statistics, bound=13_000 * MIB)
    assert (kept_out.by, kept_out.bound) == ("", 13_000 * MIB)
    assert "12.7G would be left if all here came to what is expected of them" in kept_out.why


def test_who_is_known_is_let_in_by_what_it_needs_without_a_window() -> None:
    known = decide(24_479 * MIB, 8_031 * MIB, None, bound=25_166 * MIB, predicted=7_344 * MIB)
    assert (known.by, known.need, known.request) == ("history", 7_344 * MIB, 24_479 * MIB)
    assert not decide(24_479 * MIB, 8_031 * MIB, None, bound=7_000 * MIB, predicted=7_344 * MIB).admitted


def test_nobody_is_counted_with_more_than_it_asked_for() -> None:
    assert need(6.0, 2.0) == 2.0
    assert need(6.0, 8.0) == need(6.0, None) == need(6.0, 0.0) == 6.0


def test_a_decision_tells_all_its_numbers() -> None:
    told = decide(2 * MIB, MIB, seen([1.0] * 20), bound=3 * MIB).to_json()
    assert {"by", "why", "request", "available", "harvested", "forecast", "variation", "samples", "bound"} <= set(told)
    assert Decision(**told).to_json() == told
