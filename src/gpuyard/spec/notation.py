"""Texts that people write: arrays (0-99%4), dependencies (afterok:12), policies from files, commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuyard.errors import UserError, suggest

MOST_TASKS = 100_000
MOST_NUMBER = 2**31 - 1
_MOST_NAMED = 200_000  # tasks that a request may name like `12_[3-5]`: a short text could mean endless work
_RANGE = re.compile(r"(\d{1,20})(?:-(\d{1,20})(?::(\d{1,20}))?)?")
_ID = re.compile(r"([1-9][0-9]{0,17})(?:_[0-9]{1,18})?")  # as we make them; folders may have any name
_TASK = re.compile(r"(\d+)_(\d+)")
_SOME = re.compile(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]")


@dataclass(frozen=True, slots=True)
class Array:
    """The numbers of an array's tasks, ascending, and how many may run at once (0: any number)."""

    tasks: tuple[int, ...]
    at_most: int = 0


def parse_array(text: str) -> Array:
    """`0-99%4`: a hundred tasks, four at once; `1,3,7`; `0-20:5` is 0, 5, 10, 15, 20."""
    numbers, percent, most = text.replace(" ", "").partition("%")
    if percent and not (most.isdecimal() and len(most) <= 20 and int(most) >= 1):
        raise UserError(f"'{_short(text)}': after % stands how many tasks may run at once, 1 or more")
    return Array(_numbers(numbers, text), int(most) if percent else 0)


def _numbers(text: str, whole: str) -> tuple[int, ...]:
    found: set[int] = set()
    named = 0  # also those that were named before, or a short text would mean endless work
    whole = _short(whole)
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (match[3] is not None and int(match[3]) < 1):
            raise UserError(
                f"'{whole}' is not an array; write for example 0-99, 0-99%4 (four at once), 1,3,7 or 0-20:5"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first:
            raise UserError(f"'{whole}': {first}-{last} goes backwards; write {last}-{first}")
        if last > MOST_NUMBER:
            raise UserError(f"'{whole}': the number of a task is at most {MOST_NUMBER}")
        named += (last - first) // step + 1
        if named > MOST_TASKS:
            raise UserError(f"'{whole}' has more than {MOST_TASKS:,} tasks, which is the most; use several arrays")
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:99]}…"


def task_id(array: str, task: int) -> str:
    """`12_3`."""
    return f"{array}_{task}"


def number_of(id: str) -> int:
    """The number that an id begins with, 0 if none: 12 of `12` and of `12_3`."""
    match = _ID.fullmatch(id)
    return int(match[1]) if match else 0


def some_of(text: str) -> tuple[str, tuple[int, ...]] | None:
    """The array and the tasks of `12_[3-5]`; None for any other text."""
    match = _SOME.fullmatch(text)
    return (match[1], _numbers(match[2], text)) if match else None


def check_named(words: Iterable[str]) -> None:
    """Refuse words like `12_[3-5]` that name too many tasks, all counted together."""
    named = 0
    for word in words:
        named += len(some[1]) if (some := some_of(word)) else 0
        if named > _MOST_NAMED:
            raise UserError(
                f"more than {_MOST_NAMED:,} tasks are named, up to '{_short(word)}'; name whole arrays, as in 12"
            )


def array_of(id: str) -> str:
    """The array of a task's id; empty if it is no such id."""
    match = _TASK.fullmatch(id)
    return match[1] if match else ""


def ranges(tasks: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for task in sorted(tasks):
        if runs and task == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], task]
        else:
            runs.append([task, task])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def folded(array: str, tasks: Sequence[int], at_most: int = 0) -> str:
    """`12_[7-99%4]`: many tasks in one word."""
    if len(tasks) == 1:
        return task_id(array, tasks[0])
    return f"{array}_[{ranges(tasks)}{f'%{at_most}' if at_most else ''}]"


_HOW = {"afterok": "ok", "afterany": "any", "afternotok": "notok", "after": "begun"}
_KINDS = (*_HOW, "singleton")
AFTER = {short: long for long, short in _HOW.items()}
"""Names of kinds of dependencies, by the core's names."""


class Dependency(NamedTuple):
    """One job, or several under one name, that must end first, or begin (`begun`)."""

    how: str
    who: str


def parse_dependency(text: str) -> list[Dependency]:
    """`afterok:12:13,afterany:prepare`: all of them must hold."""
    if "?" in text:
        raise UserError(f"'{text}': ? (any of these) is not supported; with commas, all must hold")
    found: list[Dependency] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        kind, *who = part.split(":")
        if kind == "singleton" and not who:
            found.append(Dependency(kind, ""))
        elif kind in _HOW and who and all(who):
            found += [Dependency(_HOW[kind], one) for one in who]
        else:
            raise UserError(_complaint(part, kind))
    check_named(one.who for one in found)
    return found


def _complaint(part: str, kind: str) -> str:
    if kind in _HOW:
        return f"'{part}' does not say which job; write for example {kind}:12"
    return f"'{part}' is not a dependency{suggest(kind, _KINDS)}; write for example afterok:12, or afterany:12:13"


LEARNED = "learned:"
"""Before the file that a trained policy is in, or the name of one that comes with gpuyard."""


def absolute(text: str) -> str:
    """The policy's text with an absolute path: the daemon has another working directory."""
    if text.strip().startswith(LEARNED):
        name, at, rest = text.strip().removeprefix(LEARNED).partition("@")
        return LEARNED + _whole(name) + at + rest
    path, ending, rest = text.partition(".py:")
    return os.path.abspath(os.path.expanduser(path)) + ending + rest if ending else text


def _whole(name: str) -> str:
    """A file's absolute path; a bare word that is no file is the name of a policy."""
    path = os.path.expanduser(name)
    is_path = os.sep in path or path.endswith(".json") or os.path.isfile(path)
    return os.path.abspath(path) if name and is_path else name


def describe_gate(gate: Mapping[str, Any] | None) -> str:
    if gate is None:
        return "nobody has evaluated it"
    found = "its gate is passed" if gate["passed"] else "its gate is not passed"
    if gate["ratio"] is None:
        return found
    bounds = ""
    if gate["ratio_low"] is not None and gate["ratio_high"] is not None:
        bounds = f", {gate['ratio_low']:.3g} to {gate['ratio_high']:.3g}"
    return f"{found} ({gate['ratio']:.3g} times {gate['best_heuristic'] or 'the best heuristic'}{bounds})"


def describe_learned(learned: Mapping[str, Any]) -> str:
    base, fallbacks = learned["base"], {kind: n for kind, n in learned["fallbacks"].items() if n}
    plans = f"{learned['plans']:,} plan{'s' * (learned['plans'] != 1)}"
    if fallbacks:
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in fallbacks.items())
        plans += f", {sum(fallbacks.values()):,} of them by {base} ({kinds})"
    starved = learned["starved"]
    ahead = f"{starved:,} job{'s' * (starved != 1)} put ahead for having waited too long" if starved else ""
    parts = (
        f"{learned['hash']}, on top of {base}",
        describe_gate(learned["gate"]) + (", and it was forced" if learned["forced"] else ""),
        plans,
        ahead,
    )
    return "; ".join(part for part in parts if part)


# -- what a command runs: its program, its script or its module ----------------------------------

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SIMPLE = re.compile(r"""(?![^\s'"]*=)(?:[\w \t./:,@%+='"-]|\{id\})+""")
"""What a shell does nothing to but split it into words."""
_WRAPPERS = frozenset((
    "env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "taskset", "numactl", "xvfb-run", "srun", "mpirun",
    "mpiexec", "torchrun", "accelerate", "deepspeed", "uv", "conda", "poetry", "pixi", "pdm", "hatch", "sudo", "setsid",
    "nsys", "ncu", "py-spy", "coverage", "kernprof",
))  # fmt: skip
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "pdb", "cProfile")
"""Modules that run another script or module."""
_INTERPRETERS = ("ipython", "Rscript", "julia", "node", "perl", "ruby", "lua")
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
    "[", "[[", "true", "false", ":", "sleep", "wait", "read", "printf", "exit", "kill", "for", "case", "done", "fi",
    "esac", "function", "local", "shift", "shopt", "hash", "command", "which", "type", "date", "hostname", "nvidia-smi",
))  # fmt: skip
"""What stands before a shell's real work, or around it."""
_SYNTAX = ("[", "[[", ":", ".", "test", "exit", "for", "case", "done", "fi", "esac", "function")
"""What says nothing of a job even if there is nothing else."""
_BEFORE = ("if", "elif", "while", "until", "do", "then", "else", "exec", "!", "{", "time")


def default_name(command: Sequence[str]) -> str:
    """What a job is called if nobody says: its script, its module, or else its program; not the interpreter of these.

    Of `sh -c TEXT`, the first program that does more than prepare. Bytes that are not UTF-8 are replaced, for SQLite.
    """
    return os.fsencode(_job_name(list(command)) or "job").decode(errors="replace")[:LONGEST_NAME]


def is_default_name(name: str, command: Sequence[str]) -> bool:
    """Whether nobody gave the name; jobs of former versions were called by their first word."""
    return bool(command) and name in (default_name(command), os.path.basename(command[0]))


def _job_name(words: Sequence[str], depth: int = 4) -> str:
    if not words or not depth:
        return os.path.basename(words[0]) if words else ""
    program, code = program_of(words[0]), code_at(words)
    if program in _WRAPPERS:
        return _job_name(_wrapped(words), depth - 1) or program
    if code and program in SHELLS:
        return next((_job_name(one, depth - 1) for one in _programs(words[code + 1 :])), program)
    if code:
        return f"{program} -c"
    at, module = first_argument(words) if program == "python" or program in SHELLS else (0, False)
    if module and words[at] in _LAUNCHERS:
        return _job_name(_wrapped(words[at:]), depth - 1) or words[at]
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
    values = {at + 1 for at, word in enumerate(rest) if word in ("-o", "-s", "-t", "-u")}
    return next((rest[at:] for at, word in enumerate(rest) if _is_program(word) and at not in values), ())


def _is_program(word: str) -> bool:
    if word in ("run", "launch", "profile", "record"):
        return False
    return not (word.startswith("-") or word[:1].isdecimal() or _ASSIGNMENT.fullmatch(word))


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
    yield from [one for one in commands if one[0] not in _SYNTAX][:1]


def _shell_words(line: str) -> list[str]:
    try:
        return list(shlex.shlex(line, posix=True, punctuation_chars=True))
    except ValueError:  # a quote that ends on another line
        return line.split()
