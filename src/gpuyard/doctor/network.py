"""How the daemon can be reached on TCP, and whether that is safe."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from gpuyard.config import NO_PORT, PORT, Settings
from gpuyard.doctor.finding import Finding, Patient, bad, ok, warn
from gpuyard.server import tls
from gpuyard.server.exposure import exposure, of_key

_GUIDE = "docs/how-to/open-to-the-network.md tells how"


def network(patient: Patient) -> Iterator[Finding]:
    """What is risky or missing: of the daemon that runs, or of one that would be started now."""
    check, settings = "network", patient.settings
    if patient.status is not None:
        url, told = patient.status.get("url") or "", patient.status.get("warnings", [])
    else:
        url = _url(settings)
        told = exposure(settings, url)
    told = [sentence for sentence in told if sentence not in of_key(settings)]  # which is told by `certificate`
    for sentence in told:
        found, _, mend = sentence.partition("; ")
        yield warn(check, found, mend or _GUIDE)
    if not told:
        yield ok(check, url or "none: the daemon is reached by its socket alone")


def _url(settings: Settings) -> str:
    """Where a daemon would listen; nowhere if it would find its port taken."""
    by_itself = settings.port is None and settings.bind == "127.0.0.1"
    if settings.port == NO_PORT or (by_itself and _is_taken()):
        return ""
    return f"{'https' if settings.tls_cert else 'http'}://{settings.bind}:{settings.port or PORT}"


def _is_taken() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT), timeout=1.0).close()
    except OSError:
        return False
    return True


def certificate(patient: Patient) -> Finding | None:
    """Whether the certificate can be used, and its key is nobody else's."""
    check, settings = "certificate", patient.settings
    if not settings.tls_cert and not settings.tls_key:
        return None
    try:
        tls.check(settings)
    except tls.BadCertificate as error:
        found, _, mend = str(error).partition("; ")
        return bad(check, found, mend or f"give another by --tls-cert and --tls-key; {_GUIDE}")
    for sentence in of_key(settings):
        found, _, mend = sentence.partition("; ")
        return warn(check, found, mend)
    return ok(check, f"{settings.tls_cert} goes with its key")
