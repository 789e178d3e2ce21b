"""Checks of the machine: installation, settings, GPUs, control groups, systemd, data directory, disk, socket."""

from __future__ import annotations

import getpass
import os
import platform
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gpuyard import __version__
from gpuyard.admin import service
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.config import Settings, config_file, unknown_variables
from gpuyard.config import settings as read_settings
from gpuyard.engines.base import EngineError
from gpuyard.engines.local import output
from gpuyard.engines.local.accounts import name_of
from gpuyard.engines.local.cgroups import find_cgroups
from gpuyard.errors import GpuyardError, UserError
from gpuyard.gpus import driver_version, open_gpus
from gpuyard.gpus.base import GpusUnavailable
from gpuyard.policies.guard import policy_of_settings
from gpuyard.units import format_size

State = Literal["ok", "warn", "bad"]


class Finding(NamedTuple):
    check: str
    state: State
    found: str
    mend: str = ""  # what to do; empty where all is well


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warn(check: str, found: str, mend: str = "") -> Finding:
    return Finding(check, "warn", found, mend)


def bad(check: str, found: str, mend: str = "") -> Finding:
    """It does not work, or will not for long."""
    return Finding(check, "bad", found, mend)


@dataclass(slots=True)
class Installation:
    settings: Settings
    problem: str = ""  # what is wrong with the settings; then these are the defaults
    client: Client = field(init=False)
    status: dict[str, Any] | None = None
    silence: str = ""  # why no daemon answers
    refused: bool = False  # whether there is one, but not for us

    def __post_init__(self) -> None:
        self.client = Client(self.settings.socket, timeout=10.0)
        try:
            self.status = self.client.status()
        except NoDaemon as error:
            self.silence = str(error)
        except (GpuyardError, OSError) as error:
            self.silence, self.refused = str(error), True

    @property
    def pid(self) -> int | None:
        return int(self.status["pid"]) if self.status else None


def find_installation(flags: dict[str, Any]) -> Installation:
    """The installation, also if the settings are invalid."""
    try:
        return Installation(read_settings(flags))
    except UserError as error:
        return Installation(_without(flags), str(error))


def _without(flags: dict[str, Any]) -> Settings:
    """The paths, as far as they are known without the file, or without the environment either."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    places = {name: os.environ[name] for name in ("GPUYARD_DATA_DIR", "GPUYARD_SOCKET") if os.environ.get(name)}
    return read_settings(flags, {**variables, **places, "GPUYARD_CONFIG": os.devnull})


_NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2",
    "gfs2", "orangefs", "virtiofs",
)  # fmt: skip
_VOLATILE = ("tmpfs", "ramfs")
_LITTLE, _TOO_LITTLE = 2**30, 2**26
_FEW = 10_000
_LONGEST = 107


def directory(patient: Installation) -> Finding:
    """Whether the data directory is usable, by us only."""
    path, check = patient.settings.data_dir, "data directory"
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            return ok(check, f"{path} is not there yet; the first daemon makes it")
        return bad(check, f"{path} is not there and cannot be made in {above}", "choose another with --data-dir")
    if not path.is_dir():
        return bad(check, f"{path} is not a directory", "move it away, or choose another with --data-dir")
    status = path.stat()
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        if patient.status is not None:
            return ok(check, f"{path} is {name_of(status.st_uid)}'s, whose daemon serves you")
        return bad(check, f"you may not use {path}, which is {name_of(status.st_uid)}'s", "choose another --data-dir")
    if status.st_uid not in (os.geteuid(), 0):
        return warn(check, f"{path} is {name_of(status.st_uid)}'s", f"run this as {name_of(status.st_uid)}")
    if status.st_mode & 0o022:
        return bad(check, f"{path} can be written by others ({_mode(status)})", f"chmod 700 {path}")
    return ok(check, f"{path}, {_mode(status)}")


def file_system(patient: Installation) -> Finding | None:
    path, check = patient.settings.data_dir, "file system"
    if not _is_usable(path):
        return None
    kind = file_system_of(path)
    mend = "set data_dir to a directory on a disk of this machine"
    if kind in _NETWORK or kind.startswith("fuse."):
        return bad(check, f"{kind}: locks and shared memory of SQLite are not safe there, nor are two machines", mend)
    if kind in _VOLATILE:
        return warn(check, f"{kind}: everything is lost when the machine goes down", mend)
    try:
        holes = output.supports_holes(path)
    except OSError as error:  # the disk is full, say
        return warn(
            check, f"{kind}: nothing can be written there ({error.strerror})", "the check of its space tells more"
        )
    if not holes:
        return warn(check, f"{kind}: parts of files cannot be given back, so output_limit does not hold", mend)
    return ok(check, f"{kind}, can give back parts of files")


def file_system_of(path: Path) -> str:
    real, best, kind = os.path.realpath(path), "", "unknown"
    for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
        _, where, found, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape") if "\\" in where else where
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind = where, found
    return kind


def disk(patient: Installation) -> Iterator[Finding]:
    path = patient.settings.data_dir
    if not _is_usable(path):
        return
    status = os.statvfs(path)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    text = f"{format_size(free)} of {format_size(total)} free"
    mend = f"free some space on the disk of {path}, or keep less: keep_logs, keep_history, output_limit"
    if free < _TOO_LITTLE:
        yield bad("disk space", f"{text}: nothing can be queued when it is full", mend)
    elif free < _LITTLE:
        yield warn("disk space", text, mend)
    else:
        yield ok("disk space", text)
    if status.f_files and status.f_favail < _FEW:
        few = f"{status.f_favail:,} of {status.f_files:,} files can still be made"
        yield (warn if status.f_favail > 100 else bad)("inodes", few, "remove files, or set keep_logs to less")
    else:
        yield ok("inodes", f"{status.f_favail:,} free" if status.f_files else "as many as there is room for")


def socket(patient: Installation) -> Finding:
    """Whether the daemon can be reached at its socket, by us and not by strangers."""
    path, check = patient.settings.socket, "socket"
    if len(os.fsencode(path.name)) > _LONGEST // 2 and len(os.fsencode(path)) > _LONGEST:
        return bad(check, f"the name of {path} is too long", "give a shorter one with --socket")
    folder = path.parent
    if folder.exists() and not os.access(folder, os.X_OK):
        return bad(check, f"you may not look into {folder}", "choose another with --socket, or ask its owner")
    if folder.is_dir() and folder.stat().st_mode & 0o002 and not folder.stat().st_mode & stat.S_ISVTX:
        return bad(check, f"anybody can replace {path}, since {folder} can be written by all", f"chmod o-w {folder}")
    if not path.exists():
        return ok(check, f"{path} is not there; it is made when a daemon starts")
    status = path.stat()
    if not stat.S_ISSOCK(status.st_mode):
        return bad(check, f"{path} is not a socket", "move it away, or choose another with --socket")
    if patient.status is None and not patient.refused:
        return warn(check, f"{path} is left over from a daemon that is gone", "gpuyard up replaces it")
    if len(os.fsencode(path)) > _LONGEST:
        return warn(check, f"{path} is longer than {_LONGEST} bytes: gpuyard copes, other programs cannot connect",
                    "choose a shorter one with --socket if they are to")  # fmt: skip
    return ok(check, f"{path}, {_mode(status)}, of {name_of(status.st_uid)}")


def _is_usable(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _mode(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o}"


def installation(patient: Installation) -> Finding:
    return ok("gpuyard", f"{__version__}, Python {platform.python_version()} ({sys.executable})")


def program(patient: Installation) -> Finding | None:
    if not patient.settings.shared:
        return None
    for path in (Path(sys.executable), Path(sys.executable).resolve(), Path(__file__).resolve()):
        if (shut := closed_to_others(path)) is not None:
            mend = "install it where all can read it: python3 -m venv /opt/gpuyard, with a Python outside of /root"
            return warn("program", f"other users cannot run {path}: {shut} is closed to them", mend)
    return ok("program", "all users can run it")


def closed_to_others(path: Path) -> Path | None:
    """The file, or the first directory above it, that only its owner and group can use; None if all can."""
    for part in (*reversed(path.parents), path):
        mode = part.stat().st_mode
        if not mode & (stat.S_IXOTH if part.is_dir() else stat.S_IROTH):
            return part
    return None


def settings(patient: Installation) -> Finding:
    check, file = "settings", config_file()
    if patient.problem:
        return bad(
            check, f"{patient.problem}; defaults stand in for all", "correct it: the file, the variable or the flag"
        )
    if unknown := unknown_variables():
        return warn(check, "; ".join(unknown), "correct the name, or unset it")
    if os.environ.get("GPUYARD_CONFIG") and not file.is_file():
        return warn(check, f"GPUYARD_CONFIG names {file}, which is not there", "make it, or unset the variable")
    return ok(check, f"from {file}" if file.is_file() else f"no file ({file}); defaults, variables and flags")


def policy(patient: Installation) -> Finding:
    chosen = patient.settings
    try:
        found = policy_of_settings(chosen)
    except UserError as error:
        return bad("policy", str(error), "set another; gpuyard policies lists them")
    return ok("policy", f"{found.text} is configured")


def gpus(patient: Installation) -> Iterator[Finding]:
    check = "GPUs"
    simulated = patient.settings.simulate_gpus or (patient.status["simulated"] if patient.status else False)
    if simulated:
        yield ok(check, "simulated; no real GPU is used")
        return
    try:
        found = open_gpus()
    except GpusUnavailable as error:
        problem, _, mend = str(error).partition("; ")
        yield bad(check, problem, mend)
        return
    try:
        devices = found.devices
        names = ", ".join(f"{device.index}: {device.name} {format_size(device.memory)}" for device in devices)
        yield ok(check, f"driver {driver_version() or 'unknown'}; {names}")
        for reading in found.read():
            if reading.lost:
                problem = f"GPU {reading.index} does not answer: {reading.problem}"
                yield warn(check, problem, "nothing is started on it; see nvidia-smi and the kernel's log (dmesg)")
    finally:
        found.close()


def cgroups(patient: Installation) -> Finding:
    check, wanted = "cgroups", patient.settings.cgroups
    if wanted is False:
        return ok(check, "off: a job's processes are known by session, environment and parent")
    try:
        find_cgroups(patient.settings.jobs_dir)
    except EngineError as error:
        if wanted is True:
            return bad(check, f"they are set, but cannot be had: {error}", "set cgroups = auto, or be root")
        text = f"none ({error}): a process that hides from its job can outlive it if the daemon restarts meanwhile"
        return ok(check, text)
    return ok(check, "each job gets one of its own")


def systemd(patient: Installation) -> Iterator[Finding]:
    check, units = "service", service.found_units()
    if not units:
        yield ok(check, "none; gpuyard service install starts the daemon at every boot")
    if len(units) > 1:
        yield warn(check, "there are two units, the system's and your own", "gpuyard service uninstall removes one")
    for unit in units:
        again = "gpuyard service install writes it anew"
        user = unit.path != service.Place(True).unit
        if not unit.spares_jobs:
            problem = f"{unit.path} has KillMode={unit.value('KillMode') or 'control-group'}: jobs die with the daemon"
            yield bad(check, problem, again)
        elif not os.access(unit.program, os.X_OK):
            yield bad(check, f"{unit.path} starts {unit.program}, which is not there", again)
        elif user and not service.lingers(getpass.getuser()):
            problem = f"{unit.path}: it ends, and jobs with it, when you log out"
            yield warn(check, problem, f"loginctl enable-linger {getpass.getuser()}")
        else:
            yield ok(check, f"{unit.path}, KillMode=process")
