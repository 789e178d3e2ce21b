"""The certificate for TCP, looked at before it is used, so that what is wrong with it can be told."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from gpuyard.config import Settings
from gpuyard.errors import UserError

_ANY_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: when it is valid is looked at by us


class BadCertificate(UserError):
    """The certificate cannot be used."""


class Certificate(NamedTuple):
    """What a certificate says."""

    begins: float
    expires: float


def check(settings: Settings) -> None:
    """Refuse a certificate or a key that cannot be used."""
    if settings.tls_key and not settings.tls_cert:
        raise BadCertificate("there is a key, but no certificate; give --tls-cert as well")
    if settings.tls_cert:
        examined(settings.tls_cert, settings.tls_key)


def examined(cert: str, key: str = "") -> Certificate:
    """What a certificate says that goes with its key."""
    for path, what in ((cert, "certificate"), (key, "key")):
        if path:
            _check_readable(path, what)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key or None, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise BadCertificate(_sentence(cert, key, error)) from error
    return _read(server, cert)


def _check_readable(path: str, what: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise BadCertificate(f"the {what} {path} cannot be read: {error.strerror}") from error


def _refuse_password() -> str:
    raise ValueError("encrypted")


def _sentence(cert: str, key: str, error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key or cert} is not that of the certificate {cert}; give the one that belongs to it"
    if reason == "encrypted":
        return f"the key in {key or cert} has a password; take it off with openssl pkey, and keep the file closed"
    where = f"{cert} and {key} have" if key else f"{cert} has"
    return f"{where} no certificate and key in PEM ({reason}); give --tls-cert, and --tls-key if it is another file"


def _read(server: ssl.SSLContext, cert: str) -> Certificate:
    """What the certificate says, by shaking hands with ourselves: Python reads none that nobody has shown."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags = ssl.VerifyFlags(client.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME)
    try:
        client.load_verify_locations(cert)
        shown = _shaken(client, server)
    except (ssl.SSLError, OSError) as error:
        raise BadCertificate(f"the certificate {cert} cannot be used: {error}") from error
    begins, expires = (ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
    return Certificate(begins, expires)


def _shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, object]:
    """The certificate that a client sees."""
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
