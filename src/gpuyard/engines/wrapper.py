"""The few lines of shell between the daemon and a job, and the two files through which they are told apart.

The wrapper outlives the daemon: it waits for the job and writes down how it ended. It is `/bin/sh`, which starts in a
millisecond and stays small, and uses nothing but builtins. Its first act is to *claim* the attempt: it creates the file
`pid`, which only one can do. Who finds the file there does nothing at all. So a second launch is harmless, and whoever
creates the file first, the daemon included, has made sure that no wrapper that comes later will begin.

`pid` holds the wrapper's own line of /proc/PID/stat and then, as the engine gave them: the life of the machine, the
cgroup (or nothing) and the limit of the output. `exit` holds the exit code and, if the command could not be started,
its name. A file counts when it is complete, which its last newline tells. When they were written is when the attempt
began and ended.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.engines import processes
from gpuyard.engines.base import EngineError, LaunchRefused, Placement, Task
from gpuyard.reporting import VARIABLE

SHELL = "/bin/sh"

# - Traps, not ignored signals: the job would inherit those. They keep the wrapper alive when its group is signalled;
#   the numbers are all that end a process but KILL and the faults.
# - Names begin with gpuyard_ and are unset first, so no variable of the job is overwritten and none is exported to it.
# - `exec` in a subshell runs programs only, never a builtin of the shell that happens to have the command's name.
# - What the shell itself would say (that the job was killed, say) is not the job's output, so it goes nowhere.
# - The end is written whatever happens; if the disk is full, the wrapper's own exit code still tells it to its parent.
SCRIPT = r"""
set -C
trap : 1 2 3 6 10 12 13 14 15 16 24 25 26 27 29 30 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 \
50 51 52 53 54 55 56 57 58 59 60 61 62 63 64
unset gpuyard_dir gpuyard_cgroup gpuyard_name gpuyard_line
gpuyard_dir=$1 gpuyard_cgroup=$3 gpuyard_name=$4
read -r gpuyard_line </proc/$$/stat
{ printf '%s\n' "$gpuyard_line" "$2" >"$gpuyard_dir/pid"; } 2>/dev/null || exit 125
shift 4
exec 3>&2 2>/dev/null
(
exec 2>&3 3>&-
if [ -n "$gpuyard_cgroup" ]; then echo 0 >|"$gpuyard_cgroup/cgroup.procs" || exit 125; fi
exec "$@"
)
gpuyard_line=$?
case $gpuyard_line in
126|127)
case $gpuyard_name in
*/*) [ -f "$gpuyard_name" ] && [ -x "$gpuyard_name" ] ;;
*) command -v "$gpuyard_name" >/dev/null 2>&1 ;;
esac || gpuyard_line="$gpuyard_line $gpuyard_name" ;;
esac
{ printf '%s\n' "$gpuyard_line" >"$gpuyard_dir/exit"; } 2>/dev/null
exit "${gpuyard_line%% *}"
"""

_ORDINARY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEERING = re.compile(
    r"LD_.*|BASH.*|ENV|IFS|LINENO|OPTIND|PPID|PS4|SHELLOPTS|POSIXLY_CORRECT|GLIBC_TUNABLES|gpuyard_.*"
)
_EXIT = re.compile(rb"(\d+)(?: (.+))?\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a wrapper wrote down when it began."""

    at: float
    wrapper: processes.Process
    life: str
    cgroup: str
    limit: int


@dataclass(frozen=True, slots=True)
class Exit:
    """What a wrapper wrote down at the end."""

    at: float
    code: int
    missing: str
    """The command, if it could not be started."""


FENCED = "fenced"
INCOMPLETE = "incomplete"


def command_line(task: Task, folder: Path, life: str, cgroup: str) -> list[str]:
    """What to execute for a task: the wrapper, its four arguments, and the job's command."""
    name = task.command[0]
    carried = [f"{key}={value}" for key, value in task.environment.items() if not _passes(key)]
    command = list(task.command)
    if carried:  # `nice` because `env` would take a command with a = in its name for one more variable
        command = ["/usr/bin/env", *carried, *(["/usr/bin/nice", "-n", "0"] if "=" in name else []), *command]
    return [
        SHELL,
        "-c",
        SCRIPT,
        "gpuyard",
        str(folder),
        f"{life}\n{cgroup}\n{task.output_limit}",
        cgroup,
        name,
        *command,
    ]


def environment(
    task: Task, attempt: int, placement: Placement, devices: Sequence[str], folder: Path, work: Path
) -> dict[str, str]:
    """The environment for the wrapper: the submitter's, and what tells the job its GPUs, its id and where it is.

    What a shell would drop or obey itself (a library to preload, a function of bash) goes round it, by `env`.
    """
    passed = {key: value for key, value in task.environment.items() if _passes(key)}
    return passed | {
        "PWD": task.directory,
        "CUDA_VISIBLE_DEVICES": ",".join(devices[gpu] for gpu in placement.gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUYARD_JOB_ID": task.job,
        "GPUYARD_ATTEMPT": str(attempt),
        "GPUYARD_GPUS": ",".join(map(str, placement.gpus)),
        VARIABLE: str(work / "progress"),
        processes.MARK: str(folder),
    }


def _passes(name: str) -> bool:
    return bool(_ORDINARY.fullmatch(name)) and not _STEERING.fullmatch(name)


def check(task: Task) -> None:
    """Refuse what can never be launched."""
    if not task.command or not task.command[0]:
        raise LaunchRefused("the command is empty")
    if task.command[0].startswith("-"):
        raise LaunchRefused(f"'{task.command[0]}' is an option, not a command")
    try:
        encoded = [os.fsencode(text) for text in (*task.command, task.directory, *task.environment.values())]
        names = [os.fsencode(name) for name in task.environment]
    except UnicodeEncodeError as error:
        raise LaunchRefused(f"the command or its environment cannot be written in {error.encoding}") from error
    if any(b"\0" in text for text in encoded):
        raise LaunchRefused("the command or its environment has a NUL byte in it, which no program can be given")
    for name in names:
        if not name or b"=" in name or b"\0" in name:
            raise LaunchRefused(f"{os.fsdecode(name)!r} cannot be the name of an environment variable")
    _check_directory(task.directory)


def _check_directory(directory: str) -> None:
    if not os.path.isabs(directory):
        raise LaunchRefused(f"the directory '{directory}' is not an absolute path")
    if not os.path.exists(directory):
        raise LaunchRefused(f"the directory {directory} does not exist")
    if not os.path.isdir(directory):
        raise LaunchRefused(f"{directory} is not a directory")
    if not os.access(directory, os.X_OK):
        raise LaunchRefused(f"the directory {directory} cannot be entered: permission denied")


def fence(folder: Path) -> bool:
    """Claim an attempt so that nobody else can; whether we were the first."""
    try:
        with open(folder / "pid", "x", encoding="ascii") as file:
            file.write(f"{FENCED}\n")
    except FileExistsError:
        return False
    except OSError as error:
        raise EngineError(f"cannot write to {folder}: {error.strerror}") from error
    return True


def read_claim(folder: Path) -> Claim | str | None:
    """The claim; `FENCED` if nobody may begin, `INCOMPLETE` if its writer has not come to its end, None if none."""
    found = _read(folder / "pid")
    if found is None:
        return None
    at, content = found
    if content == f"{FENCED}\n".encode():
        return FENCED
    lines = content.split(b"\n")
    if len(lines) != 5 or lines[4] or b"\0" in content:  # a power cut may leave zeros
        return INCOMPLETE
    try:
        return Claim(at, processes.parse_stat(lines[0]), lines[1].decode(), os.fsdecode(lines[2]), int(lines[3]))
    except ValueError:  # a job may write to any file of its user's
        return INCOMPLETE


def claimed_before_boot(folder: Path) -> bool:
    """Whether the claim is older than this life of the machine: what it said may be lost, but it was made."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return os.stat(folder / "pid").st_mtime < booted


def await_claim(folder: Path, seconds: float) -> Claim | str | None:
    """The claim; if it is incomplete, wait a little for its writer, who is between two calls of the system."""
    deadline = time.monotonic() + seconds
    while (claim := read_claim(folder)) == INCOMPLETE and time.monotonic() < deadline:
        time.sleep(0.002)
    return claim


def read_exit(folder: Path) -> Exit | None:
    """How it ended; None if that is not written down, or not completely."""
    found = _read(folder / "exit")
    line = _EXIT.fullmatch(found[1]) if found else None
    return Exit(found[0], int(line[1]), os.fsdecode(line[2] or b"")) if found and line else None


def _read(path: Path) -> tuple[float, bytes] | None:
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_mtime, file.read()
    except (FileNotFoundError, IsADirectoryError, PermissionError):  # a job may put anything in its way
        return None
