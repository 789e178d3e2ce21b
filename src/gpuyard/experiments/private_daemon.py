"""A daemon in a folder of its own, for one purpose; it ends together with its jobs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.engines.local.processes import look
from gpuyard.errors import GpuyardError, UserError

_PATIENCE = 60.0  # seconds that a daemon may take to come or to go
_LONGEST = 90  # bytes that the path of a socket can have on every system
_LINK, _SETTINGS, _NAME = "socket-folder", "settings.json", "yard-name"
_PREFIX = "gpuyard-yard-"
_PARENT_WATCH = 'read -r word || exec "$0" -P -m gpuyard.experiments.private_daemon "$1" "$2"'
"""A shell that ends at a word of ours; if we die without one, it clears the folder."""
_GRACE = 1.0
_OURS = {"GPUYARD_PORT": "none", "GPUYARD_PAGE": "off", "GPUYARD_SINGLE_USER": "true"}

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def interruptible() -> Iterator[Callable[[Handler], None]]:
    """Signals raise KeyboardInterrupt, until what this yields is called with a handler for the time of clearing up.

    Ignored signals stay ignored. Only the main thread can hear any; in others nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    heard = [number for number in SIGNALS if main and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}

    def handle(handler: Handler) -> None:
        for number in heard:
            signal.signal(number, handler)

    try:
        yield handle
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def private_daemon(folder: Path, settings: Mapping[str, Any]) -> Iterator[Client]:
    """A daemon with these settings and no others, in a new folder; remains of a former one are cleared first."""
    folder = folder.absolute()  # the daemon runs in /
    name = _make(folder, settings)
    with interruptible() as handle:
        daemon: subprocess.Popen[bytes] | None = None
        parent_watch = _parent_watch(folder, name)
        try:
            client, daemon = _begin(folder)
            yield client
        finally:
            handle(signal.SIG_IGN)
            clear_remains(folder)
            if daemon is not None:
                daemon.wait(_PATIENCE)
            parent_watch.communicate(b"over\n")


def _make(folder: Path, settings: Mapping[str, Any]) -> str:
    """A new folder for a daemon; returns a name that tells it from another in the same place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _clear(folder)
        folder.mkdir(mode=0o700)
        (folder / _SETTINGS).write_text(json.dumps(dict(settings)))
        (folder / _NAME).write_text(name := uuid.uuid4().hex)
    return name


def clear_remains(folder: Path, name: str = "") -> None:
    """End a daemon that was left, its jobs and its files; with `name` only if it is that one."""
    folder = folder.absolute()
    if os.path.lexists(folder):
        with _alone(folder):
            if not name or ((folder / _NAME).is_file() and (folder / _NAME).read_text() == name):
                _clear(folder)


def _clear(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not (folder / _SETTINGS).is_file():
        raise UserError(f"{folder} is in the way, and no yard of gpuyard's; move it away, or choose another --out")
    if (folder / "gpuyard.db").exists():
        client, daemon = Client(_socket(folder), say=_silent), None
        try:
            client.status()
        except GpuyardError:  # the daemon has ended, but jobs outlive that
            client, daemon = _begin(folder)
        _end(client)
        if daemon is not None:
            daemon.wait(_PATIENCE)
    link = folder / _LINK
    if link.is_symlink() and os.path.basename(os.readlink(link)).startswith(_PREFIX):
        shutil.rmtree(os.readlink(link), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock, so that no other process clears or makes a folder there."""
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _parent_watch(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """A process that waits for our end: even after SIGKILL no daemon and no job stays."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _PARENT_WATCH, sys.executable, str(folder), name], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
    )  # fmt: skip


def _begin(folder: Path) -> tuple[Client, subprocess.Popen[bytes]]:
    """Start the daemon in a session of its own, so that Ctrl-C reaches only us; return once it answers."""
    socket, settings = _socket(folder), json.loads((folder / _SETTINGS).read_text())
    outside = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    given = {f"GPUYARD_{name.upper()}": str(value) for name, value in settings.items() if value not in ("", None)}
    places = {"GPUYARD_CONFIG": str(folder / "none.toml"), "GPUYARD_DATA_DIR": str(folder), "GPUYARD_SOCKET": socket}
    log = folder / "daemon.log"
    with log.open("ab") as sink:
        daemon = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpuyard", "serve"], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            env={**outside, **_OURS, **given, **places}, cwd="/", start_new_session=True,
        )  # fmt: skip
    client = Client(socket, say=_silent)
    try:
        _await_answer(daemon, client, log)
    except BaseException:
        daemon.terminate()
        daemon.wait()
        raise
    return client, daemon


def _await_answer(daemon: subprocess.Popen[bytes], client: Client, log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            client.status()
        except NoDaemon:
            if daemon.poll() is not None:
                last = " ".join(log.read_text(errors="replace").strip().splitlines()[-1:])
                raise UserError(f"the daemon could not begin: {last.removeprefix('gpuyard: error: ')}") from None
            time.sleep(0.02)
        else:
            return
    raise GpuyardError(f"the daemon (pid {daemon.pid}) does not answer after {_PATIENCE:.0f} s")


def _end(client: Client) -> None:
    with suppress(GpuyardError, TimeoutError):  # the daemon has to end, even if jobs do not
        left = client.jobs()
        for job in reversed(left):  # those that wait come first: they would take the place of the others
            with suppress(GpuyardError):  # it is over by now
                client.cancel(job["id"], grace=_GRACE)
        for job in left:
            client.wait(job["id"], timeout=30.0)
    with suppress(NoDaemon):
        pid = int(client.status()["pid"])
        client.shutdown()
        end = time.monotonic() + _PATIENCE
        while (found := look(pid)) is not None and not found.dead and time.monotonic() < end:
            time.sleep(0.02)


def _socket(folder: Path) -> str:
    """Where its daemon listens: in the folder, or, since such paths must be short, in one that a link names."""
    near = folder / "gpuyard.sock"
    if len(os.fsencode(near)) <= _LONGEST:
        return str(near)
    link = folder / _LINK
    if not link.is_symlink():
        link.symlink_to(tempfile.mkdtemp(prefix=_PREFIX))
    return str(Path(os.readlink(link)) / "gpuyard.sock")


def _silent(_: str) -> None:
    """An experiment shows its own progress, not that of the client."""


if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    clear_remains(Path(sys.argv[1]), sys.argv[2])
