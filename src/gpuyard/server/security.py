"""Checks before the daemon listens: modes of the data directory, the TLS certificate, and warnings about exposure."""

from __future__ import annotations

import os
import ssl
import stat
import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gpuyard.config import NO_PORT, PORT, Settings
from gpuyard.errors import UserError


def prepare_data_dir(data_dir: Path, shared: bool) -> None:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if shared:
        check_root_only(data_dir, "data")
        mode = data_dir.stat().st_mode
        data_dir.chmod(stat.S_IMODE(mode) & ~0o044 | 0o011)  # users must reach the socket and their jobs' directories


def check_root_only(folder: Path, what: str) -> None:
    place = folder.resolve()
    for path in (place, *place.parents, *folder.parents):
        found = path.stat()
        writable = found.st_mode & 0o022 and (path == place or not found.st_mode & stat.S_ISVTX)
        if writable or found.st_uid != os.geteuid():
            raise UserError(
                f"a daemon of root cannot keep its {what} in {folder}: others than root may change {path}; "
                "choose another place, or change that directory's owner and mode"
            )


_ANY_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: we check the dates


class BadCertificate(UserError):
    """The certificate cannot be used."""


class Certificate(NamedTuple):
    begins: float
    expires: float


def check_certificate(settings: Settings) -> None:
    if settings.tls_key and not settings.tls_cert:
        raise BadCertificate("there is a key, but no certificate; give --tls-cert as well")
    if settings.tls_cert:
        read_certificate(settings.tls_cert, settings.tls_key)


def read_certificate(cert: str, key: str = "") -> Certificate:
    for path, what in ((cert, "certificate"), (key, "key")):
        if path:
            _check_readable(path, what)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key or None, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise BadCertificate(_problem(cert, key, error)) from error
    return _certificate_of(server, cert)


def _check_readable(path: str, what: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise BadCertificate(f"the {what} {path} cannot be read: {error.strerror}") from error


def _refuse_password() -> str:
    raise ValueError("encrypted")


def _problem(cert: str, key: str, error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key or cert} is not that of the certificate {cert}; give the one that belongs to it"
    if reason == "encrypted":
        return f"the key in {key or cert} has a password; take it off with openssl pkey, and keep the file closed"
    where = f"{cert} and {key} have" if key else f"{cert} has"
    return f"{where} no certificate and key in PEM ({reason}); give --tls-cert, and --tls-key if it is another file"


def _certificate_of(server: ssl.SSLContext, cert: str) -> Certificate:
    """Read the certificate by a handshake with ourselves: `ssl` parses only what a peer has sent."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags = ssl.VerifyFlags(client.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME)
    try:
        client.load_verify_locations(cert)
        shown = _handshake(client, server)
    except (ssl.SSLError, OSError) as error:
        raise BadCertificate(f"the certificate {cert} cannot be used: {error}") from error
    begins, expires = (ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
    return Certificate(begins, expires)


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, object]:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
                if not end.server_side:
                    return dict(end.getpeercert() or {})
            except ssl.SSLWantReadError:
                continue
    raise OSError("the handshake never ends")


_OFTEN = 600.0  # seconds between reads of a certificate
_SOON = 14 * 86400.0  # seconds before a certificate's end
_TAKEN = (
    f"port {PORT} is taken, so there is no API on TCP; is another daemon, or watchmen's server, running? choose "
    "another by --port (none: do without)"
)


def exposure_warnings(settings: Settings, url: str) -> list[str]:
    """A sentence for each risk, with what to do about it; without a URL, on why there is none."""
    if settings.port == NO_PORT:
        return []
    if not url:
        return [_TAKEN] if settings.port is None and settings.bind == "127.0.0.1" else []
    found = []
    if settings.tokens == "none":
        found.append(
            f"anybody who reaches {url} may look at the queue and take GPUs without a token; set tokens to auto "
            "(--token auto), unless you trust them all"
        )
    if not settings.local and not settings.tls_cert:
        found.append(
            f"tokens travel to {url} in clear text, for all on the way to read; give --tls-cert, or listen at "
            "127.0.0.1 behind a proxy"
        )
    if settings.tls_cert:
        found += certificate_warnings(settings, (time.time() // _OFTEN + 1) * _OFTEN) + key_warnings(settings)
    return found


def key_warnings(settings: Settings) -> list[str]:
    key = settings.tls_key or settings.tls_cert
    try:
        others = os.stat(key).st_mode & 0o007
    except OSError:  # it was read at the start, and may have been moved
        return []
    return [f"anybody on this machine may read the key in {key}; chmod o-rwx {key}"] if others else []


@lru_cache(maxsize=4)
def certificate_warnings(settings: Settings, now: float) -> list[str]:
    try:
        found = read_certificate(settings.tls_cert, settings.tls_key)
    except BadCertificate as error:
        return [str(error)]
    if now >= found.expires:
        return [f"the certificate {settings.tls_cert} has expired on {_day(found.expires)}; get another"]
    if now < found.begins:
        return [f"the certificate {settings.tls_cert} is not valid before {_day(found.begins)}; get another"]
    if found.expires - now < _SOON:
        return [f"the certificate {settings.tls_cert} expires on {_day(found.expires)}; get another"]
    return []


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
