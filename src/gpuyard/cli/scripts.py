"""Scripts with #GPUYARD and #SBATCH lines: what they ask for, and their text, which is kept as it is now."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import typer

from gpuyard.cli import output
from gpuyard.cli.quick import QuickCommand
from gpuyard.cli.sharing import shared
from gpuyard.cli.slurm import Line, translate
from gpuyard.cli.wishes import Options
from gpuyard.errors import UserError

_MOST = 2**22
_OURS, _SLURMS = "#GPUYARD", "#SBATCH"
_SEVERAL = ("tag", "env", "notify")
"""Options that may be repeated, also in several lines."""


def read_script(path: str) -> tuple[str, Options, dict[str, str]]:
    """The script's text, what its lines ask for, and the variables that they bring; what is ignored is told."""
    with open(path, "rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise UserError(f"{path} has more than {_MOST // 2**20} MiB; let the script be short, and call the rest")
    if b"\0" in data:
        raise UserError(f"{path} is not a script: it holds a NUL character; put a program after --")
    text = os.fsdecode(data)
    ours, slurms = _lines(text, os.path.basename(path))
    found = translate(slurms)
    for warning in found.warnings:
        output.say(warning)
    asked = _together(ours).over(_together(found.lines))
    if not slurms:
        return text, asked, {}
    variables = {"SLURM_SUBMIT_DIR": os.getcwd(), **found.variables}
    return text, asked.over(Options(slurm_variables=True)), variables


def _lines(text: str, name: str) -> tuple[list[Line], list[Line]]:
    """Lines of options at the top of a script, before its first command: ours, and those for Slurm."""
    ours: list[Line] = []
    slurms: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        mark, _, rest = line.partition(" ") if " " in line else line.partition("\t")
        if mark not in (_OURS, _SLURMS):
            continue
        where = f"{name}:{number}"
        try:
            words = shlex.split(rest, comments=True)
        except ValueError as error:
            raise UserError(f"{where}: {line.strip()}: {str(error).lower()}; check its quotes") from None
        (ours if mark == _OURS else slurms).append(Line(where, words))
    return ours, slurms


def _together(lines: Iterable[Line]) -> Options:
    """What all lines ask for; a later one goes before an earlier one."""
    found = Options()
    for line in lines:
        asked = read_options(line.words, line.where)
        several: dict[str, Any] = {
            name: [*(getattr(found, name) or ()), *(getattr(asked, name) or ())] for name in _SEVERAL
        }
        found = replace(asked.over(found), **several)
    return found


def read_options(words: Sequence[str], where: str) -> Options:
    """Options as a command line has them, from some other place."""
    try:
        context = _reader().make_context("gpuyard submit", list(words))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:  # by what it can do: some versions of typer bring their own click
        if not hasattr(error, "format_message"):
            raise
        raise UserError(f"{where}: {str(error.format_message()).rstrip('.')}") from None
    return Options(**{f.name: context.params[f.name] for f in fields(Options)})


@cache
def _reader() -> Any:
    """A command that does nothing, but can read the options."""

    @shared
    def read(options: Options) -> None:
        raise AssertionError("it is never run")

    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command("submit", cls=QuickCommand)(read)
    return typer.main.get_command(alone)
