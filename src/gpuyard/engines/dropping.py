"""From root to a user: the words between a root daemon's wrapper and a job of somebody else.

Whatever a user can choose must not steer what runs as root. So the wrapper, `prlimit` and `setpriv` get an environment
of ours in which the user's variables are mere values (`gpuyard_e0` is `NAME=VALUE`), which no program looks at and
nobody else can read, as arguments could be. Only when `setpriv` has become the user, a shell enters the directory, sets
the umask and makes those values what they are, and the job takes its place. So PATH, the directory and the libraries
count as they do for the user, on file systems that trust no root as well.

What a shell cannot export, or would obey itself, goes by `env`, whose arguments others could see for a moment: a
variable without a proper name, a function of bash, a library to preload.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from gpuyard.engines.accounts import NOBODY, Account
from gpuyard.engines.rlimits import PROGRAMS, prlimit
from gpuyard.errors import UserError

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
    """What runs a command as a user: limits, then the user, then the directory."""
    stub = ["/bin/sh", "-c", SCRIPT, "gpuyard", directory, f"{umask:o}", words[0]]
    if "=" in words[0]:  # `env` would take it for one more variable
        stub += ["/usr/bin/nice", "-n", "0"]
    return [*prlimit(limits), *_setpriv(account), *stub, *words]


def encode(variables: Mapping[str, str], passes: Callable[[str], bool]) -> dict[str, str]:
    """Variables as mere values, under names that mean nothing to anybody."""
    ordinary = [f"{name}={value}" for name, value in variables.items() if passes(name)]
    odd = [f"{name}={value}" for name, value in variables.items() if not passes(name)]
    found = {f"gpuyard_e{n}": text for n, text in enumerate(ordinary)}
    return found | {f"gpuyard_o{n}": text for n, text in enumerate(odd)}


def prefix(words: Sequence[str]) -> dict[str, str]:
    """Words that are to stand before the command and what goes by `env`: no shell may come between those two."""
    numbered = {f"gpuyard_p{n}": word for n, word in enumerate(words)}
    return {**numbered, "gpuyard_prefix": str(len(words))} if words else {}


def leave_keyring() -> None:
    """Let this thread, and so the next job, have no keys of whoever started the daemon, nor of another job."""
    number = _KEYCTL.get(platform.machine())
    if number is not None and _libc.syscall(number, _JOIN_SESSION_KEYRING, None) < 0:
        logger.debug("no new keyring: %s", os.strerror(ctypes.get_errno()))  # the kernel has none to give


def check_tools() -> None:
    """Make sure that a root daemon can start jobs as their users."""
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
