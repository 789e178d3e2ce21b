"""`gpuyard gpus`: the GPUs, and who is on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard

if TYPE_CHECKING:
    from gpuyard.client import Gpu


@shared
def gpus(yard: Yard, json: Json = False) -> None:
    """List the GPUs, and who is on them."""
    from gpuyard.cli.table import print_rows, print_table

    found = yard.client().gpus()
    if json:
        print_rows(found["gpus"])
        return
    if found["simulated"]:
        output.say(f"{output.many(len(found['gpus']), 'simulated GPU')}: no real GPU is used")
    heads = ("INDEX", "NAME", "STATE", "MEMORY", "PROMISED", "LEFT", "UTIL", "JOBS", "")
    print_table(heads, [_row(gpu, found["simulated"]) for gpu in found["gpus"]])


def _row(gpu: Gpu, simulated: bool) -> tuple[str, ...]:
    name = gpu["name"]
    if simulated and "simulated" not in name.lower():
        name = f"{name} (simulated)"
    return (
        str(gpu["index"]),
        name,
        gpu["state"],
        f"{_size(gpu['memory_used'])}/{_size(gpu['memory_total'])}",
        _size(gpu.get("memory_promised") or None),
        _size(gpu.get("memory_left") or None),
        "-" if gpu["utilization"] is None else f"{gpu['utilization']:.0f}%",
        (",".join(gpu["jobs"]) or "-") + (" (on loan)" if gpu.get("granted") else ""),
        marks(gpu),
    )


def marks(gpu: Gpu) -> str:
    """What else is to be known of a GPU: who has taken it, and that it is drained or reserved."""
    said = [] if gpu["state"] in ("free", "ours") else [gpu["why"] or ""]
    if gpu.get("drained") and gpu["state"] != "drained":
        said.append("drained")
    if gpu.get("memory_others") and gpu["state"] in ("free", "ours"):
        said.append(f"{_size(gpu['memory_others'])} used by others")
    if gpu.get("reservation"):
        said.append(f"reserved: {gpu['reservation']}, {_booked(gpu)}")
    return "; ".join(filter(None, said))


def _booked(gpu: Gpu) -> str:
    from gpuyard.cli.table import clock, instant, now

    begin, end = gpu["reserved_from"], gpu["reserved_until"]
    begun = begin is None or instant(begin) <= now()
    return f"until {clock(end)}" if begun else f"from {clock(begin)} to {clock(end)}"


def _size(size: int | None) -> str:
    from gpuyard.units import format_size

    return "-" if size is None else format_size(size)
