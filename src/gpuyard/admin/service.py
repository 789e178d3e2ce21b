"""The daemon as a service of systemd: what its unit says, where that is, and what systemd has to say.

Jobs are children of the daemon, so they live in the unit's control group. Hence the lines that are not usual: they keep
systemd from ending, limiting or judging jobs when it means the daemon.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpuyard
from gpuyard.config import FLAGS, Settings, settings
from gpuyard.errors import UserError
from gpuyard.files import replacing

UNIT = "gpuyard.service"
_LINGER = Path("/var/lib/systemd/linger")
_ROOT = Path("/")

_TEXT = """\
# Written by `gpuyard service install`, which writes it anew; `gpuyard service uninstall` removes it.
[Unit]
Description=gpuyard, the queue for the GPUs of this machine
{after}RequiresMountsFor={data_dir}
# The driver of the GPUs may be there later than we are, so some minutes of trying are fine.
StartLimitIntervalSec=300
StartLimitBurst=60

[Service]
Type=exec
ExecStart={command}
{environment}# Jobs outlive the daemon: the end of the service, and its restart, are not theirs.
KillMode=process
Restart=on-failure
RestartSec=2
# What a person has to mend (exit code 2) does not get better by trying again.
RestartPreventExitStatus=2
# A job that runs out of memory is not the daemon's end, and all jobs together may have as many processes as they like.
OOMPolicy=continue
TasksMax=infinity
# Connections and running jobs take file descriptors.
LimitNOFILE=1024:524288
{delegate}
[Install]
WantedBy={wanted_by}
"""
_AFTER = """\
# Times of jobs are times of day, so the clock comes first; and so does what keeps the GPUs awake.
After=local-fs.target time-sync.target nvidia-persistenced.service
"""
_ONLINE = """\
# An address beyond this machine can be listened at once it is there.
Wants=network-online.target
After=network-online.target
"""
_DELEGATE = """\
# The daemon makes control groups for its jobs below this one, and systemd is to leave them alone.
Delegate=yes
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Whose systemd it is: the system's, or a user's own."""

    system: bool
    root: Path = _ROOT  # what stands for / (where a system is put together that does not run)

    @property
    def unit(self) -> Path:
        if self.system:
            return self.root / "etc/systemd/system" / UNIT
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return home / "systemd/user" / UNIT

    def command(self, *arguments: str) -> list[str]:
        return ["systemctl", *(() if self.system else ("--user",)), *arguments]


@dataclass(frozen=True, slots=True)
class Unit:
    path: Path
    text: str

    def value(self, name: str) -> str:
        found = re.findall(rf"^{name}[ \t]*=[ \t]*(.*?)[ \t]*$", self.text, re.MULTILINE)
        return found[-1] if found else ""

    @property
    def spares_jobs(self) -> bool:
        return self.value("KillMode") == "process"

    @property
    def program(self) -> str:
        line = self.value("ExecStart")
        quoted = re.match(r'"((?:[^"\\]|\\.)*)"', line)
        found = quoted[1] if quoted else line.partition(" ")[0]
        return found.replace("%%", "%").replace("$$", "$").replace('\\"', '"').replace("\\\\", "\\")


def found_units(root: Path = _ROOT) -> list[Unit]:
    paths = [Place(False).unit, Place(True, root).unit]
    return [Unit(path, path.read_text(errors="replace")) for path in paths if path.is_file()]


def make_unit(system: bool, flags: Mapping[str, str]) -> str:
    flags = {**flags, **_places(flags, system)}
    there = settings(flags, _service_environment(system))
    command = [sys.executable, "-P", "-m", "gpuyard", "serve"]
    for name, value in flags.items():
        command += [FLAGS.get(name, f"--{name.replace('_', '-')}"), value]
    return _TEXT.format(
        after=(_AFTER + ("" if there.local else _ONLINE)) if system else "",
        data_dir=_quote(str(there.data_dir)).replace("$$", "$"),
        command=" ".join(map(_quote, command)),
        environment=_python_path(),
        delegate=_DELEGATE if there.cgroups is not False else "",
        wanted_by="multi-user.target" if system else "default.target",
    )


def _places(flags: Mapping[str, str], system: bool) -> dict[str, str]:
    """The data directory and the socket, where the service would not find those that commands here use."""
    here, found = settings(flags), dict[str, str]()
    for name in ("data_dir", "socket"):
        if getattr(settings({**flags, **found}, _service_environment(system)), name) != getattr(here, name):
            found[name] = str(getattr(here, name))
    return found


def _service_environment(system: bool) -> dict[str, str]:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    return {"HOME": home} if system else {"HOME": home, "XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}


def unseen_variables() -> list[str]:
    """Variables that set something here, and will not in a service."""
    names = [f"GPUYARD_{name.upper()}" for name in Settings._fields if name not in ("data_dir", "socket")]
    return [name for name in ("GPUYARD_CONFIG", *names) if os.environ.get(name)]


def _python_path() -> str:
    """A line for an installation that Python finds only by PYTHONPATH."""
    home = str(Path(gpuyard.__file__).resolve().parents[1])
    entries = [os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    return f"Environment={_quote(f'PYTHONPATH={home}').replace('$$', '$')}\n" if home in entries else ""


def _quote(text: str) -> str:
    """A word of a unit: systemd knows quotes, and gives % and $ a meaning."""
    if "\n" in text:
        raise UserError(f"{text!r} has a line break in it, which cannot stand in a unit of systemd")
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w@%+=:,./~\-$]+", text) else f'"{text}"'


def write(path: Path, text: str) -> bool:
    """Write a unit atomically; returns whether it has changed."""
    try:
        if path.is_file() and path.read_text(errors="replace") == text:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            new.write_text(text)
            new.chmod(0o644)
    except PermissionError as error:
        raise UserError(f"{path} cannot be written; be root for --system, or use --user") from error
    return True


def remove(path: Path) -> bool:
    """Remove a unit; returns whether there was one."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise UserError(f"{path} cannot be removed; be root for --system") from error
    return True


def ask(command: Sequence[str]) -> tuple[bool, str]:
    if shutil.which(command[0]) is None:
        return False, "there is no systemctl on this machine"
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = " ".join((done.stdout or done.stderr).split())
    return done.returncode == 0, said


def lingers(user: str) -> bool:
    return (_LINGER / user).exists()


def manager_of(pid: int) -> Place | None:
    try:
        group = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return None
    if not any(line.endswith(f"/{UNIT}") for line in group.splitlines()):
        return None
    for place in (Place(False), Place(True)):
        if ask(place.command("show", "--property=MainPID", "--value", UNIT)) == (True, str(pid)):
            return place
    return None
