"""The few lines of shell between the daemon and a job, and the two files through which they are told apart.

The wrapper outlives the daemon: it waits for the job and writes down how it ended. It is `/bin/sh`, which starts in a
millisecond and stays small, and uses nothing but builtins. Its first act is to *claim* the attempt: it creates the file
`pid`, which only one process can do. A wrapper that finds the file does nothing. So a second launch is harmless, and
the first to create the file, the daemon included, makes sure that no later wrapper will begin.

`pid` holds the wrapper's own line of /proc/PID/stat and then, as the engine gave them: the life of the machine, the
cgroup (or nothing), the limit of the output and the job's user. `exit`, which is empty until then, holds the exit code
and, if the command could not be started, its name. A file counts when it is complete, which its last newline tells.
When they were written is when the attempt began and ended. `asked` exists from the time the attempt was asked to end.
For a job of another user the wrapper stays root's; `dropping` is what comes between.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard.client.progress import VARIABLE
from gpuyard.engines.base import EngineError, LaunchRefused, Placement, Task
from gpuyard.engines.local import output, privileges, processes
from gpuyard.engines.local.accounts import Account
from gpuyard.engines.local.folders import CHECKPOINT, PROGRESS
from gpuyard.engines.local.privileges import prlimit
from gpuyard.errors import is_passing

SHELL = "/bin/sh"

# - Traps, not ignored signals: the job would inherit those. They keep the wrapper alive when its group is signalled;
#   the numbers are all that end a process but KILL and the faults.
# - Names begin with gpuyard_ and are unset first, so no variable of the job is overwritten and none is exported to it.
# - `exec` in a subshell runs programs only, never a builtin of the shell that happens to have the command's name.
# - What the shell itself would say (that the job was killed, say) is not the job's output, so it goes nowhere.
# - What could not be started is looked for once more, to tell: by this shell, or where a user was meant, as that user.
# - The end is written whatever happens, on a full disk too: the file is there, with space of its own (`reserve_exit`).
#   So it is appended to: to truncate it would give the space away.
SCRIPT = r"""
set -C
trap : 1 2 3 6 10 12 13 14 15 16 24 25 26 27 29 30 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 \
50 51 52 53 54 55 56 57 58 59 60 61 62 63 64
unset gpuyard_dir gpuyard_cgroup gpuyard_name gpuyard_line gpuyard_where
gpuyard_dir=$1 gpuyard_cgroup=$3 gpuyard_name=$4 gpuyard_where=$5
[ -z "$6" ] || ulimit -S -n "$6" 2>/dev/null
read -r gpuyard_line </proc/$$/stat
{ printf '%s\n' "$gpuyard_line" "$2" >"$gpuyard_dir/pid"; } 2>/dev/null || exit 125
shift 6
exec 3>&2 2>/dev/null
(
exec 2>&3 3>&-
if [ -n "$gpuyard_cgroup" ]; then echo 0 >|"$gpuyard_cgroup/cgroup.procs" || exit 125; fi
exec "$@"
)
gpuyard_line=$?
case $gpuyard_line in
126|127)
if [ -n "$gpuyard_where" ]; then
gpuyard_look=1 "$@" >/dev/null 3>&-
case $? in
3) gpuyard_line="$gpuyard_line $gpuyard_name" ;;
4) gpuyard_line="125 $gpuyard_where" ;;
esac
else
case $gpuyard_name in
*/*) [ -f "$gpuyard_name" ] && [ -x "$gpuyard_name" ] ;;
*) command -v "$gpuyard_name" >/dev/null 2>&1 ;;
esac || gpuyard_line="$gpuyard_line $gpuyard_name"
fi ;;
esac
[ -p "$gpuyard_dir/exit" ] || { printf '%s\n' "$gpuyard_line" >>"$gpuyard_dir/exit"; } 2>/dev/null
exit "${gpuyard_line%% *}"
"""

# What stands before the command of a job whose output is to go elsewhere. It runs as the job's user, so nobody's rights
# are used but theirs, and it replaces itself by the command.
REDIRECT = r"""
gpuyard_fail() { echo "gpuyard: $1, where its output was to go, cannot be written" >&2; exit 73; }
for gpuyard_file in "$1" "$2"; do
case $gpuyard_file in */*) [ -d "${gpuyard_file%/*}/" ] || mkdir -p -- "${gpuyard_file%/*}/" 2>/dev/null ;; esac
done
if [ -n "$1" ]; then
{ command exec >>"$1"; } 2>/dev/null || gpuyard_fail "$1"
[ "$3" = append ] || : >|"$1"
fi
if [ "$2" = "&1" ]; then exec 2>&1
elif [ -n "$2" ]; then
{ command exec 4>>"$2"; } 2>/dev/null || gpuyard_fail "$2"
[ "$3" = append ] || : >|"$2"
exec 2>&4 4>&-
fi
shift 3
exec "$@"
"""

UNWRITABLE = 73  # how `REDIRECT` ends where it cannot do its work; a job may end so as well
_REFUSED = re.compile(rb"gpuyard: (.+), where its output was to go, cannot be written\n", re.DOTALL)
_ORDINARY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEERING = re.compile(
    r"LD_.*|BASH.*|ENV|IFS|LINENO|OPTIND|PPID|PS4|SHELLOPTS|POSIXLY_CORRECT|GLIBC_TUNABLES|gpuyard_.*"
    r"|E?UID|GROUPS|S?RANDOM|SECONDS|EPOCH.*|DIRSTACK|FUNCNAME|HISTCMD"
)
_LARGEST = 2**16  # bytes of a claim or an exit code
_BLOCK = 4096  # bytes, more than an exit code and a command's name need
_EXIT = re.compile(rb"(\d+)(?: (.+))?\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Claim:
    at: float
    wrapper: processes.Process
    life: str
    cgroup: str
    limit: int
    uid: int | None = None  # the user whose processes may carry its mark; None: any user


@dataclass(frozen=True, slots=True)
class Exit:
    at: float
    code: int
    missing: str  # the command, if it could not be started


FENCED = "fenced"
INCOMPLETE = "incomplete"


def command_line(
    task: Task, folder: Path, life: str, cgroup: str, account: Account | None = None, uid: int | None = None
) -> list[str]:
    """The command line for a task: the wrapper, its six arguments, and the job's command."""
    name = task.command[0]
    if account:
        command = privileges.command(account, task.limits, task.directory, task.umask, task.command)
    else:
        command = [*prlimit(task.limits), *_redirected(task), *_with_carried(task)]
    return [
        SHELL,
        "-c",
        SCRIPT,
        "gpuyard",
        str(folder),
        f"{life}\n{cgroup}\n{task.output_limit}\n{'' if uid is None else uid}",
        cgroup,
        name,
        task.directory if account else "",
        privileges.open_files(task.limits),
        *command,
    ]


def _redirected(task: Task) -> list[str]:
    """What stands before the command and what goes by `env`: output files of its own, and who waits for it."""
    files = [SHELL, "-c", REDIRECT, "gpuyard", *redirections(task)] if task.output or task.error else []
    return [*files, *task.attach]


def _with_carried(task: Task) -> list[str]:
    carried = [f"{key}={value}" for key, value in _given(task).items() if not passes(key)]
    if not carried:
        return list(task.command)
    # `nice` because `env` would take a command with a = in its name for one more variable
    nice = ["/usr/bin/nice", "-n", "0"] if "=" in task.command[0] else []
    return ["/usr/bin/env", *carried, *nice, *task.command]


def redirections(task: Task) -> list[str]:
    """The arguments of `REDIRECT`: where output and errors go, and how these files are opened."""
    error = "&1" if task.output and task.error in ("", task.output) else task.error
    return [task.output, error, "append" if task.append else "truncate"]


def _given(task: Task) -> dict[str, str]:
    return {**task.environment, **task.variables}


def environment(
    task: Task, variables: Mapping[str, str], folder: Path, account: Account | None = None
) -> dict[str, str]:
    """The environment for the wrapper: the submitter's and that of `job_variables`.

    What a shell would drop or obey itself (a library to preload, a function of bash) goes round it, by `env`. That of
    another user goes round everything that is root's.
    """
    mark = {processes.MARK: str(folder)}
    if account:
        given = {key: value for key, value in _given(task).items() if key != processes.MARK}
        every = given | dict(account.variables) | dict(variables)
        return mark | privileges.encode(every, passes) | privileges.prefix(_redirected(task))
    return {key: value for key, value in _given(task).items() if passes(key)} | dict(variables) | mark


def job_variables(task: Task, attempt: int, placement: Placement, devices: Sequence[str], work: Path) -> dict[str, str]:
    return {
        "PWD": task.directory,
        "CUDA_VISIBLE_DEVICES": ",".join(devices[gpu] for gpu in placement.gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUYARD_JOB_ID": task.job,
        "GPUYARD_ATTEMPT": str(attempt),
        "GPUYARD_RESTART_COUNT": str(attempt - 1),
        "GPUYARD_GPUS": ",".join(map(str, placement.gpus)),
        "GPUYARD_CHECKPOINT_DIR": str(work / CHECKPOINT),
        VARIABLE: str(work / PROGRESS),
    }


def passes(name: str) -> bool:
    return bool(_ORDINARY.fullmatch(name)) and not _STEERING.fullmatch(name)


def check(task: Task) -> None:
    """Refuse what can never be launched."""
    if not task.command or not task.command[0]:
        raise LaunchRefused("the command is empty")
    if task.command[0].startswith("-"):
        raise LaunchRefused(f"'{task.command[0]}' is an option, not a command")
    try:
        encoded = [
            os.fsencode(text)
            for text in (*task.command, task.directory, task.output, task.error, *task.environment.values())
        ]
        names = [os.fsencode(name) for name in task.environment]
    except UnicodeEncodeError as error:
        raise LaunchRefused(f"the command or its environment cannot be written in {error.encoding}") from error
    if any(b"\0" in text for text in encoded):
        raise LaunchRefused("the command or its environment has a NUL byte in it, which no program can be given")
    for name in names:
        if not name or b"=" in name or b"\0" in name:
            raise LaunchRefused(f"{os.fsdecode(name)!r} cannot be the name of an environment variable")
    if not os.path.isabs(task.directory):
        raise LaunchRefused(f"the directory '{task.directory}' is not an absolute path")


def check_directory(directory: str) -> None:
    """Refuse a directory that we cannot enter. One of another user is for that user to try, not for root."""
    if not os.path.exists(directory):
        raise LaunchRefused(f"the directory {directory} does not exist")
    if not os.path.isdir(directory):
        raise LaunchRefused(f"{directory} is not a directory")
    if not os.access(directory, os.X_OK):
        raise LaunchRefused(f"the directory {directory} cannot be entered: permission denied")


def fence(folder: Path) -> bool:
    """Claim an attempt so that no wrapper can; returns whether we were the first."""
    try:
        with open(folder / "pid", "x", encoding="ascii") as file:
            file.write(f"{FENCED}\n")
    except FileExistsError:
        return False
    except OSError as error:
        raise EngineError(f"cannot write to {folder}: {error.strerror}") from error
    return True


def reserve_exit(folder: Path) -> None:
    """Make the file that the exit code goes to, and take a block of the disk for it, though it stays empty."""
    try:
        output.reserve(folder / "exit", _BLOCK)
    except OSError as error:
        raise EngineError(f"cannot reserve space in {folder}: {error.strerror}") from error


def read_claim(folder: Path) -> Claim | str | None:
    """The claim; `FENCED` if no wrapper may begin, `INCOMPLETE` if it is partly written, None if there is none."""
    found = _read(folder / "pid")
    if found is None:
        return None
    at, content = found
    if content == f"{FENCED}\n".encode():
        return FENCED
    lines = content.split(b"\n")
    if len(lines) not in (5, 6) or lines[-1] or b"\0" in content:  # a power cut may leave zeros
        return INCOMPLETE
    try:
        uid = int(lines[4]) if lines[4] else None  # former versions left it out
        return Claim(at, processes.parse_stat(lines[0]), lines[1].decode(), os.fsdecode(lines[2]), int(lines[3]), uid)
    except ValueError:  # a job may write to any file of its user's
        return INCOMPLETE


def claimed_before_boot(folder: Path) -> bool:
    """Whether the claim is older than this boot: its content may be lost, but it was made."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return os.stat(folder / "pid").st_mtime < booted


def await_claim(folder: Path, seconds: float) -> Claim | str | None:
    """The claim; if it is incomplete, wait a little for its writer, who is between two system calls."""
    deadline = time.monotonic() + seconds
    while (claim := read_claim(folder)) == INCOMPLETE and time.monotonic() < deadline:
        time.sleep(0.002)
    return claim


def read_exit(folder: Path) -> Exit | None:
    """How it ended; None if that is not written, or not completely."""
    found = _read(folder / "exit")
    line = _EXIT.fullmatch(found[1]) if found else None
    return Exit(found[0], int(line[1]), os.fsdecode(line[2] or b"")) if found and line else None


def read_unwritable(folder: Path) -> str:
    """The file that `REDIRECT` could not write to; empty if there is none."""
    try:
        fd = os.open(folder / "output.log", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb", buffering=0) as file:
        said = _REFUSED.fullmatch(file.read(2**14) or b"")
    return os.fsdecode(said[1]) if said else ""


def note_asked(folder: Path) -> float:
    """Leave a mark that an attempt is asked to end; returns when that was, by the file system's clock.

    Only what ended after the mark was left has perhaps ended because it was asked to.
    """
    with suppress(OSError):  # the disk is full, say: we know it ourselves, if only in this life
        os.close(os.open(folder / "asked", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    at = read_asked(folder)
    return time.time() if at is None else at


def read_asked(folder: Path) -> float | None:
    """When an attempt was first asked to end; None if it was not."""
    try:
        return os.lstat(folder / "asked").st_mtime
    except OSError:
        return None


def _read(path: Path) -> tuple[float, bytes] | None:
    try:
        # a job may put anything in its way: a pipe that would keep us waiting, or a file of gigabytes
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
            return os.fstat(file.fileno()).st_mtime, file.read(_LARGEST) or b""
    except OSError as error:
        if is_passing(error):
            raise EngineError(f"cannot read {path}: {error.strerror}") from error
        return None
