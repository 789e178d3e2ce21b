"""From root to a job's user:

the commands that change the account, and the process limits (ulimit) of the submitter.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from gpuyard.engines.local.accounts import NOBODY, Account
from gpuyard.engines.local.processes import parse_user, read_proc
from gpuyard.errors import UserError, memory_limit

_NAMES = {
    b"Max cpu time": "cpu", b"Max file size": "fsize", b"Max data size": "data", b"Max stack size": "stack",
    b"Max core file size": "core", b"Max resident set": "rss", b"Max processes": "nproc", b"Max open files": "nofile",
    b"Max locked memory": "memlock", b"Max address space": "as", b"Max file locks": "locks",
    b"Max pending signals": "sigpending", b"Max msgqueue size": "msgqueue", b"Max nice priority": "nice",
    b"Max realtime priority": "rtprio", b"Max realtime timeout": "rttime",
}  # fmt: skip
_WIDTH = 26  # of the names' column
_SYS_RESOURCE = 24  # the capability to raise a hard limit
_FEWEST_FILES, _MANY_FILES = 64, 2**20
_LEAST_MEMORY = 384 * 2**20
_ARENA_MAX = -8  # glibc's number for the most heaps of a process
PROGRAMS = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for that run as root: never where a user's PATH says."""


def limits_of(pid: int, uid: int) -> tuple[str, ...] | None:
    """The limits of a user's process, where they differ from our own; None if that process is gone.

    The directory is held open, so all reads are of one process, even if its PID is reused.
    """
    try:
        folder = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status, text = _read_at(folder, "status"), _read_at(folder, "limits")
    finally:
        os.close(folder)
    if status is None or text is None or parse_user(status) != uid:
        return None
    if text == _own():
        return ()
    theirs, ours = _parse(text), _parse(_own())
    return tuple(f"{name}={soft}:{hard}" for name, (soft, hard) in theirs.items() if ours.get(name) != (soft, hard))


def raise_limits() -> None:
    """Open as many files as we may; jobs keep our former limit. Refuses to run with next to nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if most < _FEWEST_FILES:
        raise UserError(f"only {most} files may be open here (ulimit -n); allow {_FEWEST_FILES} at least, best 4096")
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    if memory != resource.RLIM_INFINITY and memory < _LEAST_MEMORY:
        raise UserError(f"{memory_limit()}, but {_LEAST_MEMORY >> 20} MiB at least")
    if memory != resource.RLIM_INFINITY:  # each thread's heap would take 64 MiB of that, and leave no room for threads
        getattr(_libc, "mallopt", lambda *_: 0)(_ARENA_MAX, 1)  # other libraries than glibc have none
    _own()  # kept as it is now: it is what jobs get
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_files(limits: Iterable[str]) -> str:
    """The number of files that a job with these limits may open, where it would inherit another; else empty."""
    former = _parse(_own()).get("nofile", ("", ""))[0]
    given = any(limit.startswith("nofile=") for limit in limits)
    return "" if given or former == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) else former


def prlimit(limits: Iterable[str]) -> list[str]:
    """The words that put a program under limits; none if there is nothing to change, or no way to."""
    program = shutil.which("prlimit", path=PROGRAMS)
    wanted = list(limits)
    if not wanted or program is None:
        return []
    if not _may_raise():
        wanted = _within(wanted, _parse(_own()))
    return [program, *(f"--{limit}" for limit in wanted), "--"]


def _within(limits: list[str], own: dict[str, tuple[str, str]]) -> list[str]:
    """The limits that a process with `own` limits may set."""
    found = []
    for limit in limits:
        name, _, values = limit.partition("=")
        top = own.get(name, ("", "unlimited"))[1]
        found.append(f"{name}={':'.join(min(value, top, key=_number) for value in values.split(':'))}")
    return found


def _number(value: str) -> float:
    return math.inf if value == "unlimited" else int(value)


def _parse(text: bytes) -> dict[str, tuple[str, str]]:
    found = {}
    for line in text.splitlines():
        if name := _NAMES.get(line[:_WIDTH].strip()):
            soft, hard = line[_WIDTH:].split()[:2]
            found[name] = soft.decode(), hard.decode()
    return found


@cache
def _own() -> bytes:
    return read_proc(os.getpid(), "limits") or b""


@cache
def _may_raise() -> bool:
    status = read_proc(os.getpid(), "status") or b""
    return bool(int(status.partition(b"\nCapEff:")[2].split(None, 1)[0], 16) >> _SYS_RESOURCE & 1)


def _read_at(folder: int, name: str) -> bytes | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.read(file, 65536)
    except OSError:  # it ended between open and read
        return None
    finally:
        os.close(file)


logger = logging.getLogger(__name__)

# - Errors of this shell are not the job's output; that a command cannot be executed is, as it is without a user.
# - With `gpuyard_look` it only says whether the directory (4) and the command (3) could be found, for the wrapper.
SCRIPT = r"""
exec 3>&2 2>/dev/null
cd -- "$1" || { [ -n "$gpuyard_look" ] && exit 4; exit 126; }
unset OLDPWD
umask "$2"
gpuyard_name=$3
shift 3
gpuyard_n=0
while eval "[ -n \"\${gpuyard_o$gpuyard_n}\" ]"; do
eval "set -- \"\$gpuyard_o$gpuyard_n\" \"\$@\"; unset gpuyard_o$gpuyard_n"
gpuyard_n=$((gpuyard_n + 1))
done
[ "$gpuyard_n" -eq 0 ] || set -- /usr/bin/env "$@"
while [ -n "$gpuyard_prefix" ]; do
gpuyard_prefix=$((gpuyard_prefix - 1))
eval "set -- \"\$gpuyard_p$gpuyard_prefix\" \"\$@\"; unset gpuyard_p$gpuyard_prefix"
[ "$gpuyard_prefix" -gt 0 ] || unset gpuyard_prefix
done
gpuyard_n=0
while eval "[ -n \"\${gpuyard_e$gpuyard_n}\" ]"; do
eval "export \"\$gpuyard_e$gpuyard_n\"; unset gpuyard_e$gpuyard_n"
gpuyard_n=$((gpuyard_n + 1))
done
if [ -n "$gpuyard_look" ]; then
case $gpuyard_name in
*/*) [ -f "$gpuyard_name" ] && [ -x "$gpuyard_name" ] ;;
*) command -v "$gpuyard_name" >/dev/null ;;
esac || exit 3
exit 0
fi
exec "$@" 2>&3 3>&-
"""

_JOIN_SESSION_KEYRING = 1
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_libc = ctypes.CDLL(None, use_errno=True)


def command(account: Account, limits: Sequence[str], directory: str, umask: int, words: Sequence[str]) -> list[str]:
    """The command line that runs a command as a user: limits, then the user, then the directory."""
    stub = ["/bin/sh", "-c", SCRIPT, "gpuyard", directory, f"{umask:o}", words[0]]
    if "=" in words[0]:  # `env` would take it for one more variable
        stub += ["/usr/bin/nice", "-n", "0"]
    return [*prlimit(limits), *_setpriv(account), *stub, *words]


def encode(variables: Mapping[str, str], passes: Callable[[str], bool]) -> dict[str, str]:
    """Variables as mere values, under names without a meaning."""
    ordinary = [f"{name}={value}" for name, value in variables.items() if passes(name)]
    odd = [f"{name}={value}" for name, value in variables.items() if not passes(name)]
    found = {f"gpuyard_e{n}": text for n, text in enumerate(ordinary)}
    return found | {f"gpuyard_o{n}": text for n, text in enumerate(odd)}


def prefix(words: Sequence[str]) -> dict[str, str]:
    """Words for before the command and what goes by `env`: no shell may come between those two."""
    numbered = {f"gpuyard_p{n}": word for n, word in enumerate(words)}
    return {**numbered, "gpuyard_prefix": str(len(words))} if words else {}


def leave_keyring() -> None:
    """Give this thread, and so the next job, no keys of the daemon's user, nor of another job."""
    number = _KEYCTL.get(platform.machine())
    if number is not None and _libc.syscall(number, _JOIN_SESSION_KEYRING, None) < 0:
        logger.debug("no new keyring: %s", os.strerror(ctypes.get_errno()))  # the kernel has none to give


def check_tools() -> None:
    problem = _problem()
    if problem:
        raise UserError(
            f"a daemon of root starts jobs as their users, which does not work here: {problem}; "
            "install util-linux, or set single_user = true to serve root alone"
        )


def _problem() -> str:
    for program in ("setpriv", "prlimit"):
        if shutil.which(program, path=PROGRAMS) is None:
            return f"there is no {program}"
    trial = [*prlimit(["core=0:0"]), *_setpriv(Account(NOBODY, NOBODY, (NOBODY,))), "/bin/sh", "-c", "exit 0"]
    tried = subprocess.run(trial, env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = tried.stderr.decode(errors="replace").strip()
    return said or f"setpriv ended with code {tried.returncode}" if tried.returncode else ""


def _setpriv(account: Account) -> list[str]:
    groups = ",".join(map(str, account.groups))
    return [
        shutil.which("setpriv", path=PROGRAMS) or "setpriv",
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        f"--groups={groups}" if groups else "--clear-groups",
        "--inh-caps=-all",
        "--",
    ]
