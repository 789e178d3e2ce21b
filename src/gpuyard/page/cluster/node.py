"""One node: its GPUs at large, and the pods that are on it."""

from __future__ import annotations

from nicegui import ui

from gpuyard.page.cluster.look import Kept, Look
from gpuyard.page.cluster.model import Cluster
from gpuyard.page.cluster.shaping import node_path, pod_path, tile
from gpuyard.page.cluster.words import COLUMNS, row
from gpuyard.page.parts import heading
from gpuyard.page.sections import Section
from gpuyard.page.table import Table


class Node(Kept, component="../assets/cluster_node.js"):
    """The node as a tile that has the page for itself."""


class Screen:
    """What one viewer sees."""

    def __init__(self, name: str) -> None:
        self._name = name
        heading(name, 1)
        self._gone = Section("gy-empty", props="role=status")
        self._node = Node()
        self._heading = heading("Pods on it")
        self._table = Table(f"Pods on {name}", COLUMNS)

    def show(self, cluster: Cluster) -> None:
        """Show how it stands."""
        node = cluster.nodes.get(self._name)
        gone = "" if node else f"The cluster has no node {self._name} with GPUs (any more)."
        self._gone.show(gone, lambda: ui.label(gone), visible=bool(gone))
        self._node.set_visibility(node is not None)
        if node is not None:
            self._node.show({"node": tile(node, cluster)}, cluster.at)
        pods = cluster.on(self._name)
        self._heading.set_visibility(bool(pods))
        self._table.set_visibility(bool(pods))
        self._table.show([row(pod, cluster, pod_path(pod), node_path(pod["node"])) for pod in pods], cluster.at)


def build(look: Look, name: str) -> int | None:
    """Make the page; says if there is no such node."""
    look.follow(Screen(name).show)
    return 404 if look.feed.cluster is not None and name not in look.feed.cluster.nodes else None
