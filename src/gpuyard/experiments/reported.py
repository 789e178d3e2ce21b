"""What jobs report of themselves, in one line of their output: `GPUYARD_RESULT p90=0.1312 p99=0.1417`."""

from __future__ import annotations

import math
import re

WORD = "GPUYARD_RESULT"
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})=(\S+)")


def reported(output: bytes, job: str = "a job") -> tuple[dict[str, float], list[str]]:
    """The numbers of the last such line, and a sentence for each part of it that is none."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    told = [line.removeprefix(WORD) for line in lines if line.split(None, 1)[:1] == [WORD]]
    found: dict[str, float] = {}
    warnings = []
    for part in told[-1].split() if told else ():
        match = _PAIR.fullmatch(part)
        value = _number(match[2]) if match else math.nan
        if match and math.isfinite(value):
            found[match[1]] = value
        else:
            warnings.append(f"{job} reported '{part[:60]}', which is not a name, = and a number, and is left out")
    return found, warnings


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
