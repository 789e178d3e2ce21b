"""The process that sends notifications:

`python -m gpuyard.notify.delivery [UID GID GROUPS]`. Only it imports apprise.
"""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import pwd
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from gpuyard.notify.subscriptions import LOCAL, MOST_DESTINATIONS, scrub

LONGEST = 90  # seconds after which it ends by itself, whatever it does
_ERRNO = re.compile(r"\[Errno -?\d+\] ([^\"'<>()\[\]]+)")
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_MOST_ERROR = 300
_PROGRAMS = ("json", "jsons", "form", "forms")  # what is read by programs: it is given the facts as fields, too
_TYPES = {"finish": "success", "failure": "failure", "timeout": "warning", "long-wait": "warning"}
_OWN = "this is an address of the daemon itself"
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


class LogCapture(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def reason(self) -> str:
        details = [record.getMessage() for record in self.records if record.levelno <= logging.DEBUG]
        said = [record.getMessage() for record in self.records if record.levelno >= logging.WARNING]
        for text in reversed([text for text in details if "xception" in text or "rror" in text]):
            if found := _ERRNO.search(text):
                return found[1].strip(" .")
            if _TIMED_OUT.search(text):
                return "timed out"
        return (said[0].strip(" .") if said else "") or "apprise does not say why"


def main() -> None:
    signal.alarm(LONGEST)
    import apprise

    apprise.Apprise.instantiate("json://localhost")  # loads all plugins, while their files can be read
    _become(sys.argv[1:])
    wanted = json.load(sys.stdin)
    guard(wanted["own_port"])
    if "check" in wanted:
        _answer({"error": checked(wanted["check"], wanted["own_port"])})
        return
    places: dict[str, list[dict[str, Any]]] = {}
    for parcel in wanted["parcels"]:
        places.setdefault(parcel["url"], []).append(parcel)
    children = []
    for parcels in list(places.values())[:MOST_DESTINATIONS]:
        child = os.fork()
        if child == 0:
            _send_all(parcels)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _become(words: list[str]) -> None:
    if not words:
        return
    import encodings.idna  # noqa: F401  # looking up a host needs it, and its file may be out of a user's reach

    import certifi

    uid, gid = int(words[0]), int(words[1])
    os.setgroups([int(group) for group in words[2].split(",") if group] if len(words) > 2 else [])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    with suppress(KeyError):  # whom the system knows by a number only has no home
        entry = pwd.getpwuid(uid)
        os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
    if not os.access(certifi.where(), os.R_OK):
        system = next((path for path in _CERTIFICATES if os.access(path, os.R_OK)), "")
        os.environ.update({"REQUESTS_CA_BUNDLE": system, "SSL_CERT_FILE": system} if system else {})


def guard(own_port: int) -> None:
    """Let no connection reach the daemon, which would take us for the user whom we run as, whatever its URL calls it.

    `Via` in what is sent tells other daemons of this machine that somebody else is behind the request.
    """

    def guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
        def to(connection: socket.socket, address: Any) -> Any:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                raise PermissionError(errno.EACCES, "it is not on the network")
            found = socket.getaddrinfo(address[0], address[1], connection.family, connection.type)[0][4]
            if is_own(connection.family, found, own_port):
                raise PermissionError(errno.EACCES, _OWN)
            return connect(connection, (*found[:2], *address[2:]))

        return to

    def end_headers(connection: http.client.HTTPConnection, *given: Any, **more: Any) -> None:
        connection.putheader("Via", "1.1 gpuyard")
        end(connection, *given, **more)

    end = http.client.HTTPConnection.endheaders
    http.client.HTTPConnection.endheaders = end_headers  # type: ignore[method-assign, assignment]
    socket.socket.connect = guarded(socket.socket.connect)  # type: ignore[method-assign]
    socket.socket.connect_ex = guarded(socket.socket.connect_ex)  # type: ignore[method-assign]


def is_own(family: int, address: tuple[Any, ...], own_port: int) -> bool:
    """Whether the daemon may listen there: at its port, and an address of this machine, which one can bind to."""
    if address[1] != own_port:
        return False
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True


def _send_all(parcels: list[dict[str, Any]]) -> None:
    """Send all messages to one place, until one fails; then this process ends."""
    code = 1
    try:
        signal.alarm(LONGEST)
        for parcel in parcels:
            if not _daemon_listens():
                break
            error = send(parcel)
            _answer({"id": parcel["id"], "error": error})
            if error:
                break
        code = 0
    finally:
        os._exit(code)


def send(parcel: dict[str, Any]) -> str:
    """Send one notification; why not, if not."""
    import apprise

    with _captured_log() as heard:
        place = apprise.Apprise()
        try:
            made = apprise.Apprise.instantiate(_with_options(parcel))
            if made is None or _is_local(made):
                return _short(heard.reason(), parcel["url"])
            place.add(made)
            sent = place.notify(
                title=parcel["title"],
                body=parcel["body"],
                notify_type=apprise.NotifyType(_TYPES.get(parcel["event"], "info")),
                body_format=apprise.NotifyFormat.TEXT,
            )
        except Exception as error:  # a plugin may fail in ways of its own
            return _short(f"{type(error).__name__}: {error}", parcel["url"])
        return "" if sent else _short(heard.reason(), parcel["url"])


def checked(url: str, own_port: int = 0) -> str:
    """Why a URL cannot be used; empty if it can, as far as one can tell without sending."""
    import apprise

    with _captured_log() as heard:
        try:
            made = apprise.Apprise.instantiate(url)
        except Exception as error:  # as above
            return _short(f"{type(error).__name__}: {error}", url)
        if made is None:
            reason = heard.reason()
            return "nothing of this kind is known" if "Unparseable" in reason else _short(reason, url)
        if _is_local(made):
            return "it stays on the daemon's machine"
        return _OWN if _leads_to_daemon(made, own_port) else ""


def _leads_to_daemon(made: Any, own_port: int) -> bool:
    port = getattr(made, "port", None) or (443 if getattr(made, "secure", False) else 80)
    if port != own_port or not getattr(made, "host", ""):
        return False
    try:
        places = socket.getaddrinfo(made.host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # it may be known later
        return False
    return any(is_own(family, address, own_port) for family, *_, address in places)


def _is_local(made: Any) -> bool:
    names = (made.protocol or (), made.secure_protocol or ())
    known = {name for some in names for name in ([some] if isinstance(some, str) else some)}
    return bool(known & LOCAL)


def _with_options(parcel: dict[str, Any]) -> str:
    url: str = parcel["url"]
    scheme = url.partition("://")[0]
    more = []
    if scheme in ("mailto", "mailtos") and "format=" not in url:
        more.append("format=text")
    if scheme in _PROGRAMS:
        more += [f":{name}={quote(_plain(value), safe='')}" for name, value in parcel["fields"].items()]
    if not more:
        return url
    return url + ("&" if "?" in url else "?") + "&".join(more)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def _captured_log() -> Iterator[LogCapture]:
    logger, handler = logging.getLogger("apprise"), LogCapture()
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def _short(text: str, url: str) -> str:
    return scrub(" ".join(text.split()), url)[:_MOST_ERROR] or "it failed"


def _daemon_listens() -> bool:
    """Whether the daemon still listens: else the next one would not know what was sent, and send it again."""
    listener = select.poll()
    listener.register(1, 0)  # which tells of the other end's closing, and of nothing else
    return not listener.poll(0)


def _answer(said: dict[str, Any]) -> None:
    os.write(1, (json.dumps(said) + "\n").encode())


if __name__ == "__main__":
    main()
