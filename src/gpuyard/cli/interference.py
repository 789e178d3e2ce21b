"""`gpuyard interference`: what jobs that share a GPU do to each other."""

from __future__ import annotations

from typing import Any

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard

_VERDICTS = {"apart": "never together", "avoided": "only if there is no other room", "together": "may share"}


@shared
def interference(yard: Yard, json: Json = False) -> None:
    """Tell which jobs slow each other down when they share a GPU."""
    from gpuyard.cli.table import print_table

    found = yard.client().interference()
    if json:
        output.print_json(found)
        return
    heads = ("JOBS LIKE", "BESIDE JOBS LIKE", "TAKE", "EVIDENCE", "LAST SEEN", "CONSIDERATE")
    print_table(heads, map(_row, found["pairs"]))
    if not found["pairs"]:
        output.say("no two jobs have shared a GPU for long enough to tell")
    elif not found["considered"]:
        output.say("nothing follows from this: gpuyard policy set POLICY --placement considerate would go by it")


def _row(pair: dict[str, Any]) -> tuple[str, ...]:
    from gpuyard.cli.table import instant
    from gpuyard.units import format_duration

    return (
        _called(pair["sufferer"]),
        _called(pair["beside"]),
        f"{pair['slowdown']:.2f} x as long",
        f"{pair['evidence']}, {format_duration(pair['seconds'])}",
        instant(pair["at"]).astimezone().strftime("%Y-%m-%d %H:%M"),
        _VERDICTS.get(pair["verdict"], pair["verdict"]),
    )


def _called(kind: dict[str, str]) -> str:
    """What people know jobs of a kind by."""
    return f"{kind['job']} ({kind['name'] or kind['signature'][:8]})" if kind["job"] else kind["signature"][:8]
