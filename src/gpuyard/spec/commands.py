"""What a command runs: its program, its script or its module."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SIMPLE = re.compile(r"""(?![^\s'"]*=)(?:[\w \t./:,@%+='"-]|\{id\})+""")
"""What a shell does nothing to but split it into words."""
_WRAPPERS = frozenset(
    ("env", "nice", "nohup", "time", "timeout", "stdbuf", "torchrun", "accelerate", "deepspeed", "uv", "conda")
)
_SCRIPT = re.compile(r".+\.(?:py|pyz|sh|bash|zsh|r|R|jl|pl|rb|js|lua)")


def script_of(command: Sequence[str]) -> str | None:
    """The file that a command runs, as written there: an interpreter's argument, or else the program."""
    command = without_shell(command)
    if not command:
        return None
    program = program_of(command[0])
    if program == "python" or program in SHELLS:
        at, module = first_argument(command)
        if at and not module:
            return command[at]
    elif "/" in command[0] and program not in _WRAPPERS:
        return command[0]
    end = code_at(command) or len(command)
    return next((word for word in command[1:end] if _SCRIPT.fullmatch(word) and not word.startswith("-")), None)


def without_shell(command: Sequence[str]) -> Sequence[str]:
    """`sh -c 'python train.py'` as the command that it runs, where a shell only splits words; any other as it is."""
    if len(command) != 3 or program_of(command[0]) not in SHELLS or command[1] != "-c":
        return command
    text = command[2].strip()
    try:
        return (_SIMPLE.fullmatch(text) and shlex.split(text)) or command
    except ValueError:  # a quote without its other half, which is the shell's to complain of
        return command


def program_of(text: str) -> str:
    name = os.path.basename(text)
    return "python" if _PYTHON.fullmatch(name) else name


def first_argument(command: Sequence[str]) -> tuple[int, bool]:
    """Position of an interpreter's script, and whether it is the name of a module; 0 if there is none."""
    at = 1
    while at < len(command) and command[at].startswith("-"):
        if command[at] in ("-c", "-"):
            return 0, False
        if command[at] == "-m":
            return at + 1 if at + 1 < len(command) else 0, True
        at += 2 if command[at] in ("-W", "-X", "-o", "--rcfile") else 1
    return (at, False) if at < len(command) else (0, False)


def code_at(command: Sequence[str]) -> int:
    """Position of a program's text in a command (`python -c ...`); 0 if there is none."""
    if not command or not (program_of(command[0]) == "python" or program_of(command[0]) in SHELLS):
        return 0
    for at, word in enumerate(command[1:], 1):
        if word == "-c" or (
            word.startswith("-") and not word.startswith("--") and word.endswith("c") and len(word) < 6
        ):
            return at
        if not word.startswith("-"):
            return 0
    return 0
