"""GPUs that exist in this program only: to try gpuyard, and to test it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuyard.errors import UserError
from gpuyard.gpus.base import Device, Reading
from gpuyard.units import format_size, parse_size

_PART = re.compile(r"([0-9]{1,6})(?:\s*[xX]\s*(.+))?")
_MEMORY = "16G"
_LARGEST = 2**50
_MOST = 1024


class SimulatedGpus:
    """Idle GPUs that never fail."""

    simulated = True

    def __init__(self, memories: Sequence[int]) -> None:
        self.devices: Sequence[Device] = tuple(
            Device(index, f"SIMULATED-{index}", f"Simulated GPU {format_size(memory)}", memory, simulated=True)
            for index, memory in enumerate(memories)
        )

    @classmethod
    def parse(cls, text: str) -> SimulatedGpus:
        """The GPUs in `4x16G`, `2x16G,1x80G` or `8`, which is 8x16G."""
        memories: list[int] = []
        for part in text.split(","):
            count, memory = _parse_part(part, text)
            if len(memories) + count > _MOST:
                raise UserError(f"'{text}' is more than {_MOST} simulated GPUs; write for example 4x16G")
            memories += [memory] * count
        return cls(memories)

    def read(self) -> list[Reading]:
        """One reading of each device: nothing going on."""
        return [Reading(device.index, utilization=0) for device in self.devices]

    def close(self) -> None:
        """Nothing is held."""


def _parse_part(part: str, text: str) -> tuple[int, int]:
    match = _PART.fullmatch(part.strip())
    count, memory = (int(match[1]), parse_size(match[2] or _MEMORY)) if match else (0, 0.0)
    if count < 1 or not 1 <= memory <= _LARGEST:
        raise UserError(f"'{text}' does not say which GPUs to simulate; write for example 4x16G, 2x16G,1x80G or 8")
    return count, int(memory)
