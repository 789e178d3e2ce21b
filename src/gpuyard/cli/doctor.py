"""`gpuyard doctor`: what is wrong on this machine, and how to mend it."""

from __future__ import annotations

import importlib

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import OnlyHere


@shared
def doctor(yard: OnlyHere, json: Json = False) -> None:
    """Look for what is wrong on this machine, and tell how to mend it."""
    from gpuyard.cli.table import print_rows, visible

    examine = importlib.import_module("gpuyard.doctor.examine").examine  # which knows nearly everything
    findings = []
    for found in examine({"data_dir": yard.data_dir, "socket": yard.socket}):
        findings.append(found)
        if not json:
            print(f"{found.state:<5} {found.check:<15} {visible(found.found)}", flush=True)
            if found.mend:
                print(f"{'':<21} -> {visible(found.mend)}", flush=True)
    bad, warned = (sum(found.state == state for found in findings) for state in ("bad", "warn"))
    if json:
        print_rows([found._asdict() for found in findings])
    else:
        output.say(_summary(bad, warned))
    raise typer.Exit(1 if bad else 0)


def _summary(bad: int, warned: int) -> str:
    if not bad and not warned:
        return "all is well"
    parts = [output.many(bad, "thing") + " wrong"] * bool(bad) + [output.many(warned, "warning")] * bool(warned)
    return ", ".join(parts)
