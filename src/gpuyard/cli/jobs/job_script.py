"""Scripts with #GPUYARD and #SBATCH lines: what they ask for, and what Slurm's options mean here."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import typer

from gpuyard.cli.common_options import option_groups
from gpuyard.cli.jobs.job_options import InThePast, Options
from gpuyard.cli.parser import QuickCommand
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError, suggest
from gpuyard.spec.fields import FIELDS
from gpuyard.spec.kinds import SWITCH

_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold",
    "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet", "S": "core-spec",
    "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error", "i": "input",
    "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_FLAGS = frozenset(
    (
        "hold", "requeue", "no-requeue", "overcommit", "quiet", "wait", "no-kill", "oversubscribe", "verbose",
        "contiguous", "exclusive", "spread-job", "parsable", "test-only", "use-min-nodes", "reboot", "ignore-pbs",
        "nice", "propagate", "get-user-env", "stepmgr", "x11",
    )
)  # fmt: skip
"""Options that stand alone; those that may have a value have it after =."""
_ALIASES = {"tasks-per-node": "ntasks-per-node"}
_TASKS = ("ntasks", "ntasks-per-node")
_SILENT = (
    "quiet", "verbose", "parsable", "get-user-env", "contiguous", "threads-per-core", "hint", "wrap", "propagate",
    "ignore-pbs", "stepmgr",
)  # fmt: skip
_WHY = {
    "host memory is not managed here": ("mem", "mem-per-cpu", "mem-per-gpu", "mem-bind"),
    "CPU cores are not managed here": (
        "cpus-per-gpu", "mincpus", "cores-per-socket", "sockets-per-node", "extra-node-info", "core-spec",
        "ntasks-per-socket", "ntasks-per-core", "thread-spec", "cpu-freq", "cpu-bind",
    ),
    "a job is one command, which starts its own processes": ("ntasks-per-gpu",),
    "disks are not managed here": ("tmp", "bb", "bbf"),
    "there are no partitions here": ("partition",),
    "there are no accounts here": ("account",),
    "there is no quality of service to choose here": ("qos",),
    "there are no licenses here": ("licenses",),
    "there is one machine only": (
        "constraint", "nodelist", "nodefile", "exclude", "clusters", "distribution", "cluster-constraint", "prefer",
        "switches", "spread-job", "use-min-nodes", "wait-all-nodes", "no-kill", "batch", "network", "reboot",
        "delay-boot", "power",
    ),
    "what a job uses is recorded in any case": ("profile", "acctg-freq", "wckey", "mcs-label"),
    "a job runs as the user who submits it": ("uid", "gid"),
    "a job has no display": ("x11",),
    "containers are for the job's command to start": ("container", "container-id"),
    "a job whose dependency fails is cancelled": ("kill-on-invalid-dep",),
    "variables are given by --env NAME=VALUE": ("export-file",),
    "a job gets its whole --time": ("time-min",),
    "other jobs may run on this machine's other GPUs": ("exclusive",),
    "GPUs are shared with --gpu-memory here": ("oversubscribe", "overcommit"),
    "reservations are for users here, and need no option": ("reservation",),
    "jobs have no input here": ("input",),
    "use gpuyard run, or gpuyard wait": ("wait",),
    "a job sees its own GPUs only": ("gpu-bind",),
    "clocks are left alone": ("gpu-freq",),
}  # fmt: skip
_IGNORED = {name: why for why, names in _WHY.items() for name in names}
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?(?:\(.*\))?")
_COUNT = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)")


class Line(NamedTuple):
    where: str
    words: Sequence[str]


@dataclass(slots=True)
class Translation:
    lines: list[Line] = field(default_factory=list)  # options of gpuyard
    variables: dict[str, str] = field(default_factory=dict)  # environment variables that Slurm would set
    warnings: list[str] = field(default_factory=list)


class _Option(NamedTuple):
    where: str
    text: str  # as it was written
    name: str
    value: str


def translate(lines: Sequence[Line]) -> Translation:
    """#SBATCH lines as options of gpuyard, with a warning for each that has no meaning here."""
    found = Translation()
    options = [option for line in lines for option in options_of(line)]
    tasks = next((_number(o) for o in reversed(options) if o.name in _TASKS), 1)
    if tasks > 1:
        names = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
        found.variables |= {name: str(tasks) for name in names}
    for option in options:
        _one(option, tasks, found)
    _mail(options, found)
    return found


def options_of(line: Line) -> Iterator[_Option]:
    """The options of a line, with their full names: `-J x`, `-Jx`, `--job-name x` or `--job-name=x`."""
    words = iter(line.words)
    for word in words:
        text, value = word, ""
        name, value, takes = _named(word)
        if not name:
            why = "sbatch has no such option" if word.startswith("-") else "this is no option; they begin with a dash"
            raise UserError(f"{line.where}: #SBATCH {word}: {why}")
        if takes:
            value = next(words, "")
            text = f"{word} {value}".strip()
        yield _Option(line.where, text, _ALIASES.get(name, name), value)


def _named(word: str) -> tuple[str, str, bool]:
    """The full name of an option, its value, and whether that is the next word; no name if it is no option."""
    if word.startswith("--") and len(word) > 2:
        name, equals, value = word[2:].partition("=")
        return name, value, not equals and name not in _FLAGS
    if word.startswith("-") and word[1:2] in _SHORT:
        name, value = _SHORT[word[1]], word[2:].removeprefix("=")
        return name, value, not value and name not in _FLAGS
    return "", "", False


def split_line(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of Slurm's `sbatch`, and the script with its arguments."""
    at = 0
    while at < len(words) and (named := _named(words[at]))[0]:
        at += 2 if named[2] else 1
    return list(words[:at]), list(words[at + (words[at : at + 1] == ["--"]) :])


def word_for(flag: str, line: Sequence[str]) -> str:
    """What to write here for an option of Slurm's that a command line has; empty if it is none of its options."""
    at = next((at for at, word in enumerate(line) if word.startswith(flag)), None)
    if at is None or not _named(line[at])[0]:
        return ""
    option = next(options_of(Line("", line[at : at + (1 if line[at + 1 : at + 2] == ["--"] else 2)])))
    head = f"gpuyard has no {option.text}"
    if option.name in _MEANT:
        try:
            words, warning = _MEANT[option.name](option, 1)
        except UserError as error:
            return f"{head}: {str(error).removeprefix(f': #SBATCH {option.text}: ')}"
        said = [f"write {shlex.join(words)}"] * bool(words) + [warning] * bool(warning)
        return f"{head}: {'; '.join(said) or 'leave it out'}"
    if option.name == "wrap":
        return f"{head}: write -- sh -c {shlex.quote(option.value)}"
    if option.name == "cpus-per-task":
        return (
            f"{head}: CPU cores are not managed here; leave it out (--env OMP_NUM_THREADS={option.value} for threads)"
        )
    if option.name in _TASKS:
        return f"{head}: a job is one command, which starts its processes and threads itself (torchrun); leave it out"
    if option.name in ("mail-type", "mail-user"):
        return f"{head}: write --notify ADDRESS --notify-on finish,failure"
    if option.name in _IGNORED or option.name in _SILENT:
        return f"{head}: {_IGNORED.get(option.name, 'nothing depends on it')}; leave it out"
    return ""


def _one(option: _Option, tasks: int, found: Translation) -> None:
    name = option.name
    if name in _MEANT:
        words, warning = _MEANT[name](option, tasks)
        if words:
            found.lines.append(Line(f"{option.where}: #SBATCH {option.text}", words))
        if warning:
            found.warnings.append(f"{option.where}: #SBATCH {option.text}: {warning}")
    elif name == "cpus-per-task":
        found.variables["SLURM_CPUS_PER_TASK"] = option.value
        found.warnings.append(
            f"{option.where}: #SBATCH {option.text}: CPU cores are not managed here; only SLURM_CPUS_PER_TASK is set"
        )
    elif name not in (*_TASKS, "mail-type", "mail-user", *_SILENT):
        known = f"{why}; ignored" if (why := _IGNORED.get(name)) else "ignored: this option is not known"
        near = "" if why else suggest(name, [*_IGNORED, *_MEANT])
        found.warnings.append(f"{option.where}: #SBATCH {option.text}: {known}{near}")
    if name == "gpus-per-task":
        found.variables["SLURM_GPUS_PER_TASK"] = option.value.rpartition(":")[2]
    if name == "partition":
        found.variables["SLURM_JOB_PARTITION"] = option.value


_MAIL_TYPES = {
    "BEGIN": ["start"], "END": ["finish", "failure", "timeout"], "FAIL": ["failure", "timeout"],
    "TIME_LIMIT": ["timeout"], "ALL": ["start", "finish", "failure", "timeout"], "ARRAY_TASKS": ["tasks"],
}  # fmt: skip
"""Slurm's mail types as events of notifications."""


def _mail(options: Sequence[_Option], found: Translation) -> None:
    """Translate --mail-type and --mail-user: to an address, or to the subscriptions (`gpuyard notify`)."""
    types = next((option for option in reversed(options) if option.name == "mail-type"), None)
    user = next((option for option in reversed(options) if option.name == "mail-user"), None)
    if types is None:
        if user is not None:
            found.warnings.append(f"{user.where}: #SBATCH {user.text}: without --mail-type no mail is sent; ignored")
        return
    where = f"{types.where}: #SBATCH {types.text}"
    words = [word.strip().upper() for word in types.value.split(",") if word.strip()]
    if unknown := [word for word in words if word not in (*_MAIL_TYPES, "NONE")]:
        found.warnings.append(f"{where}: of {', '.join(unknown)} nobody is told here; ignored")
    events = list(dict.fromkeys(event for word in words for event in _MAIL_TYPES.get(word, ())))
    if "NONE" in words:
        found.lines.append(Line(where, ["--notify", "none"]))
    elif set(events) - {"tasks"}:
        address = user.value if user is not None and "@" in user.value else "all"
        found.lines.append(Line(where, ["--notify", address, "--notify-on", ",".join(events)]))
        if address == "all" and user is not None:
            found.warnings.append(
                f"{user.where}: #SBATCH {user.text}: not an address; told is who is in gpuyard notify list"
            )


def _number(option: _Option) -> int:
    if not option.value.isdecimal() or int(option.value) < 1:
        raise UserError(f"{option.where}: #SBATCH {option.text}: a number is expected, 1 or more")
    return int(option.value)


_Meaning = tuple[list[str], str]


def _same(name: str) -> Callable[[_Option, int], _Meaning]:
    return lambda option, tasks: ([name, option.value], "")


def _flag(name: str) -> Callable[[_Option, int], _Meaning]:
    return lambda option, tasks: ([name], "")


def _declared() -> Iterator[tuple[str, Callable[[_Option, int], _Meaning]]]:
    for one in FIELDS:
        if not one.slurm or one.option is None:
            continue
        on, slash, off = one.option.flags[0].partition("/")
        yield one.slurm, (_flag if one.kind is SWITCH else _same)(on)
        if slash:
            yield f"no-{one.slurm}", _flag(off)


def _gpus(option: _Option, tasks: int) -> _Meaning:
    if (match := _COUNT.fullmatch(option.value)) is None:
        raise UserError(f"{option.where}: #SBATCH {option.text}: a number of GPUs is expected, as in 2 or a100:2")
    count = int(match[2]) * (tasks if option.name == "gpus-per-task" else 1)
    return _counted(count, match[1])


def _gres(option: _Option, tasks: int) -> _Meaning:
    count, kind, others = 0, "", []
    for part in option.value.split(",") if option.value.lower() != "none" else ():
        if match := _GRES.fullmatch(part):
            count, kind = count + int(match[2] or 1), match[1] or kind
        else:
            others.append(part)
    words, warning = _counted(count, kind)
    return words, "; ".join(filter(None, (*map(_other_resource, others), warning if count or not others else "")))


def _other_resource(text: str) -> str:
    kind = text.partition(":")[0]
    if kind == "shard":
        return "GPUs are shared by memory here: --gpu-memory 6G is a share; without it the job gets one whole GPU"
    if kind == "mps":
        return "MPS is --mps with --gpu-memory here; without these the job gets one whole GPU"
    return f"there is no {text} here"


def _counted(count: int, kind: str | None) -> _Meaning:
    warning = f"which kind of GPU ({kind}) is not looked at" if kind else ""
    if count == 0:
        return [], "each job has a GPU here, and so has this one"
    return ["--gpus", str(count)], warning


def _time(option: _Option, tasks: int) -> _Meaning:
    if option.value.upper() in ("UNLIMITED", "INFINITE"):
        return [], ""
    seconds = slurm_seconds(option.value)
    if seconds is None:
        raise UserError(f"{option.where}: #SBATCH {option.text}: a time is expected, as in 90 (minutes) or 1-12:00:00")
    return (["--time", f"{seconds}s"], "") if seconds else ([], "")


def slurm_seconds(text: str) -> int | None:
    """Seconds in Slurm's `minutes`, `m:s`, `h:m:s`, `d-h`, `d-h:m` or `d-h:m:s`; None for any other text."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, *rest = match.groups()
    first, second, third = (int(part) if part else 0 for part in rest)
    if days is not None:
        return int(days) * 86400 + first * 3600 + second * 60 + third
    if rest[2] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


def _nodes(option: _Option, tasks: int) -> _Meaning:
    least = option.value.split("-")[0]
    if least.isdecimal() and int(least) > 1:
        raise UserError(
            f"{option.where}: #SBATCH {option.text}: there is one machine here, and a job cannot have {least}; ask for "
            "GPUs of one, or run it on a cluster"
        )
    return [], ""


def _nice(option: _Option, tasks: int) -> _Meaning:
    try:
        return [f"--priority={-float(option.value or 100):g}"], ""
    except ValueError:
        raise UserError(f"{option.where}: #SBATCH {option.text}: a number is expected") from None


def _test_only(option: _Option, tasks: int) -> _Meaning:
    raise UserError(f"{option.where}: #SBATCH {option.text}: each job that is submitted is queued; leave it out")


def _signal(option: _Option, tasks: int) -> _Meaning:
    return ["--signal", re.sub(r"^[BR]+:", "", option.value)], ""


_MEANT: dict[str, Callable[[_Option, int], _Meaning]] = {
    **dict(_declared()), "gpus": _gpus, "gpus-per-node": _gpus, "gpus-per-task": _gpus, "gres": _gres, "time": _time,
    "gpus-per-socket": _gpus, "test-only": _test_only, "nodes": _nodes, "nice": _nice, "signal": _signal,
    "comment": _same("--tag"),
}  # fmt: skip


_MOST = 2**22
_OURS, _SLURMS = "#GPUYARD", "#SBATCH"
_SEVERAL = tuple(one.attribute for one in FIELDS if one.option and one.kind.option is list)
"""Options that may be repeated, also in several lines."""


def read_script(path: str) -> tuple[str, Options, dict[str, str]]:
    """The script's text, the options of its lines, and variables for the job; ignored lines are reported."""
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
    asked = together(ours).over(together(found.lines))
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


def together(lines: Iterable[Line]) -> Options:
    """The options of all lines; a later line overrides an earlier one."""
    found = Options()
    for line in lines:
        asked = read_options(line.words, line.where)
        several: dict[str, Any] = {
            name: [*(getattr(found, name) or ()), *(getattr(asked, name) or ())] for name in _SEVERAL
        }
        found = asked.over(found).changed(**several)
    return found


def read_options(words: Sequence[str], where: str) -> Options:
    """Options from words that are not on the command line."""
    try:
        context = _reader().make_context("gpuyard submit", list(words))
        asked = Options(**{name: context.params[name] for name in Options.names()})
        with suppress(InThePast):  # another option may go before it
            asked.body()
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:  # by what it can do: some versions of typer bring their own click
        if not hasattr(error, "format_message"):
            raise
        raise UserError(f"{where}: {str(error.format_message()).rstrip('.')}") from None
    return asked


@cache
def _reader() -> Any:
    """A command that only parses the options."""

    @option_groups
    def read(options: Options) -> None:
        raise AssertionError("it is never run")

    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command("submit", cls=QuickCommand)(read)
    return typer.main.get_command(alone)
