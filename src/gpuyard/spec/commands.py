"""What a command runs: its program, its script or its module."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SIMPLE = re.compile(r"""(?![^\s'"]*=)(?:[\w \t./:,@%+='"-]|\{id\})+""")
"""What a shell does nothing to but split it into words."""
_WRAPPERS = frozenset(
    ("env", "nice", "nohup", "time", "timeout", "stdbuf", "torchrun", "accelerate", "deepspeed", "uv", "conda")
)
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that run another script or module."""
_INTERPRETERS = ("Rscript", "julia", "node", "perl", "ruby", "lua")
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


LONGEST_NAME = 200
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PREPARE = frozenset((
    "cd", "export", "source", ".", "set", "unset", "ulimit", "umask", "mkdir", "module", "trap", "eval", "echo", "test",
    "[", "true", ":", "sleep", "for", "case", "if", "while", "until", "done", "fi", "esac", "function",
))  # fmt: skip
"""What stands before a shell's real work, or around it."""
_BEFORE = ("do", "then", "else", "exec", "!", "{", "time")


def default_name(command: Sequence[str]) -> str:
    """What a job is called if nobody says: its script, its module, or else its program; not the interpreter of these.

    Of `sh -c TEXT`, the first program that does more than prepare. Bytes that are not UTF-8 are replaced, for SQLite.
    """
    return os.fsencode(_named(list(command)) or "job").decode(errors="replace")[:LONGEST_NAME]


def is_default_name(name: str, command: Sequence[str]) -> bool:
    """Whether nobody gave the name; jobs of former versions were called by their first word."""
    return bool(command) and name in (default_name(command), os.path.basename(command[0]))


def _named(words: Sequence[str], depth: int = 4) -> str:
    if not words or not depth:
        return os.path.basename(words[0]) if words else ""
    program, code = program_of(words[0]), code_at(words)
    if program in _WRAPPERS:
        return _named(_wrapped(words), depth - 1) or program
    if code and program in SHELLS:
        return next((_named(one, depth - 1) for one in _programs(words[code + 1 :])), program)
    if code:
        return f"{program} -c"
    at, module = first_argument(words) if program == "python" or program in SHELLS else (0, False)
    if module and words[at] in _LAUNCHERS:
        return _named(_wrapped(words[at:]), depth - 1) or words[at]
    if module:
        return words[at]
    if program in _INTERPRETERS:
        at = next((at for at, word in enumerate(words) if at and _SCRIPT.fullmatch(word)), 0)
    return os.path.basename(words[at].rstrip("/")) or program


def _wrapped(words: Sequence[str]) -> Sequence[str]:
    """The command within `env A=1 nice python train.py`, or `torchrun --nproc-per-node 2 train.py`."""
    rest = words[1:]
    for at, word in enumerate(rest):
        if program_of(word) == "python" or program_of(word) in SHELLS or program_of(word) in _WRAPPERS:
            return rest[at:]
        if word == "-m" and at + 1 < len(rest):
            return ["python", *rest[at:]]
        if _SCRIPT.fullmatch(word) and not word.startswith("-"):
            return rest[at:]
    return next((rest[at:] for at, word in enumerate(rest) if _is_program(word)), ())


def _is_program(word: str) -> bool:
    return not (
        word.startswith("-") or word[:1].isdecimal() or word in ("run", "launch") or _ASSIGNMENT.fullmatch(word)
    )


def _programs(texts: Sequence[str]) -> Iterator[list[str]]:
    """The programs of a shell's text with their arguments; first those that do more than prepare."""
    found: list[list[str]] = [[]]
    for line in texts[0].splitlines() if texts else ():
        for word in [*_shell_words(line), ";"]:
            if set(word) <= set("();<>|&"):
                found.append([])
            elif found[-1] or not (_ASSIGNMENT.fullmatch(word) or word in _BEFORE):
                found[-1].append(word)
    commands = [one for one in found if one]
    yield from (one for one in commands if one[0] not in _PREPARE)
    yield from commands[:1]


def _shell_words(line: str) -> list[str]:
    try:
        return list(shlex.shlex(line, posix=True, punctuation_chars=True))
    except ValueError:  # a quote that ends on another line
        return line.split()
