"""Batch files (CSV, YAML, TOML, or parameters of a sweep) as job requests for the daemon."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.cli.jobs.job_options import Options
from gpuyard.cli.jobs.submit import Request
from gpuyard.errors import UserError, suggest
from gpuyard.spec.batch_files import (
    THIS_PYTHON,
    USUAL,
    Choice,
    Filling,
    Row,
    each,
    read_commands,
    read_parameters,
    turns,
    urgencies,
)

PROFILE = "--epochs=2"  # how rows of a file of commands are profiled, if no similar job is known
_DOCUMENTS = (".yaml", ".yml", ".toml")


@dataclass(frozen=True, slots=True)
class Batch:
    name: str
    key: str  # identifies the file and its contents
    jobs: list[dict[str, Any]]
    waves: bool


@dataclass(frozen=True, slots=True)
class BatchSettings:
    options: Options  # for every job that does not say otherwise; but `name` is the batch's
    num: int | None = None
    header: str = "auto"
    profile: bool = True
    remote: bool = False


def read_batch(path: str, settings: BatchSettings) -> Batch:
    if path.endswith(_DOCUMENTS):
        return _document(path, settings)
    rows = read_commands(path, settings.header)
    jobs = _commands(path, rows, settings)
    size = USUAL if settings.num is None else settings.num
    return Batch(_name(path, settings), _key(path), _in_order(jobs, [row.priority for row in rows], size), size > 0)


def read_sweep(path: str, command: Sequence[str], settings: BatchSettings) -> Batch:
    if not command:
        raise UserError("there is no command to fill; put it after --, as in: ... -- python train.py --lr={lr}")
    choices = read_parameters(path)
    filling, common = Filling(choices[0].values), settings.options.changed(name=None)

    def job(choice: Choice) -> dict[str, Any]:
        words = [filling.fill(word, choice.values) for word in command]
        filled = {name: _filled(getattr(common, name), filling, choice.values) for name in _FILLED}
        try:
            return _described(common.changed(**filled), words, settings, own_id=any("{id}" in word for word in words))
        except UserError as error:
            has_parameters = filled != {name: getattr(common, name) for name in _FILLED}
            raise UserError(f"{choice.where}: {error}") if has_parameters else error from error

    jobs = each(choices, job)
    filling.check(path, [*command, *(common.env or ())])
    size = settings.num or 0
    return Batch(_name(path, settings), _key(path, *command), _in_order(jobs, [0.0] * len(jobs), size), size > 0)


_FILLED = ("env", "tag", "output", "error", "gpu_memory", "simulate_use", "chdir")


def _filled(value: Any, filling: Filling, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return filling.fill(value, values)
    return [filling.fill(one, values) for one in value] if value else value


def _document(path: str, settings: BatchSettings) -> Batch:
    from gpuyard.cli.jobs.job_file import read_jobs

    common = Request(**vars(settings.options.changed(name=None)))
    jobs = read_jobs(path, common, elsewhere=settings.remote)
    if settings.num and any(job.get("dependency") for job in jobs):
        raise UserError(f"{path}: jobs that follow each other cannot be put into waves; leave out --num")
    for number, job in enumerate(jobs, 1):
        job["row"] = {"number": number, "priority": job.get("priority", 0.0)}
        if any("{id}" in word for word in job["command"]):
            job["own_id"] = True
    if not settings.num:
        return Batch(_name(path, settings), _key(path), jobs, False)
    later = [-job["row"]["priority"] for job in jobs]
    return Batch(_name(path, settings), _key(path), _in_order(jobs, later, settings.num), True)


def _commands(path: str, rows: Sequence[Row], settings: BatchSettings) -> list[dict[str, Any]]:
    common, urgent = settings.options.changed(name=None), urgencies([row.priority for row in rows])
    here = os.path.abspath(os.path.expanduser(common.chdir or os.curdir))
    alike = dict[tuple[str, str], dict[str, Any]]()

    def job(row: Row, priority: float) -> dict[str, Any]:
        directory = _directory(path, row, here, settings.remote)
        script = os.path.join(directory, row.filename)
        place = directory, script  # a script with a path of its own may run in several directories
        if place not in alike:
            own = common.changed(chdir=None).over(Options(chdir=directory, priority=priority))
            alike[place] = _of_script(script, own, settings)
        found = {**alike[place], "command": row.command(sys.executable)}
        if row.epochs < 2 and found.get("profile") == PROFILE:
            found["profile"] = "--epochs=1"  # not longer than the row itself
        if common.priority is None:
            found["priority"] = priority
        return {**found, "row": {"number": row.number, "epochs": row.epochs, "priority": row.priority}}

    return each(zip(rows, urgent, strict=True), lambda one: job(*one))


def _of_script(script: str, options: Options, settings: BatchSettings) -> dict[str, Any]:
    """What all rows of a script share: options first, then the #GPUYARD lines of the script, then defaults."""
    lines = Options() if settings.remote else _script_lines(script)
    found = options.over(lines).over(Options(name=os.path.basename(script), gpu_memory="auto"))
    if found.gpu_memory == "auto" and settings.profile:
        found = found.over(Options(profile=PROFILE))
    return _described(found, [script], settings, own_id=True)


def _described(options: Options, words: list[str], settings: BatchSettings, own_id: bool) -> dict[str, Any]:
    found = Request(**vars(options), command=words).describe(in_place=True, elsewhere=settings.remote, check=False)
    return {**found, "own_id": True} if own_id else found


def _directory(path: str, row: Row, here: str, remote: bool) -> str:
    """The working directory of a row; mistakes in the row are reported before anything is queued."""
    if remote:
        return _remote_directory(path, row)
    directory = os.path.normpath(os.path.join(here, os.path.expanduser(row.directory)))
    if not os.path.isdir(directory):
        raise UserError(f"{row.where(path, 'Directory')}: there is no directory {directory}; write one that is there")
    if not os.path.isfile(os.path.join(directory, row.filename)):
        near = suggest(row.filename, [name for name in os.listdir(directory) if name != row.filename])
        raise UserError(f"{row.where(path, 'Filename')}: there is no file {row.filename} in {directory}{near}")
    if row.executable != THIS_PYTHON and not _is_program(directory, row.executable):
        raise UserError(
            f"{row.where(path, 'Executable')}: there is no program {row.executable}; write one that is on the PATH, "
            "or -1 for the Python that runs gpuyard"
        )
    return directory


def _remote_directory(path: str, row: Row) -> str:
    if row.executable == THIS_PYTHON:
        raise UserError(f"{row.where(path, 'Executable')}: -1 is a Python of this machine; name one of that machine")
    if not row.directory.startswith(("/", "~")):
        raise UserError(f"{row.where(path, 'Directory')}: {row.directory} is no path from that machine's root")
    return row.directory


def _is_program(directory: str, word: str) -> bool:
    place = os.path.join(directory, word)
    return shutil.which(word) is not None or ("/" in word and os.path.isfile(place) and os.access(place, os.X_OK))


def _script_lines(path: str) -> Options:
    from gpuyard.cli.jobs.job_script import read_script

    with open(path, "rb") as file:
        head = file.read(2**16)
    if b"#GPUYARD" not in head or b"\0" in head:
        return Options()
    _, options, _ = read_script(path)
    if options.array:
        raise UserError(f"{path} asks for --array, but a row is one job; leave it out, and write a row for each")
    try:  # on their own, so that a mistake is blamed on the script
        Request(**vars(options.changed(chdir=None)), command=[path]).describe(in_place=True, check=False)
    except UserError as error:
        raise UserError(f"{path}, in its lines for gpuyard: {error}") from error
    return options


def _in_order(jobs: list[dict[str, Any]], priorities: Sequence[float], size: int) -> list[dict[str, Any]]:
    found = []
    for turn in turns([-priority for priority in priorities], size):
        job = jobs[turn.place]
        row = {"number": turn.place + 1, **job.get("row", {}), "wave": turn.wave}
        found.append({**job, "row": row})
    return found


def _name(path: str, settings: BatchSettings) -> str:
    return settings.options.name or os.path.basename(path)


def _key(path: str, *more: str) -> str:
    found = hashlib.sha256(os.fsencode(os.path.realpath(path)) + b"\0")
    with open(path, "rb") as file:
        found.update(file.read())
    for word in more:
        found.update(b"\0" + os.fsencode(word))
    return found.hexdigest()[:32]
