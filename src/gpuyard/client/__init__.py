"""Clients of the daemon: `Client` and its transports, leases, and progress reports. Standard library only."""

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
    "OVER",
    "Blocker",
    "Client",
    "Columns",
    "Event",
    "Explanation",
    "Gpu",
    "HungUp",
    "Invalid",
    "Job",
    "LeaseWishes",
    "LogPart",
    "Machine",
    "NoDaemon",
    "Page",
    "PolicyPreview",
    "Progress",
    "Recorded",
    "Refused",
    "Samples",
    "Usage",
    "Wishes",
    "description",
    "encode",
    "remote_description",
]
