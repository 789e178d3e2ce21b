"""How a job reports its progress: a line in its progress file."""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "GPUYARD_PROGRESS"  # the environment variable that names a job's file
NUMBER = r"\d{1,15}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?"
AMOUNT = rf"({NUMBER})\s*(?:/\s*({NUMBER})|%)"

_ALONE = re.compile(rf"\s*(?:progress[:=]?\s+)?{AMOUNT}\s*", re.IGNORECASE)
_OFTEN = 0.1  # least seconds between small steps
_STEP = 0.01  # fraction; larger steps are always written

_written = ("", -math.inf, -math.inf)  # file, time and fraction of the last report


def progress(done: float, total: float) -> None:
    """Report progress. Cheap enough for a loop; does nothing outside a job."""
    global _written
    path = os.environ.get(VARIABLE)
    if not path:
        return
    done, total, now = float(done), float(total), time.monotonic()
    if not (0 <= done < math.inf and 0 < total < math.inf):
        return
    fraction, (where, at, before) = done / total, _written
    if where == path and now - at < _OFTEN and abs(fraction - before) < _STEP and fraction < 1:
        return
    _written = path, now, fraction
    with suppress(OSError):  # a full disk must not stop a training
        _write(path, f"{done:.15g}/{total:.15g}\n")


def amount(text: str) -> tuple[float, float] | None:
    """Done and total in `37/100` or `37%`; None if the text is neither."""
    found = _ALONE.fullmatch(text)
    return numbers(found[1], found[2]) if found else None


def numbers(done: str, total: str | None) -> tuple[float, float] | None:
    """Without a total the amount is a percentage. None if the total is 0."""
    part, whole = float(done), 100.0 if total is None else float(total)
    return (part, whole) if 0 < whole < math.inf and part < math.inf else None


def _write(path: str, text: str) -> None:
    from gpuyard.files import replacing  # lazily: few scripts that import this tell how far they are

    with replacing(Path(path), durable=False, mode=0o600) as draft:
        draft.write_text(text, encoding="ascii")
