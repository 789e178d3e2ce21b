"""What tells a job that shares a GPU by memory how much of it is its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_TORCH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""What torch has had one after the other for the same."""
_FRACTION = "per_process_memory_fraction"
_XLA = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
"""The same of XLA, which refuses to have both."""


def share_variables(work: Mapping[str, Any], environment: Mapping[str, str], size: float) -> dict[str, str]:
    """Variables for a job that shares GPUs of this size; what its user set stays."""
    share = work.get("gpu_memory")
    if not share or work.get("alone"):
        return {}
    found = {"GPUYARD_GPU_MEMORY": str(int(share)), "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if not any(name in environment for name in _XLA):  # else they say how much it is to take at once
        found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if work.get("cap") and size > 0:
        found |= _cap(math.floor(min(1.0, share / size) * 10_000) / 10_000, environment)
    return {name: value for name, value in found.items() if name not in environment or name in _ALWAYS}


_ALWAYS = ("GPUYARD_GPU_MEMORY", *_TORCH)


def _cap(fraction: float, environment: Mapping[str, str]) -> dict[str, str]:
    """What makes frameworks stop at a part of a GPU."""
    said = next((environment[name] for name in _TORCH if environment.get(name)), "")
    found = {}
    if _FRACTION not in said:
        found = dict.fromkeys(_TORCH, ",".join(filter(None, (said, f"{_FRACTION}:{fraction:g}"))))
    if not any(name in environment for name in _XLA):
        found[_XLA[0]] = f"{fraction:g}"
    return found
