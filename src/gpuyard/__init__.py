"""gpuyard: one scheduling core for GPU jobs, from a simulator to a real machine."""

from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "policy": "gpuyard.core.policy",
    "check_policy": "gpuyard.core.check",
    "Policy": "gpuyard.core.policy",
    "Cluster": "gpuyard.core.model",
    "Trace": "gpuyard.sim.trace",
    "read_trace": "gpuyard.sim.traces",
    "simulate": "gpuyard.sim.simulate",
    "Client": "gpuyard.client.client",
    "GpuyardError": "gpuyard.errors",
    "acquire": "gpuyard.client.client",
    "wait_for_gpus": "gpuyard.client.client",
    "Lease": "gpuyard.client.leases",
    "LeaseCancelled": "gpuyard.client.leases",
    "progress": "gpuyard.client.progress",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing before that: `import gpuyard` stays free of numpy."""
    if name not in _LAZY:
        raise AttributeError(f"module 'gpuyard' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), "read" if name == "read_trace" else name)


def __dir__() -> list[str]:
    return [*_LAZY, "__version__"]
