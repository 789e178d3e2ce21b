"""Stand-ins for Slurm's `sbatch`, `scancel`, `squeue` and `scontrol` inside a job with Slurm's variables.

They know the options that scripts use most, and refuse all others with gpuyard's command for it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.cli.jobs.job_script import Line, options_of, split_line, together, translate
from gpuyard.cli.jobs.submit import Request
from gpuyard.cli.terminal import output
from gpuyard.cli.terminal.text_table import instant, now, visible
from gpuyard.client.client import Client
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.api.types import Job
    from gpuyard.cli.jobs.job_options import Options

_STATES = {
    "PENDING": "waiting", "PD": "waiting", "RUNNING": "running", "R": "running", "SUSPENDED": "held", "ALL": None,
}  # fmt: skip
_NAMES = {
    "queued": ("PD", "PENDING"), "held": ("PD", "PENDING"), "running": ("R", "RUNNING"),
    "succeeded": ("CD", "COMPLETED"), "failed": ("F", "FAILED"), "cancelled": ("CA", "CANCELLED"),
    "timeout": ("TO", "TIMEOUT"), "oom": ("OOM", "OUT_OF_MEMORY"), "interrupted": ("NF", "NODE_FAIL"),
}  # fmt: skip
"""Slurm's names of states, short and long."""
_USUAL = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_HEADS = {
    "i": "JOBID", "A": "JOBID", "F": "JOBID", "P": "PARTITION", "j": "NAME", "u": "USER", "t": "ST", "T": "STATE",
    "M": "TIME", "l": "TIME_LIMIT", "L": "TIME_LEFT", "S": "START_TIME", "V": "SUBMIT_TIME", "D": "NODES", "C": "CPUS",
    "N": "NODELIST", "R": "NODELIST(REASON)", "r": "REASON", "Q": "PRIORITY", "b": "TRES_PER_NODE", "Z": "WORK_DIR",
}  # fmt: skip
_SHOWN = """JobId={i} JobName={j}
UserId={u} Priority={Q}
JobState={T} Reason={r}
RunTime={M} TimeLimit={l}
SubmitTime={V} StartTime={S}
Partition={P} NodeList={N} NumNodes={D}
WorkDir={Z}
TresPerNode={b}"""
"""What `scontrol show job` prints."""
_NUMBER = re.compile(r"(?<=:)\d+(?![^:,?])")
_FIELD = re.compile(r"%(\.?)(\d*)([A-Za-z])")


def _client() -> Client:
    return Client(os.environ.get("GPUYARD_SLURM_SOCKET") or None, say=output.say)


def _id(text: str) -> str:
    """gpuyard's id: of a task, Slurm's is a number of its own."""
    own = text == os.environ.get("SLURM_JOB_ID")
    return os.environ.get("GPUYARD_JOB_ID", text) if own else text


def _read(
    words: Sequence[str], valued: Mapping[str, str], flags: Mapping[str, str], instead: str
) -> tuple[dict[str, str], list[str]]:
    """Options by their long names, and the other words; what is not known is refused."""
    found, others, rest = dict[str, str](), list[str](), list(words)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if not word.startswith("-"):
            others.append(word + equals + value)
        elif word in flags:
            found[flags[word]] = "yes"
        elif name := valued.get(word) or valued.get(word[:2] if word[1:2] != "-" else ""):
            short = "" if word in valued else word[2:]
            found[name] = value if equals else short or (rest.pop(0) if rest else "")
        else:
            raise UserError(f"there is no {word} here; {instead}")
    return found, others


def sbatch(words: Sequence[str]) -> None:
    options, command = split_line(words)
    line = Line("sbatch", options)
    given = {option.name: option.value for option in options_of(line)}
    wrapped, found = given.get("wrap", ""), translate([line])
    for warning in found.warnings:
        output.say(warning)
    asked = together(found.lines)
    after = asked.dependency and _NUMBER.sub(lambda number: _id(number[0]), asked.dependency)
    name = asked.name or ("wrap" if wrapped else None)
    asked = asked.changed(slurm_variables=True, name=name, dependency=after)
    if wrapped:
        wanted = Request(**vars(asked), command=["/bin/sh", "-c", wrapped]).describe(in_place=True)
    else:
        wanted = _script(asked, command)
    wanted["environment"] |= {"SLURM_SUBMIT_DIR": os.getcwd(), **found.variables}
    id = _client().submit_described(wanted)
    print(id if "parsable" in given else f"Submitted batch job {id}")


def _script(asked: Options, command: list[str]) -> dict[str, Any]:
    """The job of a script, or of what comes on the standard input."""
    if command:
        return Request(**vars(asked), command=command).describe()
    with tempfile.NamedTemporaryFile("wb", suffix=".sbatch") as file:
        file.write(sys.stdin.buffer.read())
        file.flush()
        wanted = Request(**vars(asked), command=[file.name]).describe()
    if "script" not in wanted:
        raise UserError("a script begins with #!, as in #!/bin/bash")
    return {**wanted, "command": ["sbatch"], "name": asked.name or wanted.get("name") or "sbatch"}


def scancel(words: Sequence[str]) -> None:
    valued = {
        "-u": "user", "--user": "user", "-n": "name", "--name": "name", "--jobname": "name", "-t": "state",
        "--state": "state", "-s": "signal", "--signal": "signal",
    }  # fmt: skip
    ignored = ("-b", "--batch", "-f", "--full", "-Q", "--quiet", "-v", "--verbose")
    flags = {"--me": "me", **dict.fromkeys(ignored, "ignored")}
    given, ids = _read(words, valued, flags, "gpuyard cancel ends jobs")
    signal = given.get("signal", "TERM").upper().removeprefix("SIG")
    if signal not in ("TERM", "15", "KILL", "9"):
        raise UserError(f"jobs are not sent {signal} from outside; submit them with --signal {signal}@60s")
    client, grace = _client(), 0.0 if signal in ("KILL", "9") else None
    if not ids and not given.keys() & {"me", "user", "name", "state"}:
        raise UserError("which jobs? write their ids, --me, or --name NAME")
    if not ids and (chosen := _chosen(client, given, "scancel")):  # one request, which may end this very job
        client.change_jobs("cancel", jobs=[job["id"] for job in chosen], user=chosen[0]["user"], grace=grace)
    for id in map(_id, ids):
        client.cancel(id, grace)


def _chosen(client: Client, given: Mapping[str, str], program: str) -> list[Job]:
    own = given.get("me") or (program == "scancel" and "user" not in given)
    user = client.job(os.environ["GPUYARD_JOB_ID"])["user"] if own else given.get("user")
    states = [state.strip().upper() for state in given.get("state", "ALL").split(",")]
    if unknown := [state for state in states if state not in _STATES]:
        raise UserError(f"{', '.join(unknown)}: states are PENDING and RUNNING here; gpuyard history lists ended jobs")
    wanted = {_STATES[state] for state in states}
    state = None if None in wanted else ",".join(sorted(filter(None, wanted)))
    return client.jobs(user=user, state=state, name=given.get("name"))


def squeue(words: Sequence[str]) -> None:
    valued = {
        "-u": "user", "--user": "user", "--users": "user", "-n": "name", "--name": "name", "-t": "state",
        "--states": "state", "--state": "state", "-j": "jobs", "--jobs": "jobs", "--job": "jobs", "-o": "format",
        "--format": "format", "-p": "ignored", "--partition": "ignored", "-S": "ignored", "--sort": "ignored",
    }  # fmt: skip
    flags = {"--me": "me", "-h": "bare", "--noheader": "bare", "-r": "ignored", "--array": "ignored", "-l": "ignored"}
    given, _ = _read(words, valued, flags, "gpuyard ps --json tells all of every job")
    client, layout = _client(), given.get("format", _USUAL)
    jobs = _chosen(client, given, "squeue")
    if wanted := {_id(id) for id in given.get("jobs", "").split(",") if id}:
        jobs = [job for job in jobs if job["id"] in wanted or job["array"] in wanted]
    if "bare" not in given:
        print(_line(layout, _HEADS))
    for job in jobs:
        print(_line(layout, _cells(job)))


def _cells(job: Job) -> dict[str, str]:
    short, long = _NAMES[job["state"]]
    begun, limit = job["started_at"], job["time_limit"]
    ran = (now() - instant(begun)).total_seconds() if begun and job["state"] == "running" else 0.0
    node = os.uname().nodename if job["state"] == "running" else ""
    return {
        "i": job["id"], "A": job["id"], "F": job["array"] or job["id"], "P": "gpuyard", "j": job["name"] or "",
        "u": job["user"], "t": short, "T": long, "M": _clock(ran), "l": _clock(limit), "S": (begun or "N/A")[:19],
        "L": _clock(limit and max(limit - ran, 0.0)), "V": job["submitted_at"][:19], "D": "1", "C": "1", "N": node,
        "R": node or f"({job['reason'] or 'Priority'})", "r": job["reason"] or "None", "Q": f"{job['priority']:g}",
        "b": f"gpu:{job['gpu_count']}", "Z": job["directory"],
    }  # fmt: skip


def _clock(seconds: float | None) -> str:
    """`1-02:03:04`, `2:03:04` or `3:04`."""
    if seconds is None:
        return "UNLIMITED"
    whole = int(seconds)
    days, hours = divmod(whole // 3600, 24)
    rest = f"{whole // 60 % 60:02d}:{whole % 60:02d}"
    if days:
        return f"{days}-{hours:02d}:{rest}"
    return f"{hours}:{rest}" if hours else rest.removeprefix("0")


def _line(layout: str, cells: Mapping[str, str]) -> str:
    def fill(match: re.Match[str]) -> str:
        right, width, letter = match.groups()
        if letter not in cells:
            raise UserError(f"%{letter} is not known here; write some of {' '.join(f'%{one}' for one in _HEADS)}")
        text = cells[letter][: int(width)] if width else cells[letter]
        return text.rjust(int(width or 0)) if right else text.ljust(int(width or 0))

    return visible(_FIELD.sub(fill, layout).rstrip())


def scontrol(words: Sequence[str]) -> None:
    actions: dict[str, Callable[[str], object]] = {
        "requeue": _client().requeue, "hold": _client().hold, "release": _client().release,
    }  # fmt: skip
    if words[:2] in (["show", "job"], ["show", "jobid"]) and len(words) == 3:
        cells = _cells(_client().job(_id(words[2])))
        shown = {letter: visible(cell) for letter, cell in cells.items()}  # a job's name may hold anything
        print(_SHOWN.replace("\n", "\n   ").format_map(shown))
        return
    if len(words) < 2 or words[0] not in actions:
        known = "requeue, hold, release, show job ID and show hostnames"
        raise UserError(f"{shlex.join(words)} is not available here: write {known}; gpuyard edit changes a job")
    for id in ",".join(words[1:]).split(","):
        actions[words[0]](_id(id))


_PROGRAMS = {"sbatch": sbatch, "scancel": scancel, "squeue": squeue, "scontrol": scontrol}


def main() -> None:
    program, *words = sys.argv[1:]
    try:
        _PROGRAMS[program](words)
    except GpuyardError as error:
        output.say(f"{program}: error: {error}")
        sys.exit(1)
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()


if __name__ == "__main__":
    main()
