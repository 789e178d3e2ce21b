"""The look of every figure: colours, fonts, legends, texts; and how a figure is written to a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gpuyard.files import write_atomically

INK = "#2b2b2b"
COLOURS = ("#1f6fb4", "#d1493f", "#2f9e44", "#ee8a12", "#8a56ac", "#12a5b8", "#7a5238", "#444444")
"""Of policies and schedulers. Lines of recordings have a palette of their own (`panels`)."""
BLUE, RED, GREEN, ORANGE = COLOURS[:4]
PALE, GREY, LIGHT, DARK = "#a9bfd4", "#8d949c", "#d5d9de", "#333333"
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHED = (0, (4, 1.5))
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
    """An empty figure that needs no display; inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG: the same bytes for the same figure, without date or author."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _rendered(figure, "svg", nothing)


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG at 150 dpi, reproducible like the SVG."""
    return _rendered(figure, "png", {"Software": None})


def _rendered(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def save(figure: Figure, directory: str | Path, name: str) -> tuple[Path, Path]:
    """Write `name.png` and `name.svg`."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    write_atomically(png, png_bytes(figure))
    write_atomically(svg, svg_bytes(figure))
    return png, svg


def legend_beside(figure: Figure, **options: Any) -> None:
    more = {"title_fontsize": 8, "alignment": "left"} if "title" in options else {}
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, **more, **options)


def legend_below(figure: Figure, columns: int, **options: Any) -> None:
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, **options)


def figure_title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5)


def shorten(text: str, length: int) -> str:
    """At most this many characters; the end counts as much as the beginning (ids differ there)."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 6]}…{text[-5:]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def clean(text: str) -> str:
    """Text that matplotlib draws as it is: no mathematics, no label hidden for its underscore, no control character."""
    text = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def clipped(text: str, length: int) -> str:
    return clean(shorten(text, length))
