"""How requests reach the daemon: Unix socket or TCP, token, retries."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from gpuyard.client.retry import PATIENCE, Absence, to_stderr
from gpuyard.client.transport import (
    Answer,
    Away,
    HungUp,
    NoDaemon,
    Reply,
    Request,
    Transport,
    UnixTransport,
    check_header,
    not_gpuyard,
    refusal,
    send,
    stream,
)
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.api.types import Job, Wishes
    from gpuyard.client.hosts import Host


def description(
    command: Sequence[str],
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    **wishes: Unpack[Wishes],
) -> dict[str, Any]:
    """A job for the daemon of this machine; by default it runs in this directory with this environment."""
    for which in ("output", "error"):
        if path := dict(wishes).get(which):
            _check_folder(which, str(path), os.path.abspath(directory or os.curdir))
    return {
        **_described(command, wishes),
        "directory": os.path.abspath(directory or os.curdir),
        "environment": {**(os.environ if environment is None else environment), **(variables or {})},
        "umask": _umask(),
    }


def remote_description(
    command: Sequence[str],
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    **wishes: Unpack[Wishes],
) -> dict[str, Any]:
    """A job for a daemon elsewhere: nothing of this machine is sent but what is given."""
    found = _described(command, wishes)
    if directory is not None:
        found["directory"] = os.fspath(directory)
    if environment is not None:
        found["environment"] = dict(environment)
    if variables:
        found["variables"] = dict(variables)
    return found


def _check_folder(which: str, path: str, directory: str) -> None:
    """Refuse a file that cannot be written, nor its folder made; the job's side makes folders when it starts."""
    file = os.path.join(directory, path)
    if path.endswith("/") or os.path.isdir(file):
        raise UserError(f"--{which} {path} is a directory; name a file in it, as in {path.rstrip('/')}/%j.out")
    folder = os.path.join(directory, path.partition("%")[0]).rpartition("/")[0] or "/"
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise UserError(f"--{which} {path} cannot be written: {folder} is not a directory")
    if os.path.exists(file) and "%" not in path:
        if not os.access(file, os.W_OK):
            raise UserError(f"--{which} {path} cannot be written: the file is not yours to write")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"--{which} {path} cannot be written: you may not make files in {folder}")


def _described(command: Sequence[str], wishes: Wishes) -> dict[str, Any]:
    if isinstance(command, str):
        raise UserError("a command is a list of words; write ['python', 'train.py'], not one string")
    return {"command": list(command), **fields_body(wishes)}


def fields_body(wishes: Wishes) -> dict[str, Any]:
    """Fields of a job as the API takes them: times in seconds, sizes in bytes."""
    found: dict[str, Any] = {**wishes}
    if "among" in found:
        found["from"] = found.pop("among")
    if texts := {name: value for name, value in found.items() if isinstance(value, str)}:
        found |= _parsed(texts)
    return found


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """The numbers among texts: those of durations, times and sizes."""
    from gpuyard.spec.fields import FIELD  # here, to keep the import of a client fast
    from gpuyard.spec.kinds import INSTANT, Moment

    found: dict[str, Any] = {}
    for name, text in texts.items():
        kind = FIELD[name].kind if name in FIELD else None
        if kind is None or kind.json != "number":
            continue
        try:
            found[name] = FIELD[name].parse(text, Moment(time.time()))
        except UserError as error:
            raise UserError(str(error) if kind is INSTANT else f"{name}: {error}") from None
    return found


def several(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body for several jobs; the first one's environment, which is long, is sent once if others have the same."""
    common = jobs[0].get("environment") if jobs else None
    rest = [{k: v for k, v in job.items() if k != "environment" or v != common} for job in jobs]
    return {"jobs": rest} if common is None else {"jobs": rest, "environment": common}


def encode(body: Mapping[str, Any]) -> bytes:
    """A request's body. Bytes that are not UTF-8, as in file names, are sent as escaped surrogates."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise UserError("a number of the request is not finite; leave it out or give another") from error


def _umask() -> int:
    """The umask can only be read by setting it."""
    former = os.umask(0o077)
    os.umask(former)
    return former


T = TypeVar("T")

_API = "/api/v1"
LONG = 600.0  # seconds that the daemon may take longer for a request about many jobs
POLL = 30.0  # seconds that the daemon lets one request wait, at most
_PAGE = 10_000  # jobs that the daemon lists at once, at most


class Connection:
    """How requests of `Client` reach the daemon."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        host: str | None = None,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        say: Callable[[str], None] = to_stderr,
        no_wait: bool = False,
    ) -> None:
        if host is not None and (socket is not None or data_dir is not None):
            raise UserError("a daemon is at a host, or at a socket of this machine; say only where it is")
        if host is None and socket is None and data_dir is None:
            host = os.environ.get("GPUYARD_HOST") or None
        self.timeout, self.say, self._no_wait = timeout, say, no_wait
        self._host: Host | None = None
        if host is not None:
            from gpuyard.client.hosts import parse_host  # here and below: a submit on this machine needs no host

            self._host = parse_host(host)
        self._token: str | None = None
        self._reached = False  # whether the daemon has answered before, so that it may come back
        self._transport: Transport = (
            self._to_socket(socket, data_dir) if self._host is None else self._to_host(token, ca)
        )

    @staticmethod
    def _to_socket(socket: str | os.PathLike[str] | None, data_dir: str | os.PathLike[str] | None) -> UnixTransport:
        if socket is None:
            from gpuyard.config import daemon_socket

            socket = daemon_socket({"data_dir": data_dir})
        return UnixTransport(os.fspath(socket))

    def _to_host(self, token: str | None, ca: str | os.PathLike[str] | None) -> Transport:
        from gpuyard.client.hosts import known
        from gpuyard.client.tcp import TcpTransport

        assert self._host is not None
        found = known(self._host, token, None if ca is None else os.fspath(ca))
        self._token = found.token
        if self._token and not self._host.tls and not self._host.loopback:
            self.say(f"warning: whoever is between here and {self._host.url} can read your token; use https, or ssh -L")
        return TcpTransport(self._host, found.ca)

    @property
    def host(self) -> str | None:
        """The URL of the daemon; None if it is reached by its socket."""
        return None if self._host is None else self._host.url

    @property
    def afar(self) -> bool:
        """Whether the daemon is on another machine, judged by its address."""
        return self._host is not None and not self._host.loopback

    @property
    def socket(self) -> str:
        """The path of the daemon's socket, or its URL."""
        return self._transport.name

    def __repr__(self) -> str:
        return f"Client({'socket' if self._host is None else 'host'}={self._transport.name!r})"

    def submit_described(self, job: Mapping[str, Any], key: str | None = None) -> str:
        """Queue a job as made by `description`; returns its id, or that of its array."""
        return str(self._ask_once("/jobs", job, key, patience=LONG if job.get("array") else 0.0)["id"])

    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]:
        return self._read(self._send("GET", target + query_of(**query), patience=patience))

    def _pages(self, target: str, limit: int | None, **query: Any) -> list[Job]:
        """Jobs of all pages, without duplicates: jobs may move between pages meanwhile."""
        most = sys.maxsize if limit is None else limit
        page = self._get(target, **query, limit=min(most, _PAGE))
        found: dict[str, Job] = {job["id"]: job for job in page["jobs"]}
        while page.get("next") and len(found) < most:
            page = self._get(page["next"].partition(_API)[2])
            found |= {job["id"]: job for job in page["jobs"]}
        return list(found.values())[:most]

    def _ask(self, method: str, target: str, body: Mapping[str, Any], *, patience: float = 0.0) -> dict[str, Any]:
        return self._read(self._send(method, target, encode(body), patience))

    def _ask_once(
        self, target: str, body: Mapping[str, Any], key: str | None = None, *, patience: float = 0.0
    ) -> dict[str, Any]:
        """Send a request with an idempotency key, so that retries take effect once; waits for a daemon.

        The daemon may take `patience` longer than usual for it.
        """
        headers = {"Idempotency-Key": check_header("a key", key or os.urandom(16).hex())}
        data = encode(body)
        found = self._patiently(lambda: self._read(self._send("POST", target, data, patience, headers)), anew=True)
        for warning in found.get("warnings", ()):
            self.say(f"warning: {warning}")
        return found

    def _send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        patience: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        with self._remembering():
            request = Request(method, _API + target, body, self._headers(headers))
            answer = send(self._transport, request, self.timeout + patience)
        if answer.status >= 300:
            raise refusal(answer, self.host or "", token=self._token is not None)
        return answer

    def _read(self, answer: Answer) -> dict[str, Any]:
        try:
            found = json.loads(answer.body or b"{}")
        except ValueError as error:
            if self.host is not None:
                raise not_gpuyard(self.host) from error
            raise GpuyardError("the daemon's answer is not JSON; is it gpuyard's, and of this version?") from error
        return cast("dict[str, Any]", found)

    @contextmanager
    def _stream(self, target: str, *, silence: float, headers: Mapping[str, str]) -> Iterator[Reply]:
        """An answer that is read as it comes, with no pause longer than `silence`."""
        with stream(self._transport, Request("GET", _API + target, headers=self._headers(headers)), silence) as reply:
            self._reached = True
            if reply.status >= 300:
                answer = Answer(reply.status, reply.headers, reply.read())
                raise refusal(answer, self.host or "", token=self._token is not None)
            yield reply

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**({"Authorization": f"Bearer {self._token}"} if self._token else {}), **(more or {})}

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Remember that the daemon was there, even if it hung up."""
        try:
            yield
        except HungUp:
            self._reached = True
            raise
        self._reached = True

    def _patiently(self, call: Callable[[], T], patience: float = PATIENCE, anew: bool = False) -> T:
        """Wait for a daemon that went away; `anew`: also for one that was away before anything was asked of it."""
        absence = Absence(patience, self.say)
        while True:
            try:
                return call()
            except NoDaemon as error:
                if self._no_wait or not (self._reached or (anew and isinstance(error, Away))):
                    raise
                self._reached = True  # a moment later the next one may have removed the socket to make its own
                absence.endure(error, "; gpuyard up starts one" if anew else "")


def query_of(**values: Any) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return ""
    from urllib.parse import urlencode

    return f"?{urlencode(given)}"
