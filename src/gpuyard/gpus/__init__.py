"""What a GPU is: found through NVML or simulated, read now and then, and whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.gpus.base import Gpus


def open_gpus(simulate: str | None = None) -> Gpus:
    """Simulated GPUs as `simulate` describes them, or those of NVML; raises `GpusUnavailable`."""
    if simulate is not None:
        from gpuyard.gpus.simulated import SimulatedGpus

        return SimulatedGpus.parse(simulate)
    from gpuyard.gpus.nvml import NvmlGpus  # only who has real GPUs needs NVIDIA's bindings in memory

    return NvmlGpus()


def driver_version() -> str:
    """The version of NVIDIA's driver; valid while its GPUs are open."""
    from gpuyard.gpus.driver import version

    return version()
