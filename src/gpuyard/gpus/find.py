"""The GPUs of this machine, or simulated ones."""

from __future__ import annotations

from gpuyard.gpus.base import Gpus
from gpuyard.gpus.simulated import SimulatedGpus


def open_gpus(simulate: str | None = None) -> Gpus:
    """Simulated GPUs as `simulate` describes them, or those of NVML; raises `GpusUnavailable`."""
    if simulate is not None:
        return SimulatedGpus.parse(simulate)
    from gpuyard.gpus.nvml import NvmlGpus  # only who has real GPUs needs NVIDIA's bindings in memory

    return NvmlGpus()


def driver_version() -> str:
    """The version of NVIDIA's driver; valid while its GPUs are open."""
    from gpuyard.gpus.driver import version

    return version()
