"""How every figure looks, and how it is written to a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

INK = "#2b2b2b"
Tick = tuple[float, str]
"""Where it stands, and what it says."""
_CHARACTER = 5.3
_APART = 5.0
"""In points, at the size of tick labels: the width of a character, and the least room between two labels."""
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


def room_for(axes: Axes, ticks: Sequence[Tick], width: float) -> bool:
    """Whether labels can stand side by side on an x axis that is `width` points wide, its scale and limits set."""
    ticks = sorted(ticks)
    scale = axes.xaxis.get_transform()
    left, right = scale.transform(np.array(axes.get_xlim()))
    places = (scale.transform(np.array([at for at, _ in ticks])) - left) / (right - left) * width
    halves = [_CHARACTER * len(text) / 2 for _, text in ticks]
    return all(places[k] - halves[k] >= places[k - 1] + halves[k - 1] + _APART for k in range(1, len(ticks)))


def label_x(axes: Axes, ticks: Sequence[Tick]) -> None:
    """These ticks on the x axis, and no others."""
    ticks = sorted(ticks)
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([text for _, text in ticks])


def count_axis(axes: Axes) -> None:
    """A y axis for numbers of things, from 0: whole, round, and with commas."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def shorten(text: str, length: int) -> str:
    """At most this many characters; the end counts as much as the beginning (ids differ there)."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 6]}…{text[-5:]}"


def capital(text: str) -> str:
    """The text as it stands at the beginning of a title or beside an axis."""
    return text[:1].upper() + text[1:]


def clean(text: str) -> str:
    """Text that can be drawn as it is: no mathematics, no label hidden for its underscore, no letter that none is."""
    text = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
