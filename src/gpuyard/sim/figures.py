"""How every figure looks, and how it gets into a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gpuyard.sim.result import Result

INK = "#2b2b2b"
_RC = {
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "gpuyard",  # without it SVG ids are random, and no two files are the same
    "svg.fonttype": "path",
}


@contextmanager
def styled() -> Iterator[None]:
    """The look of all figures, for as long as one is built or written."""
    # From the defaults on, so that a matplotlibrc on this machine cannot change the figures.
    with matplotlib.style.context(["default", _RC]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG: the same bytes for the same figure, without date or author."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", dpi=150, metadata=nothing)
    return buffer.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG at 150 dpi, reproducible like the SVG."""
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, directory: str | Path, name: str) -> tuple[Path, Path]:
    """Write `name.png` and `name.svg`; a reader never sees half a file."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    write_atomically(png, png_bytes(figure))
    write_atomically(svg, svg_bytes(figure))
    return png, svg


def write_atomically(path: Path, content: bytes) -> None:
    """Put the content in place in one step, or leave what was there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def time_unit(span: float) -> tuple[float, str]:
    """Seconds per unit, and the unit, in which a stretch of time reads best on an axis."""
    for limit, divisor, unit in ((600.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (4 * 86400.0, 3600.0, "h")):
        if span <= limit:
            return divisor, unit
    return 86400.0, "days"


def first_submit(result: Result) -> float:
    """Where the time axis starts."""
    return float(result.trace.submit.min()) if len(result.trace) else 0.0


def shorten(text: str, length: int) -> str:
    """At most this many characters; the end counts as much as the beginning (ids differ there)."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 6]}…{text[-5:]}"


def clean(text: str) -> str:
    """Text that matplotlib shows as it is: no mathematics, and no label hidden for its underscore."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
