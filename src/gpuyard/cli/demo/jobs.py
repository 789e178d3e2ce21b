"""The jobs of the demo: the four kinds of the examples, with wishes of all sorts."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gpuyard
from gpuyard.errors import GpuyardError
from gpuyard.units import format_duration, format_size, parse_size

if TYPE_CHECKING:
    from gpuyard.client import Client, Job, Wishes

KINDS = {
    "cnn": "convolutional network",
    "recurrent": "recurrent network",
    "matmul": "matrix product",
    "boosted_trees": "boosted trees",
}
"""What is behind the name of an example."""
_LONGEST = 300.0
"""Seconds after which a job is ended on a machine that is slow beyond hope."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Planned:
    """A job that is to come."""

    name: str
    kind: str
    epochs: int
    wishes: Wishes
    at: float = 0.0
    """Seconds after the first one."""
    expected: str = "succeeded"

    def submit(self, client: Client, directory: Path, seed: int) -> str:
        """Queue it; its id."""
        script = examples() / f"{self.kind}.py"
        command = [sys.executable, str(script), "--epochs", str(self.epochs), "--seed", str(seed)]
        environment = dict(os.environ) | _ONE_THREAD
        wishes: Wishes = {"name": self.name, "time_limit": _LONGEST, "grace": 2.0, **self.wishes}
        return client.submit(command, directory=directory, environment=environment, **wishes)


_SHARE = int(parse_size("5G"))
PLAN = (
    Planned("cnn-base", "cnn", 11, {"gpus": 2, "estimate": 20.0}),
    Planned("recurrent-base", "recurrent", 13, {"gpus": 2, "estimate": 20.0}),
    Planned("matmul-four", "matmul", 11, {"gpus": 4, "estimate": 5.0}),
    Planned("cnn-wide", "cnn", 6, {"gpus": 6, "estimate": 10.0}, at=0.2),
    Planned("recurrent-long", "recurrent", 13, {"gpus": 2, "estimate": 30.0}, at=0.4),
    Planned("trees-1", "boosted_trees", 40, {"gpu_memory": _SHARE, "estimate": 4.0}, at=0.6),
    Planned("trees-2", "boosted_trees", 50, {"gpu_memory": _SHARE, "estimate": 4.0}, at=0.6),
    Planned("trees-3", "boosted_trees", 60, {"gpu_memory": _SHARE, "estimate": 4.0}, at=0.6),
    Planned("matmul-urgent", "matmul", 9, {"gpus": 2, "priority": 10.0, "estimate": 5.0}, at=1.0),
    Planned("too-long", "matmul", 1_000_000, {"gpus": 2, "time_limit": 3.0}, at=1.2, expected="timeout"),
)
"""Who comes when. Some have to wait, three share a GPU, one goes ahead of the others, and one runs out of time."""


def wants(job: Job) -> str:
    """`2 GPUs`, `5G of a GPU`, with what else matters to the queue."""
    count, memory = job["gpu_count"], job["gpu_memory"]
    text = f"{count} GPU{'s' * (count != 1)}" if memory is None else f"{format_size(memory)} of a GPU"
    if job["priority"]:
        text += f", prio {job['priority']:g}"
    if job["time_limit"] not in (None, _LONGEST):
        text += f", max {format_duration(job['time_limit'] or 0.0)}"
    return text


def examples() -> Path:
    """The folder of the examples: in the package where that is installed, beside it where it is worked on."""
    package = Path(gpuyard.__file__).resolve().parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "matmul.py").is_file():
            return folder
    raise GpuyardError(f"there are no examples in {package}; install gpuyard anew")
