"""A cluster from what a user gives for it: `4x8`, or a file that lists nodes."""

from __future__ import annotations

from pathlib import Path

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.traces.nodes import read_nodes


def read_cluster(text: str, memory: float) -> Cluster:
    """`4x8` or the path of a node list; GPUs have so many bytes of memory each."""
    if not Path(text).is_file():
        try:
            return Cluster.parse(text, memory)
        except UserError as error:
            raise UserError(f"{error}; and there is no file of that name that could list nodes") from None
    nodes = read_nodes(text)
    return Cluster(
        nodes.gpus,
        memory,
        nodes.cpus if any(nodes.cpus) else (),
        nodes.host_memory if any(nodes.host_memory) else (),
        nodes.models if any(nodes.models) else (),
    )
