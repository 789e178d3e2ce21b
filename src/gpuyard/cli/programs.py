"""Whether what is to run can be run: a mistyped name is told at once, not when its turn has come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from gpuyard.errors import UserError, suggest

_SHIMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "shims")
"""Stand-ins for Slurm's programs, which come last in the PATH of a job that was written for Slurm."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a shell looks that is told nothing else."""


def check_program(word: str, directory: str, environment: Mapping[str, str], *, slurm: bool, later: bool) -> None:
    """Refuse what looks like a file and cannot be run; `later`: it may be there when the jobs before it are over."""
    place = os.path.join(directory, word)
    if "/" not in word:
        paths = [*environment.get("PATH", _PATH).split(os.pathsep), *([_SHIMS] if slurm else ())]
        if shutil.which(word, path=os.pathsep.join(os.path.join(directory, path) for path in paths)):
            return
    elif os.path.isfile(place) and os.access(place, os.X_OK):
        check_lines(place, word)
        return
    elif later and not os.path.exists(place):
        return
    looks_like_a_file = word == "-" or "/" in word or "." in word or os.path.exists(place)
    if looks_like_a_file:  # else it may be there when its turn has come
        raise UserError(_why(word, place))


def missing(word: str) -> str | None:
    """What is wrong with a word that looks like a file's name, where there is no such file here."""
    if os.path.exists(word) or ("/" not in word and "." not in word):
        return None
    return f"there is no such file here{_near(os.path.abspath(word))}"


def _why(word: str, place: str) -> str:
    """Why a word is no command, and what to write instead."""
    if word == "-":
        return "a script cannot be read from the standard input; save it to a file, and submit that"
    if os.path.isdir(place):
        return f"{word} is a directory, not a command"
    if not os.path.isfile(place):
        where = "no file" if "/" in word else "no command, and no file here, called"
        return f"there is {where} {word}{_near(place)}"
    if word.endswith((".yaml", ".yml")):
        return f"{word} is no command; if it is a job file, write: gpuyard submit --file {word}"
    here = word if "/" in word else f"./{word}"
    if os.access(place, os.X_OK):
        return f"{word} is not on the PATH; write {here} for the file that is here"
    if word.endswith(".py"):
        return f"{word} is not executable; write: gpuyard submit -- python {word} (or chmod +x {word}, and {here})"
    if word.endswith(".sh"):
        return f"{word} does not begin with #!; begin it with #!/bin/bash, or write: gpuyard submit -- bash {word}"
    return f"{word} is not executable; write what runs it, as in: gpuyard submit -- bash {word} (or chmod +x {word})"


def _near(place: str) -> str:
    folder, name = os.path.split(place)
    try:
        files = [entry.name for entry in os.scandir(folder or os.curdir) if entry.is_file()]
    except OSError:
        files = []
    return suggest(name, files) or "; check its name, and the directory that you are in"


def check_lines(path: str, word: str, *, options: bool = False) -> None:
    """Refuse a script that cannot run, or whose lines for us (`options`) would not be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(2**16)
    except (OSError, ValueError):  # a program that may be run, but not read; or no file at all
        return
    if head.startswith(b"#!") and head.split(b"\n", 1)[0].endswith(b"\r"):
        raise UserError(f"{word} has DOS line breaks, so it cannot be run; dos2unix {word} mends it")
    asks = b"\0" not in head and any(line.startswith((b"#SBATCH", b"#GPUYARD")) for line in head.splitlines())
    if options and asks and not head.startswith(b"#!"):
        raise UserError(f"{word} has lines for gpuyard, but is not marked as a script; begin it with #!/bin/bash")
