"""Starts processes that send notifications, and kills those that take too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpuyard.config import Settings
from gpuyard.engines.base import LaunchRefused
from gpuyard.engines.local.accounts import NOBODY, Account, account_of
from gpuyard.engines.local.processes import MARK, OWN_MARK
from gpuyard.errors import GpuyardError
from gpuyard.notify.outbox import Delivery
from gpuyard.notify.subscriptions import MAIL, scrub

SEND_TIMEOUT = 60.0  # seconds that sending may take
_PASSED = ("PYTHONPATH", "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
           "no_proxy")  # fmt: skip


class Stopped(GpuyardError):
    """The daemon ends; try again when it is back."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    delivery: Delivery
    url: str


ResultCallback = Callable[
    [OutgoingMessage, str], None
]  # called with a message and why it could not be sent, or nothing


def uses_mail_server(url: str) -> bool:
    return url.startswith(f"{MAIL}://")


class MessageSender:
    def __init__(self, settings: Settings, own_port: int) -> None:
        """Nothing is sent to `own_port` of this machine, which is the daemon's; 0: it has none."""
        self._shared, self._mail, self._own_port = settings.shared, settings.mail, own_port
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _kill(process)

    def send(self, user: str, parcels: Sequence[OutgoingMessage], note: ResultCallback) -> None:
        """Send a user's notifications, all by mail to addresses or none, and tell of each what became of it.

        Of what goes to the same place, nothing more is tried once something fails.
        """
        left: dict[str, list[OutgoingMessage]] = {}
        for parcel in parcels:
            left.setdefault(parcel.url, []).append(parcel)
        began = time.monotonic()
        try:
            account = self._account(user, uses_mail_server(parcels[0].url))
            for said in self._run(account, {"parcels": [self._written(parcel) for parcel in parcels]}):
                self._tell(said, left, note)
        except LaunchRefused as error:
            problem = str(error)
        else:
            problem = _no_answer(began)
        for some in left.values():
            note(some[0], problem)

    def _tell(self, said: Mapping[str, Any], left: dict[str, list[OutgoingMessage]], note: ResultCallback) -> None:
        found = [(url, some[0]) for url, some in left.items() if some[0].delivery.id == said.get("id")]
        for url, parcel in found:
            error = scrub(str(said["error"]), self._whole(url))
            left[url].pop(0)
            if error or not left[url]:
                del left[url]
            note(parcel, error)

    def check(self, user: str, url: str) -> str:
        """Why a URL cannot be used; empty if it can."""
        began = time.monotonic()
        try:
            account = self._account(user, uses_mail_server(url))
            said = next(self._run(account, {"check": self._whole(url)}), None)
        except LaunchRefused as error:
            return str(error)
        return scrub(str(said["error"]), self._whole(url)) if said else _no_answer(began)

    def _whole(self, url: str) -> str:
        """The URL for apprise: a bare address goes through the mail server of the settings."""
        if not uses_mail_server(url):
            return url
        to = quote(url.partition("://")[2], safe="@")
        return f"{self._mail}{'&' if '?' in self._mail else '?'}to={to}"

    def _written(self, parcel: OutgoingMessage) -> dict[str, Any]:
        one = parcel.delivery
        return {
            "id": one.id, "url": self._whole(parcel.url), "title": one.title, "body": one.body, "event": one.event,
            "fields": dict(one.fields),
        }  # fmt: skip

    def _account(self, user: str, mailed: bool) -> Account | None:
        """The sending account: the user, but never root; None if that is our own."""
        if mailed and not self._mail:
            raise LaunchRefused("this daemon has no mail server any more (setting mail)")
        if not self._shared:
            return None
        found = None if mailed else account_of(user)
        return found or Account(NOBODY, NOBODY)

    def _run(self, account: Account | None, wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The answers of a sending process as they come; until its end, or until it is ended."""
        words = [] if account is None else [str(account.uid), str(account.gid), ",".join(map(str, account.groups))]
        process = self._start(words, _environment(account))
        assert process.stdin is not None
        assert process.stdout is not None
        patience = threading.Timer(SEND_TIMEOUT, _kill, (process,))
        patience.daemon = True
        patience.start()
        try:
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps({**wanted, "own_port": self._own_port}).encode())
            for line in process.stdout:
                yield json.loads(line)
        finally:
            patience.cancel()
            _kill(process)
            process.stdout.close()
            process.wait()
            with self._lock:
                self._running.discard(process)
        if self._stopped:
            raise Stopped

    def _start(self, words: Iterable[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-m", "gpuyard.notify.delivery", *words],
                cwd="/", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        return process


def _environment(account: Account | None) -> dict[str, str]:
    """Ours, as far as it is needed. The mark keeps it from being taken for what is left of a job.

    A user's home is not in it: the process begins as root, and Python loads modules from there (so `-s`, too).
    """
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    home = os.environ.get("HOME", "/") if account is None else "/"
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **passed, "HOME": home, MARK: OWN_MARK}


def _no_answer(began: float) -> str:
    """Why a process that began then did not answer."""
    if time.monotonic() - began >= SEND_TIMEOUT:
        return f"no answer within {SEND_TIMEOUT:.0f} s"
    return "the process that sends ended without an answer; is gpuyard's installation whole?"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
