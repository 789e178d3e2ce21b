"""Clients of the daemon: `Client` and its transports, leases, and progress reports. Standard library only."""

from gpuyard.client.client import Client as Client
from gpuyard.client.transport import HungUp as HungUp
from gpuyard.client.transport import Invalid as Invalid
from gpuyard.client.transport import NoDaemon as NoDaemon
from gpuyard.client.transport import Refused as Refused
