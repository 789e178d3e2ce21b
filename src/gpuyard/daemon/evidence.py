"""What the table `runs` holds, for people to read: by a reader of its own, never by the yard's thread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpuyard.daemon.estimates import run_of
from gpuyard.daemon.predicting import LATEST, Errors, Prediction, Run, errors_of, predict, seconds_of
from gpuyard.daemon.profiles import unwrapped
from gpuyard.daemon.reader import Reader
from gpuyard.signatures import shown


class Known(NamedTuple):
    """What is known of a signature."""

    signature: str
    command: str
    name: str
    user: str
    runs: int
    last: float
    expected: Prediction
    seconds: float
    per_epoch: bool
    memory_error: Errors | None
    time_error: Errors | None


def all_known(reader: Reader, user: str, limit: int, few: float, part: float) -> Iterator[Known]:
    """What is known, the latest first."""
    for signature, whose, name, command, count, last in reader.signatures(user, limit):
        runs = [run_of(row) for row in reversed(reader.runs("signature", signature, LATEST))]
        expected = predict(runs, [], 0.0, few, part)
        per_epoch = seconds_of(runs, 1.0)[0] if any(run.epochs for run in runs) else 0.0
        yield Known(
            signature, title(json.loads(command)), name, whose, count, last, expected, per_epoch or expected.seconds,
            per_epoch > 0, _memory_errors(runs), _time_errors(runs),
        )  # fmt: skip


def expected_of(
    reader: Reader, signature: str, likeness: str, epochs: float, few: float, part: float
) -> tuple[Prediction, list[dict[str, Any]]]:
    """What is expected of a job, and the runs that tell."""
    runs, alike = (reader.runs(kind, key, LATEST) for kind, key in (("signature", signature), ("likeness", likeness)))
    known, similar = ([run_of(row) for row in reversed(rows)] for rows in (runs, alike))
    found = predict(known, similar, epochs, few, part)
    kind, key = ("signature", signature) if runs else ("likeness", likeness)
    return found, reader.past_runs(kind, key, LATEST)


def title(command: Sequence[str]) -> str:
    """A command as it is known."""
    return " ".join(shown(unwrapped(command)))


def _memory_errors(runs: Sequence[Run]) -> Errors | None:
    return errors_of([(run.predicted_peak, run.peak) for run in runs if run.outcome in ("succeeded", "oom")])


def _time_errors(runs: Sequence[Run]) -> Errors | None:
    return errors_of([(run.predicted_seconds, run.seconds) for run in runs if run.outcome == "succeeded"])
