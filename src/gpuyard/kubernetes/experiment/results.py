"""What an experiment on a cluster showed, in one file for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuyard.experiments.model import Experiment
from gpuyard.experiments.runner import Outcome

RESULTS = "results.json"


def write_results(folder: Path, experiment: Experiment, outcome: Outcome, server: str) -> Path:
    """`results.json`: the table, and every job of every run."""
    from gpuyard.sim.figures import write_atomically

    said = as_json(experiment, outcome, server)
    path = folder / RESULTS
    write_atomically(path, (json.dumps(said, indent=1, allow_nan=False) + "\n").encode())
    return path


def as_json(experiment: Experiment, outcome: Outcome, server: str) -> dict[str, Any]:
    """All of it as plain values. Times are seconds as they passed, so `speed` times as many of the file's."""
    return {
        "experiment": experiment.name,
        "server": server,
        "speed": experiment.kubernetes.get("speed", 1.0),
        "rows": outcome.rows,
        "runs": [asdict(result) for result in outcome.results],
    }
