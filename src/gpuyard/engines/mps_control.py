"""The control daemon of MPS, through which jobs of one user share a GPU's cores: how it is started and ended."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from gpuyard.engines.base import EngineError
from gpuyard.engines.local import privileges, processes
from gpuyard.engines.local.accounts import Account
from gpuyard.engines.local.wrapper import passes
from gpuyard.errors import UserError
from gpuyard.files import point, write_atomically

_MOST_SAID = 2000  # bytes of what it printed that are worth telling
_NEEDLESS = re.compile(r"[\x00-\x1f\x7f]+")

# The shell writes down how the command ended: a child of ours may be reaped by the search for orphans, code and all.
_ERRAND = r"""
gpuyard_code=$1
shift
"$@"
printf '%s\n' "$?" >"$gpuyard_code"
"""


class Subprocess:
    """A command in a session of its own; two files keep its output and exit code."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], files: Path, seconds: float, given: bytes = b""
    ) -> None:
        """Start it; `given` is its input, and `files` is the prefix of the two files."""
        self._printed, self._code = files.with_suffix(".out"), files.with_suffix(".code")
        self.deadline = time.monotonic() + seconds  # when it has taken too long, on the monotonic clock
        try:
            self._code.unlink(missing_ok=True)
            with open(self._printed, "wb") as printed:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", _ERRAND, "gpuyard", str(self._code), *words],
                    cwd="/", env=dict(environment), stdin=subprocess.PIPE, stdout=printed, stderr=printed,
                    start_new_session=True, umask=0o077,
                )  # fmt: skip
        except OSError as error:
            raise EngineError(f"cannot start a process: {error.strerror}") from error
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(given)
        process.returncode = 0  # it is reaped by its pidfd, or by the engine; this object is to leave it alone
        self._pid = process.pid
        self.pidfd = self._hold()

    def _hold(self) -> int:
        pidfd = processes.hold(self._pid)
        if pidfd is None:  # it was reaped already
            raise EngineError("a process ended at once")
        return pidfd

    @property
    def is_over(self) -> bool:
        return processes.has_ended(self.pidfd)

    @property
    def code(self) -> int | None:
        """The exit code; None if a signal ended it, or we did."""
        try:
            return int(self._code.read_text())
        except (OSError, ValueError):
            return None

    @property
    def said(self) -> str:
        try:
            text = self._printed.read_bytes()[-_MOST_SAID:].decode(errors="replace")
        except OSError:
            return ""
        return _NEEDLESS.sub(" ", text).strip()

    def close(self) -> None:
        """Release it; what still runs of it is ended."""
        if not self.is_over:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        processes.reap(self.pidfd)
        os.close(self.pidfd)
        for path in (self._printed, self._code):
            path.unlink(missing_ok=True)


logger = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
PATIENCE = 5.0  # seconds that each call of it may take
LINGER = 2.0  # seconds for which a control daemon without jobs is kept: in a queue the next job is often there by then
_GRACE = 1.0  # seconds between TERM and KILL
SHORT = "/tmp/gpuyard-mps-"  # how directories begin that stand in for those with a long path
_PAUSE = 0.05  # seconds between two looks whether all of it is gone
_MOST_PATH = 80  # bytes: the sockets in a directory have names up to 18 long, and the kernel takes 107 in all
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH")
_WHERE = "install it (nvidia-compute-utils-VERSION on Ubuntu, nvidia-cuda-mps on Debian), or do without --mps"

# What starts it, as its user. What an earlier one left that was killed could be in its way; unless that is in use.
_START = r"""
[ -n "$4" ] || rm -rf -- "$2"
mkdir -p -m 700 -- "$2" "$3" && exec "$1" -d
"""


class Phase(Enum):
    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    QUITTING = "quitting"  # it was asked to end
    KILLING = "killing"


def program(path: str | None = None) -> str:
    if (found := shutil.which(PROGRAM, path=path)) is not None:
        return found
    for folder in os.get_exec_path(None if path is None else {"PATH": path}):
        if (file := Path(folder, PROGRAM)).is_file():
            raise UserError(
                f"--mps needs {file}, which the daemon may not execute; get it that right, or do without --mps"
            )
    raise UserError(f"--mps needs {PROGRAM}, which is not on the daemon's PATH; {_WHERE}")


@dataclass(slots=True, eq=False)
class Control:
    place: Path  # where records are, and what belongs to each
    gpu: int
    device: str  # what `CUDA_VISIBLE_DEVICES` calls the GPU
    uid: int
    account: Account | None = None  # who it runs as; None if that is who we are
    user: str = ""
    life: str = field(default_factory=processes.life)
    attempts: set[tuple[str, int]] = field(default_factory=set)
    """Who needs it: those that run, and those that wait for it."""
    phase: Phase = Phase.DOWN
    problem: str = ""  # why it could not be started
    errand: Subprocess | None = None
    pipe: str = ""
    look_at: float = float("inf")  # when `step` is due, on the monotonic clock
    _deadline: float = 0.0
    _process: tuple[int, int] | None = None
    _seen: dict[int, int] = field(default_factory=dict)
    _census: processes.Census = field(default_factory=processes.Census)

    @property
    def name(self) -> str:
        return f"{self.gpu}-{self.uid}"

    @property
    def folder(self) -> Path:
        """Its own directory, the user's; also the mark that its processes carry."""
        return self.place / self.name

    @property
    def variables(self) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": self.pipe, "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log")}

    # -- the record -------------------------------------------------------------------------------

    @property
    def _record(self) -> Path:
        return self.place / f"{self.name}.json"

    def write(self) -> None:
        found = {
            "gpu": self.gpu, "device": self.device, "uid": self.uid, "user": self.user, "pipe": self.pipe,
            "life": self.life, "attempts": sorted(self.attempts),
        }  # fmt: skip
        try:
            write_atomically(self._record, json.dumps(found).encode())
        except OSError as error:
            raise EngineError(f"cannot write to {self.place}: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path) -> Control:
        found: dict[str, Any] = json.loads(path.read_text())
        attempts = {(str(job), int(attempt)) for job, attempt in found.pop("attempts")}
        return cls(path.parent, **found, attempts=attempts)

    def forget(self) -> None:
        self._record.unlink(missing_ok=True)
        if self.pipe and Path(self.pipe).parent != self.folder:
            shutil.rmtree(Path(self.pipe).parent, ignore_errors=True)
        self.pipe = ""

    # -- beginning --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to start it; `step` finds the result. Raises `EngineError` if trying again may help."""
        try:
            found = program()
        except UserError as error:
            self._failed(str(error))
            return
        try:
            self._make_folders()
        except OSError as error:
            raise EngineError(f"cannot make {error.filename}: {error.strerror}") from error
        self.write()
        point("mps:recorded")
        self._reap()
        kept = "kept" if self._members() else ""
        self._send(["/bin/sh", "-c", _START, "gpuyard", found, *self.variables.values(), kept])
        point("mps:started")
        self.phase, self.problem = Phase.STARTING, ""

    def _make_folders(self) -> None:
        """Its directory, the user's own; its sockets go elsewhere if the path is long."""
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        self._give(self.folder)
        if not self.pipe:
            self.pipe = str(self.folder / "pipe")
            if len(os.fsencode(self.pipe)) > _MOST_PATH:
                short = Path(tempfile.mkdtemp(prefix=os.path.basename(SHORT), dir=os.path.dirname(SHORT)))
                self._give(short)
                self.pipe = str(short / "pipe")

    def _give(self, folder: Path) -> None:
        if self.account:
            os.chown(folder, self.account.uid, self.account.gid, follow_symlinks=False)

    def _send(self, words: list[str], given: bytes = b"") -> None:
        mark = {processes.MARK: str(self.folder)}
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        visible = {"CUDA_VISIBLE_DEVICES": self.device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment = {**passed, **visible, **self.variables, **mark}
        if self.account:
            every = {**environment, **dict(self.account.variables)}
            environment = {**mark, **privileges.encode(every, passes)}
            words = privileges.command(self.account, (), "/", 0o077, words)
            privileges.leave_keyring()
        self.errand = Subprocess(words, environment, self.place / self.name, PATIENCE, given)
        self.look_at = self.errand.deadline

    def _started(self, errand: Subprocess) -> None:
        if not errand.is_over:
            self._failed(f"{PROGRAM} -d did not come to its end within {PATIENCE:.0f} s")
        elif errand.code:
            self._failed(f"{PROGRAM} -d ended with code {errand.code}: {errand.said or 'it does not say why'}")
        elif (found := self._find()) is None:
            self._failed(f"{PROGRAM} -d started nothing that stays; see {self.folder / 'log'}")
        else:
            self._process, self.phase, self.look_at = found, Phase.UP, float("inf")

    def _failed(self, problem: str) -> None:
        """It could not be started; its files go, unless an earlier one has left something that is used."""
        self.problem = f"MPS cannot be started on GPU {self.gpu}: {problem}"
        logger.warning("%s", self.problem)
        self.phase, self.look_at = Phase.DOWN, float("inf")

    def settle(self) -> None:
        self._process = self._find()
        self.phase = Phase.UP if self._process else Phase.DOWN

    @property
    def is_alive(self) -> bool:
        if self.phase is not Phase.UP or self._process is None:
            return False
        pid, started = self._process
        found = processes.look(pid)
        return found is not None and found.started == started and not found.dead

    def _members(self) -> dict[int, int]:
        """All processes that carry its mark, and may: its user's and ours on the way to that; with their starts."""
        found = self._census.take([processes.Suspect(str(self.folder))])[str(self.folder)]
        users = (self.uid, os.geteuid())
        members = {pid: self._census.born[pid] for pid in found if processes.user_of(pid) in users}
        self._seen |= members
        return members

    def _find(self) -> tuple[int, int] | None:
        """The control daemon itself: by its file, as far as a user's file can be trusted; else the oldest process."""
        members = self._members()
        with suppress(OSError, ValueError):
            named = int(_read_little(f"{self.pipe}/{PROGRAM}.pid"))
            if named in members:
                return named, members[named]
        return min(members.items(), key=lambda one: (one[1], one[0]), default=None)

    # -- ending -----------------------------------------------------------------------------------

    def rest(self, now: float) -> None:
        self.look_at = now + LINGER

    def end(self) -> None:
        """Begin to end it: by asking, as NVIDIA documents it; else by signals."""
        now = time.monotonic()
        if not self.is_alive:
            self._kill(now)
            return
        self.phase, self._deadline = Phase.QUITTING, now + PATIENCE
        try:
            self._send([program()], b"quit\n")
            point("mps:quit")
        except (UserError, EngineError) as error:
            logger.warning("the control daemon of MPS on GPU %d cannot be asked to end: %s", self.gpu, error)
            self._kill(now)

    def _kill(self, now: float) -> None:
        self.phase, self._deadline, self.look_at = Phase.KILLING, now + _GRACE, now

    def step(self, now: float) -> None:
        errand = self.errand
        if errand is not None:
            if not errand.is_over and now < errand.deadline:
                return
            if self.phase is Phase.STARTING:
                self._started(errand)
            else:
                self.look_at = now
            errand.close()
            self.errand = None
        if self.phase in (Phase.QUITTING, Phase.KILLING) and now >= self.look_at:
            self._clear(now)

    def _clear(self, now: float) -> None:
        """Check whether all of it is gone; kill what does not go by itself."""
        members = self._members()
        if not members:
            self.phase, self.look_at = Phase.DOWN, float("inf")
            self._reap()
            return
        if self.phase is Phase.QUITTING and now >= self._deadline:
            logger.warning("the control daemon of MPS on GPU %d does not end; it is killed", self.gpu)
            self._kill(now)
        if self.phase is Phase.KILLING:
            processes.send(members, signal.SIGTERM if now < self._deadline else signal.SIGKILL, born=members)
        self.look_at = max(now + _PAUSE, self._census.next())

    def _reap(self) -> None:
        for pid, started in self._seen.items():
            found = processes.look(pid)
            if found is not None and found.started == started:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        self._seen = {}


def _read_little(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(file, 32)
    finally:
        os.close(file)
