"""Text as people and Kubernetes write it: quantities (`250m`, `6994Mi`, `2e3`), times, addresses."""

from __future__ import annotations

import re
from datetime import datetime

from gpuyard.errors import UserError

_UNITS = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


def amount(text: object) -> float:
    match = _AMOUNT.fullmatch(str(text).strip())
    if match is None:
        raise UserError(f"'{text}' is no quantity; Kubernetes writes 6994Mi, 6Gi or 250m")
    return float(match[1]) * _UNITS[match[2] or ""]


def memory(text: object, unit: float = 1.0) -> float:
    """Bytes of memory; a bare number is in `unit`, and `20G` are powers of 1024, as in gpuyard."""
    written = str(text).strip()
    if unit != 1.0 and written.replace(".", "", 1).isdigit():
        found = float(written) * unit
    else:
        found = amount(f"{written}i" if written[-1:] in "KMGT" and written[-1:] else written)
    if found <= 0:
        raise UserError(f"'{text}' is no amount of memory; write for example 6994Mi")
    return found


def moment(text: str | None) -> float | None:
    """Seconds since 1970 of a time as the API writes it; None if there is none."""
    return datetime.fromisoformat(text).timestamp() if text else None


def address_of(text: str) -> tuple[str, int]:
    """`127.0.0.1:10260` as a host and a port."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UserError(f"'{text}' is no address to listen at; write for example 127.0.0.1:10260")
    return host.strip("[]") or "0.0.0.0", int(port)
