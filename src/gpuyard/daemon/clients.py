"""Which jobs can be clients of MPS on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.core.model import Request
from gpuyard.daemon.views import Work
from gpuyard.engines.control import program
from gpuyard.errors import UserError
from gpuyard.gpus.base import Device

_LEAST = 3, 5  # the compute capability that MPS needs


def refusal_of(work: Work, request: Request, devices: Sequence[Device]) -> str | None:
    """Why a job cannot be a client, as what follows `it`; None if it can."""
    if request.gpus != 1:
        return (
            f"asks for MPS on {request.gpus} GPUs, and a client of MPS has one; "
            "split it into jobs of one GPU each, or do without --mps"
        )
    lacking = [one for one in devices if (not request.scope or one.index in request.scope) and _lacks(one)]
    if lacking:
        others = ",".join(str(one.index) for one in devices if not _lacks(one))
        told = ", ".join(f"GPU {one.index} ({one.name})" for one in lacking)
        return f"may get {told}, without MPS; " + (f"say --from {others}" if others else "do without --mps")
    try:
        program()
    except UserError as error:
        return f"cannot be a client of MPS: {error}"
    return None


def _lacks(device: Device) -> bool:
    return device.capability is not None and device.capability < _LEAST
