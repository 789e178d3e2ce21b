"""`gpuyard config` and `gpuyard doctor`: the settings, and checks of this machine."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import typer

from gpuyard.cli.common_options import Json, LocalOnlyOptions, NoHost, option_groups
from gpuyard.cli.daemon.up import warn_of_variables
from gpuyard.cli.parser import QuickCommand, QuickGroup
from gpuyard.cli.terminal import output
from gpuyard.config import config_file, explained

app = typer.Typer(
    cls=QuickGroup,
    help="Show the settings, and where each comes from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _config() -> None:
    """Show the settings, and where each comes from."""


@app.command("show", cls=QuickCommand)
@option_groups
def show(yard: LocalOnlyOptions, json: Json = False) -> None:
    """Show every setting, its value and where it comes from.

    They are those that a daemon started here and now would have; one that runs may have been given flags.
    """
    from gpuyard.cli.terminal.text_table import print_rows, print_table

    found = explained({"data_dir": yard.data_dir, "socket": yard.socket})
    if json:
        print_rows([{**one._asdict(), "value": _plain(one.value)} for one in found])
    else:
        rows = [(one.name, _shown(one.name, one.value), _from(one.origin, one.source)) for one in found]
        print_table(("SETTING", "VALUE", "FROM"), rows)
    warn_of_variables()


@app.command("path", cls=QuickCommand)
def path(host: NoHost = None) -> None:
    """Print where the settings' file is, or would be."""
    file = config_file()
    print(file)
    if not file.exists():
        output.say("there is no such file yet; docs/reference/queue.md tells what it may hold")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _from(origin: str, source: str) -> str:
    return {"flag": f"flag {source}", "environment": f"variable {source}", "file": source}.get(origin, origin)


def _shown(name: str, value: Any) -> str:
    """A value as it could be written in the file."""
    from gpuyard.config import DURATIONS, SIZES
    from gpuyard.units import format_size

    if isinstance(value, bool):
        return str(value).lower()
    if name in DURATIONS:
        return "0 (for ever)" if name.startswith("keep_") and not value else _time(value)
    if name in SIZES:
        return format_size(value)
    return "-" if value is None else str(value) or "-"


def _time(seconds: float) -> str:
    """`90d`, `1d`, `10s`: the largest unit that leaves a whole number, so that it can be read back."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.6g}s"


@option_groups
def doctor(yard: LocalOnlyOptions, json: Json = False) -> None:
    """Look for what is wrong on this machine, and tell how to mend it."""
    from gpuyard.cli.terminal.text_table import print_rows, visible

    examine = importlib.import_module("gpuyard.admin.doctor").examine  # which knows nearly everything
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
