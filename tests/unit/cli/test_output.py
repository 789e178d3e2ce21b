"""What people see on a screen, however wide it is."""

from __future__ import annotations

import pytest
from rich.console import Console

from gpuyard.cli.simulator import compare as command
from gpuyard.cli.terminal import output
from gpuyard.core.model import Cluster
from gpuyard.sim.compare import compare
from gpuyard.sim.workload import generate_poisson


@pytest.mark.parametrize(("width", "windows"), [(60, 1), (80, 1), (60, 3), (80, 3), (110, 3), (180, 3)])
def test_a_ranking_fits_the_screen_and_names_its_policies(
    width: int, windows: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = generate_poisson(seed=1, jobs=150, gpus=8, load=1.2)
    found = compare(trace, Cluster((8,)), ["fcfs", "srtf"], windows=windows, jobs=1)
    monkeypatch.setattr(output, "console", lambda: Console(width=width, highlight=False))
    command.print_ranking(found)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert {"fcfs", "srtf", "mean"} <= set(shown.split())
    assert "…" not in shown
    assert ("vs best" in shown) == (windows > 1)
    assert ("kWh" in shown) == (width == 180)


def test_pools_are_told_where_there_are_any() -> None:
    assert output.where({"gpus": 1}) == "1 simulated GPU"
    assert output.where({"gpus": 2816, "pools": {"a": {}, "b": {}}}) == "2,816 simulated GPUs in 2 pools"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (0.02081, "0.0208"),
        (12.345, "12.35"),
        (10_578.15, "10,578.15"),
        (1_120_493.2, "1,120,493"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert output.number(value) == text
