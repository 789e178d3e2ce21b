"""The machine: Python, settings, GPUs, control groups, systemd."""

from __future__ import annotations

import getpass
import os
import platform
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuyard import __version__, service
from gpuyard.config import config_file, unknown_variables
from gpuyard.daemon.serving import configured
from gpuyard.doctor.finding import Finding, Patient, bad, ok, warn
from gpuyard.engines.base import EngineError
from gpuyard.engines.cgroups import find_cgroups
from gpuyard.errors import UserError
from gpuyard.gpus.base import GpusUnavailable
from gpuyard.gpus.find import driver_version, open_gpus
from gpuyard.units import format_size


def installation(patient: Patient) -> Finding:
    """Which gpuyard this is."""
    return ok("gpuyard", f"{__version__}, Python {platform.python_version()} ({sys.executable})")


def program(patient: Patient) -> Finding | None:
    """Whether others can run what root has installed for all."""
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


def settings(patient: Patient) -> Finding:
    """Whether all that is set can be."""
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


def policy(patient: Patient) -> Finding:
    """Whether the configured policy is one."""
    chosen = patient.settings
    try:
        found = configured(chosen)
    except UserError as error:
        return bad("policy", str(error), "set another; gpuyard policies lists them")
    return ok("policy", f"{found.text} is configured")


def gpus(patient: Patient) -> Iterator[Finding]:
    """Which GPUs there are, and whether they answer."""
    check = "GPUs"
    simulated = patient.settings.simulate_gpus or (patient.status["simulated"] if patient.status else False)
    if simulated:
        yield ok(check, "simulated; no real GPU is used")
        return
    try:
        found = open_gpus()
    except GpusUnavailable as error:
        told, _, mend = str(error).partition("; ")
        yield bad(check, told, mend)
        return
    try:
        devices = found.devices
        names = ", ".join(f"{device.index}: {device.name} {format_size(device.memory)}" for device in devices)
        yield ok(check, f"driver {driver_version() or 'unknown'}; {names}")
        for reading in found.read():
            if reading.lost:
                told = f"GPU {reading.index} does not answer: {reading.problem}"
                yield warn(check, told, "nothing is started on it; see nvidia-smi and the kernel's log (dmesg)")
    finally:
        found.close()


def cgroups(patient: Patient) -> Finding:
    """Whether jobs can have control groups, if they are to."""
    if not patient.settings.cgroups:
        return ok("cgroups", "off: a job's processes are known by other marks")
    try:
        find_cgroups(patient.settings.jobs_dir)
    except EngineError as error:
        return bad("cgroups", f"they are set, but cannot be had: {error}", "set cgroups = false, or be root")
    return ok("cgroups", "on, and can be had")


def systemd(patient: Patient) -> Iterator[Finding]:
    """Whether units that are installed let jobs outlive the daemon."""
    check, units = "service", service.found_units()
    if not units:
        yield ok(check, "none; gpuyard service install starts the daemon at every boot")
    if len(units) > 1:
        yield warn(check, "there are two units, the system's and your own", "gpuyard service uninstall removes one")
    for unit in units:
        again = "gpuyard service install writes it anew"
        user = unit.path != service.Place(True).unit
        if not unit.spares_jobs:
            told = f"{unit.path} has KillMode={unit.value('KillMode') or 'control-group'}: jobs die with the daemon"
            yield bad(check, told, again)
        elif not os.access(unit.program, os.X_OK):
            yield bad(check, f"{unit.path} starts {unit.program}, which is not there", again)
        elif user and not service.lingers(getpass.getuser()):
            told = f"{unit.path}: it ends, and jobs with it, when you log out"
            yield warn(check, told, f"loginctl enable-linger {getpass.getuser()}")
        else:
            yield ok(check, f"{unit.path}, KillMode=process")
