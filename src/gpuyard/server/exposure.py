"""What is risky or missing in how the daemon can be reached: said in its log, by `up`, `status` and `doctor`."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from gpuyard.config import NO_PORT, PORT, Settings
from gpuyard.server import tls

_OFTEN = 600.0  # seconds between looks at a certificate
_SOON = 14 * 86400.0  # seconds before a certificate's end
_TAKEN = (
    f"port {PORT} is taken, so there is no API on TCP; is another daemon, or watchmen's server, running? choose "
    "another by --port (none: do without)"
)


def exposure(settings: Settings, url: str) -> list[str]:
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
        found += of_certificate(settings, (time.time() // _OFTEN + 1) * _OFTEN) + of_key(settings)
    return found


def of_key(settings: Settings) -> list[str]:
    """Whether others may read the key."""
    key = settings.tls_key or settings.tls_cert
    try:
        others = os.stat(key).st_mode & 0o007
    except OSError:  # it was read when the daemon began, and may be kept elsewhere now
        return []
    return [f"anybody on this machine may read the key in {key}; chmod o-rwx {key}"] if others else []


@lru_cache(maxsize=4)
def of_certificate(settings: Settings, now: float) -> list[str]:
    """What is wrong with the certificate at a time."""
    try:
        found = tls.examined(settings.tls_cert, settings.tls_key)
    except tls.BadCertificate as error:
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
