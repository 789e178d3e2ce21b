"""Where a job runs, and with what environment, if whoever submits it does not say: as after a login."""

from __future__ import annotations

import os
import pwd

from gpuyard.config import Settings
from gpuyard.engines.accounts import name_of
from gpuyard.errors import UserError
from gpuyard.server.models import Submission
from gpuyard.server.permissions import Caller

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
_OWN = ("PWD", "OLDPWD", "SHLVL", "_", "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")
"""Variables of the daemon's own life."""
_OWN_KINDS = ("GPUYARD_", "LISTEN_", "SLURM_", "WATCHDOG_")


def settled(job: Submission, caller: Caller, settings: Settings) -> Submission:
    """The submission with a directory and an environment."""
    given = job.directory is not None and not job.directory.startswith("~")
    if given and job.environment is not None and not job.variables:
        return job
    account = _account(caller, settings)
    environment = _usual(account, settings) if job.environment is None else dict(job.environment)
    directory = _directory(job.directory, account)
    if job.slurm:
        environment.setdefault("SLURM_SUBMIT_DIR", directory)
    return job.model_copy(update={"directory": directory, "environment": environment | job.variables})


def _account(caller: Caller, settings: Settings) -> pwd.struct_passwd | None:
    """Whom the job runs as; None if that is a mere number."""
    try:
        return pwd.getpwuid(caller.uid if settings.shared else os.geteuid())
    except (KeyError, OverflowError):
        return None


def _directory(wanted: str | None, account: pwd.struct_passwd | None) -> str:
    if wanted is not None and wanted != "~" and not wanted.startswith("~/"):
        return wanted
    if account is None:
        raise UserError("you have no home directory on that machine; say where it is to run (directory)")
    return os.path.join(account.pw_dir, (wanted or "~")[2:]).rstrip("/") or "/"


def _usual(account: pwd.struct_passwd | None, settings: Settings) -> dict[str, str]:
    """What a login would give; a daemon of one's own gives its environment, but for what is about itself."""
    found = {"PATH": _PATH, "LANG": os.environ.get("LANG", "C.UTF-8")}
    if not settings.shared:
        found |= {k: v for k, v in os.environ.items() if k not in _OWN and not k.startswith(_OWN_KINDS)}
    if account is not None:
        name = name_of(account.pw_uid)
        shell = account.pw_shell or "/bin/sh"
        found |= {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "SHELL": shell}
    return found
