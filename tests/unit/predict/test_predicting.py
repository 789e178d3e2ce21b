"""What is expected of jobs by what their like did."""

from __future__ import annotations

import pytest

from gpuyard.predict.similar_runs import UNKNOWN, Run, errors_of, margin_of, peaks_of, predict, quantile

MIB = 2**20


def runs(*peaks: float, seconds: float = 10.0, outcome: str = "succeeded", epochs: float = 0.0) -> list[Run]:
    return [Run(float(n), seconds, outcome, peak * MIB, epochs) for n, peak in enumerate(peaks)]


def test_quantiles_are_values_that_were_seen() -> None:
    assert quantile([3, 1, 2], 0.95) == 3
    assert quantile(list(range(1, 101)), 0.95) == 95
    assert quantile(list(range(1, 21)), 0.95) == 19
    assert quantile([5], 0.5) == 5


def test_the_evidence_is_told_in_a_sentence() -> None:
    found = predict(runs(*[1947] * 14), [], 0, 0.05)
    assert found.evidence == "p95 of 14 runs: 1,947 MiB + 3 %"
    assert (found.memory, found.peak) == (2006 * MIB, 1947 * MIB)
    assert predict(runs(1947), [], 0, 0.05).evidence == "p95 of 1 run: 1,947 MiB + 5 %"
    assert predict([], [], 0, 0.05) == UNKNOWN


def test_the_margin_is_what_was_wrong_before() -> None:
    assert margin_of([1947, 2005], 0.05) == 0.05
    assert margin_of([1000, 1120, 1000], 0.05) == 0.12
    assert margin_of([1000, 3000], 0.05) == 0.30
    assert margin_of([1000] * 5, 0.05) == 0.03
    assert margin_of([1000] * 5, 0.2) == 0.12


def test_an_earlier_version_of_a_script_counts_with_a_larger_margin() -> None:
    found = predict([], runs(1000, 1000), 0, 0.05)
    assert found.evidence == "p95 of 2 runs of an earlier version of the script: 1,000 MiB + 10 %"
    assert found.peak == 0
    assert predict(runs(500), runs(1000), 0, 0.05).evidence.startswith("p95 of 1 run: 500 MiB")


@pytest.mark.parametrize(("outcome", "seconds", "whole"), [
    ("failed", 1.0, False), ("failed", 61.0, True), ("cancelled", 61.0, True), ("timeout", 1.0, True),
    ("oom", 600.0, False), ("requeued", 600.0, False), ("preempted", 5.0, False),
])  # fmt: skip
def test_what_was_cut_short_tells_little(outcome: str, seconds: float, whole: bool) -> None:
    assert bool(peaks_of(runs(1000, seconds=seconds, outcome=outcome))) == whole


def test_a_trial_that_was_still_growing_tells_nothing() -> None:
    trial = runs(400)[0]._replace(trial=True, settled=2.0)
    assert peaks_of([trial]) == []
    assert peaks_of([trial._replace(settled=3.0)]) == [400 * MIB]
    assert peaks_of([trial._replace(trial=False)]) == [400 * MIB]  # all of a job, however it grows
    assert peaks_of([trial._replace(settled=None)]) == [400 * MIB]


def test_who_ran_out_of_memory_needs_at_least_what_it_had() -> None:
    good, short = runs(1000, 1000), runs(3000, outcome="oom")
    assert peaks_of([*good, *short]) == [1000 * MIB, 1000 * MIB, 3000 * MIB]
    assert peaks_of([*good, *runs(500, outcome="oom")]) == [1000 * MIB] * 2


def test_a_short_trial_alone_is_not_believed_to_have_seen_all() -> None:
    trial = runs(400, seconds=0.6)[0]._replace(trial=True)
    found = predict([trial], [], 0, 0.05, 2048 * MIB)
    assert found.evidence == "p95 of 1 run: 400 MiB + 30 %, at least 2,048 MiB after so short a trial"
    assert found.memory == 2048 * MIB
    assert predict([trial._replace(peak=2000 * MIB)], [], 0, 0.05, 2048 * MIB).memory == 2600 * MIB
    assert predict([trial, *runs(700, seconds=1.0)], [], 0, 0.05, 2048 * MIB).memory == 735 * MIB
    assert predict([trial._replace(seconds=2.0)], [], 0, 0.05, 2048 * MIB).memory == 420 * MIB


def test_who_was_only_tried_out_tells_little_once_others_have_run() -> None:
    trial = [run._replace(trial=True) for run in runs(400)]
    assert predict(trial, [], 0, 0.05).evidence == "p95 of 1 run: 400 MiB + 5 %"
    assert predict([*trial, *runs(700)], [], 0, 0.05).evidence == "p95 of 1 run: 700 MiB + 5 %"
    assert peaks_of([*[run._replace(trial=True) for run in runs(900)], *runs(700)]) == [900 * MIB, 700 * MIB]


def test_a_surprise_is_forgotten_after_many_runs_without_one() -> None:
    assert margin_of([1000, 1200, *[1200] * 17], 0.05) == 0.20
    assert margin_of([1000, 1200, *[1200] * 20], 0.05) == 0.03


def test_nothing_measured_is_no_evidence_for_memory() -> None:
    found = predict(runs(0, 0, seconds=12.0), [], 0, 0.05)
    assert (found.memory, found.seconds, found.evidence) == (0, 12, "p90 of 2 run times: 12s")


def test_run_times_scale_with_epochs() -> None:
    two = runs(1000, seconds=20.0, epochs=2.0)
    assert predict(two, [], 5, 0.05).seconds == 50
    assert predict(two, [], 0, 0.05).seconds == 0  # nobody knows how many epochs that is
    assert predict(runs(1000, seconds=20.0), [], 0, 0.05).seconds == 20
    assert predict(runs(1000, seconds=30.0, outcome="timeout"), [], 0, 0.05).seconds == 0


def test_errors_are_relative_to_the_truth() -> None:
    found = errors_of([(110, 100), (90, 100), (150, 100), (0, 100)])
    assert found is not None
    assert (found.number, round(found.median, 6), round(found.worst, 6), round(found.bias, 6)) == (
        3,
        0.1,
        0.5,
        0.166667,
    )
    assert errors_of([]) is None
