"""What `gpuyard monitor` shows: a live line per GPU, and a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.cli.terminal import output
from gpuyard.cli.terminal.text_table import lines
from gpuyard.units import format_duration, format_plain, format_size

if TYPE_CHECKING:
    from gpuyard.gpus.base import Device, Reading
    from gpuyard.monitor.live import GpuWatch

_HEADS = ("GPU", "NAME", "BUSY", "MEMORY", "OF THAT ITS OWN", "POWER", "TEMPERATURE")


@contextmanager
def view(watching: GpuWatch, live: bool) -> Iterator[Callable[[], None]]:
    """Something to call after each look."""
    if not live or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as screen:

        def show() -> None:
            rows = [_cells(*one, watching.own) for one in zip(watching.devices, watching.readings, strict=True)]
            screen.update(Text("\n".join(lines(_HEADS, rows, screen.console.width))), refresh=True)

        yield show


def _cells(device: Device, reading: Reading, own: Mapping[int, int]) -> Sequence[str]:
    if reading.lost:
        return str(device.index), device.name, "does not answer", "", "", "", ""
    total = f" of {format_size(device.memory)}" if device.memory else ""
    return (
        str(device.index),
        device.name,
        _told(reading.utilization, "{:.0f}%"),
        f"{format_size(reading.memory_used)}{total}",
        format_size(own[device.index]) if own.get(device.index) else "-",
        _told(reading.power, "{:.0f} W"),
        _told(reading.temperature, "{:.0f} °C"),
    )


def _told(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def tell(summary: Mapping[str, Any], who: str, out: Path, files: Sequence[Path]) -> None:
    """What came of it, on stderr: the output of a command stays its own."""
    for sentence in summary["warnings"]:
        output.say(f"gpuyard: warning: {sentence}")
    gpus = summary["gpus"]
    output.say(_head(summary, who))
    heads = ("GPU", "NAME", "MEMORY", "ITS OWN", "BUSY", "AT MOST", "TEMP.", "POWER", "ENERGY")
    starred = _has_processes(summary)
    output.say("\n".join(lines(heads, [_row(gpu, starred) for gpu in gpus], None)))
    output.say(_energy(summary))
    if files:
        output.say(f"written to {out}: {', '.join(path.name for path in files)}")


def _head(summary: Mapping[str, Any], who: str) -> str:
    took = format_duration(round(summary["seconds"], 1))
    ended = f"exit code {summary['exit_code']}" if summary.get("exit_code") is not None else ""
    if summary.get("signal"):
        ended = f"ended by {summary['signal']}"
    if summary.get("state"):
        ended = summary["state"] + (f", {ended}" if ended and summary["state"] == "failed" else "")
    simulated = "; simulated GPUs" if summary["simulated"] else ""
    return f"{who}: {ended + ', ' if ended else ''}{took}{simulated}"


def _row(gpu: Mapping[str, Any], starred: bool) -> Sequence[str]:
    sizes = (gpu["peak_memory"], gpu["peak_process_memory"])
    return (
        f"{gpu['host']}{':' * bool(gpu['host'])}{gpu['index']}{'*' * (starred and gpu['used'])}",
        gpu["name"],
        *("-" if size is None else format_size(size) for size in sizes),
        _told(gpu["utilization_mean"], "{:.0f}%"),
        _told(gpu["utilization_max"], "{:.0f}%"),
        _told(gpu["temperature_max"], "{:.0f} °C"),
        _told(gpu["power_mean"], "{:.0f} W"),
        watt_hours(gpu["energy_wh"]) or "-",
    )


def _energy(summary: Mapping[str, Any]) -> str:
    """What was used of GPUs, in one line."""
    used, told = summary["energy_of"], watt_hours(summary["energy_wh"])
    energy = f"; {'its own ' if summary.get('job') else ''}energy {told}" if told else ""
    if not _has_processes(summary):
        return f"of all that ran there, whoever's it was{energy}"
    if not used:
        return "none of its processes was seen on a GPU"
    which = f"GPU{'s' * (len(used) > 1)} {', '.join(map(str, used))}"
    return f"* {which}: used by it{energy}"


def watt_hours(value: float | None) -> str:
    """Energy for people: `0.7569 Wh`, `11,801 Wh`."""
    return "" if value is None else f"{format_plain(value)} Wh"


def _has_processes(summary: Mapping[str, Any]) -> bool:
    return any(summary.get(key) is not None for key in ("command", "pid", "job"))
