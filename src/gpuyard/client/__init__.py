"""Clients of the daemon: `Client` and its transports, leases, and progress reports. Standard library only."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard.api.grant_types import Recorded
    from gpuyard.api.types import (
        OVER,
        Blocker,
        Columns,
        Event,
        Explanation,
        Gpu,
        Job,
        LeaseWishes,
        LogPart,
        Machine,
        Page,
        PolicyPreview,
        Progress,
        Samples,
        Usage,
        Wishes,
    )
    from gpuyard.client.client import Client
    from gpuyard.client.connection import description, encode, remote_description
    from gpuyard.client.transport import HungUp, Invalid, NoDaemon, Refused

__all__ = [
    "OVER", "Blocker", "Client", "Columns", "Event", "Explanation", "Gpu", "HungUp", "Invalid", "Job",
    "LeaseWishes", "LogPart", "Machine", "NoDaemon", "Page", "PolicyPreview", "Progress", "Recorded", "Refused",
    "Samples", "Usage", "Wishes", "description", "encode", "remote_description",
]  # fmt: skip

_MODULES = ("client.client", "client.connection", "client.transport", "api.types", "api.grant_types")


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing before that: a module of this package may be all that is wanted."""
    if name in __all__:
        import importlib

        for module in _MODULES:
            if hasattr(found := importlib.import_module(f"gpuyard.{module}"), name):
                return getattr(found, name)
    raise AttributeError(f"module 'gpuyard.client' has no attribute '{name}'")
