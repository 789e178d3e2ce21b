"""Sending, by processes of their own: neither a server that hangs nor the memory of apprise is the daemon's.

Where the daemon is root's, such a process becomes the user before it sees the URL. What goes through the mail server
that the admin set goes as nobody: the URL is not the user's then, and the address is all that they chose.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpuyard.config import Settings
from gpuyard.engines.accounts import NOBODY, Account, account_of
from gpuyard.engines.base import LaunchRefused
from gpuyard.engines.processes import MARK
from gpuyard.errors import GpuyardError
from gpuyard.notices.outbox import Delivery
from gpuyard.notices.urls import MAIL, scrub

PATIENCE = 60.0
"""Seconds that sending may take."""
_NO_MAIL = "this daemon has no mail server any more (setting mail)"
_PASSED = ("PYTHONPATH", "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
           "no_proxy")  # fmt: skip


class Stopped(GpuyardError):
    """The daemon ends; try again when it is back."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery, and where it goes."""

    delivery: Delivery
    url: str


class Courier:
    """Starts the processes that send, and ends them if they take too long."""

    def __init__(self, settings: Settings) -> None:
        self._shared, self._mail = settings.shared, settings.mail
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End all that run."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _kill(process)

    def send(self, user: str, parcels: Sequence[Parcel]) -> dict[int, str]:
        """Send a user's notifications: why each was not sent, or nothing; what was not tried is left out."""
        mailed = [parcel for parcel in parcels if self._is_mailed(parcel.url)]
        errors: dict[int, str] = {}
        for some in (mailed, [parcel for parcel in parcels if not self._is_mailed(parcel.url)]):
            if some:
                errors |= self._send(user, some, as_nobody=some is mailed)
        return errors

    def check(self, user: str, url: str) -> str:
        """Why a URL cannot be used; empty if it can."""
        if self._is_mailed(url) and not self._mail:
            return _NO_MAIL
        try:
            account = self._account(user, as_nobody=self._is_mailed(url))
        except LaunchRefused as error:
            return str(error)
        printed = self._run(account, {"check": self._whole(url)})
        said = next(iter(_answers(printed)), {"error": f"looking at it took more than {PATIENCE:.0f} s"})
        return scrub(str(said["error"]), self._whole(url))

    def _is_mailed(self, url: str) -> bool:
        return url.startswith(f"{MAIL}://")

    def _whole(self, url: str) -> str:
        """The URL as apprise knows it: of a bare address, through the server that is set."""
        if not self._is_mailed(url):
            return url
        to = quote(url.partition("://")[2], safe="@")
        return f"{self._mail}{'&' if '?' in self._mail else '?'}to={to}"

    def _send(self, user: str, parcels: Sequence[Parcel], as_nobody: bool) -> dict[int, str]:
        first = {parcel.url: parcel.delivery.id for parcel in reversed(parcels)}  # of each place
        if as_nobody and not self._mail:
            return dict.fromkeys(first.values(), _NO_MAIL)
        try:
            account = self._account(user, as_nobody)
        except LaunchRefused as error:
            return dict.fromkeys(first.values(), str(error))
        printed = self._run(account, {"parcels": [self._written(parcel) for parcel in parcels]})
        urls = {parcel.delivery.id: self._whole(parcel.url) for parcel in parcels}
        errors = {
            said["id"]: scrub(str(said["error"]), urls[said["id"]])
            for said in _answers(printed)
            if said.get("id") in urls
        }
        for url in first:  # where nothing was said of one that should have been tried, it hung
            here = [parcel.delivery.id for parcel in parcels if parcel.url == url]
            if not any(errors.get(id) for id in here) and (left := [id for id in here if id not in errors]):
                errors[left[0]] = f"took more than {PATIENCE:.0f} s"
        return errors

    def _written(self, parcel: Parcel) -> dict[str, Any]:
        one = parcel.delivery
        return {
            "id": one.id, "url": self._whole(parcel.url), "title": one.title, "body": one.body, "event": one.event,
            "fields": dict(one.fields),
        }  # fmt: skip

    def _account(self, user: str, as_nobody: bool) -> Account | None:
        """Who sends: the user, but never root; None if that is who we are."""
        if not self._shared:
            return None
        found = None if as_nobody else account_of(user)
        return found or Account(NOBODY, NOBODY)

    def _run(self, account: Account | None, wanted: dict[str, Any]) -> bytes:
        """What the process printed until its end, or until it was ended."""
        words = [] if account is None else [str(account.uid), str(account.gid), ",".join(map(str, account.groups))]
        process = self._start(words, _environment(account))
        try:
            return process.communicate(json.dumps(wanted).encode(), PATIENCE)[0]
        except subprocess.TimeoutExpired:
            _kill(process)
            return process.communicate()[0]
        finally:
            with self._lock:
                self._running.discard(process)
            if self._stopped:
                raise Stopped

    def _start(self, words: Iterable[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpuyard.notices.deliver", *words],
                cwd="/", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        return process


def _environment(account: Account | None) -> dict[str, str]:
    """Ours, as far as it is needed. The mark keeps it from being taken for what is left of a job."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    home = {"HOME": os.environ.get("HOME", "/")} if account is None else dict(account.variables)
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **passed, **home, MARK: "notices"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _answers(printed: bytes) -> Iterator[dict[str, Any]]:
    """The lines that such a process wrote, as far as it came."""
    for line in printed.split(b"\n"):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            yield said
