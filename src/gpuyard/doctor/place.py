"""Where the queue is kept: directory, disk, file system, socket."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuyard.doctor.finding import Finding, Patient, bad, ok, warn
from gpuyard.engines import output
from gpuyard.units import format_size

_NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2",
    "gfs2", "orangefs", "virtiofs",
)  # fmt: skip
_VOLATILE = ("tmpfs", "ramfs")
_LITTLE, _TOO_LITTLE = 2**30, 2**26
_FEW = 10_000
_LONGEST = 107


def directory(patient: Patient) -> Finding:
    """Whether the data directory can be used, by us and by nobody else."""
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
            return ok(check, f"{path} is {_name(status.st_uid)}'s, whose daemon serves you")
        return bad(check, f"you may not use {path}, which is {_name(status.st_uid)}'s", "choose another --data-dir")
    if status.st_uid not in (os.geteuid(), 0):
        return warn(check, f"{path} is {_name(status.st_uid)}'s", f"run this as {_name(status.st_uid)}")
    if status.st_mode & 0o022:
        return bad(check, f"{path} can be written by others ({_mode(status)})", f"chmod 700 {path}")
    return ok(check, f"{path}, {_mode(status)}")


def file_system(patient: Patient) -> Finding | None:
    """Whether the file system can do what a store and long outputs need."""
    path, check = patient.settings.data_dir, "file system"
    if not _is_usable(path):
        return None
    kind = file_system_of(path)
    mend = "set data_dir to a directory on a disk of this machine"
    if kind in _NETWORK or kind.startswith("fuse."):
        return bad(check, f"{kind}: locks and shared memory of SQLite are not safe there, nor are two machines", mend)
    if kind in _VOLATILE:
        return warn(check, f"{kind}: everything is lost when the machine goes down", mend)
    if not output.supports_holes(path):
        return warn(check, f"{kind}: parts of files cannot be given back, so output_limit does not hold", mend)
    return ok(check, f"{kind}, can give back parts of files")


def file_system_of(path: Path) -> str:
    """The kind of the file system that a path is on."""
    real, best, kind = os.path.realpath(path), "", "unknown"
    for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
        _, where, found, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape") if "\\" in where else where
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind = where, found
    return kind


def disk(patient: Patient) -> Iterator[Finding]:
    """Whether there is room."""
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


def socket(patient: Patient) -> Finding:
    """Whether the daemon can be reached where it is to listen, by us and not by strangers."""
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
    return ok(check, f"{path}, {_mode(status)}, of {_name(status.st_uid)}")


def _is_usable(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _mode(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
