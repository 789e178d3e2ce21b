"""What came of filling a cluster (`inflate`), on disk: the numbers, the curve, and a picture of it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gpuyard.sim.figures import clean, new_figure, save, styled, write_atomically

_DEMAND, _GIVEN, _LOST = "#8a8a8a", "#1f6fb4", "#d1493f"


def write_filling(facts: dict[str, Any], directory: Path) -> None:
    """`metrics.json`, `curve.csv`, and `curve` as PNG and SVG."""
    directory.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("demand", "allocation", "fragmentation"))
    writer.writerows([f"{value:.4f}" for value in point] for point in facts["curve"])
    write_atomically(directory / "curve.csv", text.getvalue().encode())
    metrics = {name: value for name, value in facts.items() if name != "curve"}
    write_atomically(directory / "metrics.json", json.dumps(metrics, indent=2).encode() + b"\n")
    save(filling(facts), directory, "curve")


def filling(facts: dict[str, Any]) -> Figure:
    """Allocated and fragmented GPUs as jobs arrive."""
    demand, allocation, fragmentation = zip(*facts["curve"], strict=True)
    top = max(100.0, demand[-1])
    with styled():
        figure = new_figure(8, 4.5)
        axes = figure.subplots()
        axes.plot((0, 100, top), (0, 100, 100), color=_DEMAND, linestyle=(0, (4, 3)), linewidth=1, label="ideal")
        axes.plot(demand, allocation, color=_GIVEN, label=f"allocated: {facts['allocation']:.1f} % in the end")
        axes.plot(demand, fragmentation, color=_LOST, label=f"fragmented: {facts['fragmentation']:.1f} % in the end")
        axes.set_title(clean(f"Filling {facts['gpus']:,} GPUs, placement {facts['placement']}"), loc="left")
        axes.set_xlabel("GPUs wanted by the jobs that have arrived (% of the cluster)")
        axes.set_ylabel("% of the cluster's GPUs")
        axes.set_xlim(0, top)
        axes.set_ylim(0, 104)
        axes.grid()
        axes.legend(loc="upper left", frameon=False)
        return figure
