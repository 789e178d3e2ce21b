"""The pods: who waits and why, who runs and where; by namespace, by node, by name."""

from __future__ import annotations

from collections import Counter

from nicegui import ui

from gpuyard.page.cluster.look import Look
from gpuyard.page.cluster.model import WAITING, Cluster, Facts
from gpuyard.page.cluster.searching import Searched
from gpuyard.page.cluster.shaping import node_path, pod_path
from gpuyard.page.cluster.words import COLUMNS, row
from gpuyard.page.parts import heading
from gpuyard.page.table import Table

SIZE = 50
"""Rows on a page."""
_STATES = {"": "All", "waiting": "Waiting", "running": "Running", "foreign": "Of others"}


def state_of(pod: Facts, cluster: Cluster) -> str:
    """Under which of the choices a pod is found."""
    if not cluster.is_ours(pod):
        return "foreign"
    return "waiting" if pod["phase"] in WAITING else "running"


def pods_like(cluster: Cluster, text: str, namespace: str) -> list[Facts]:
    """The pods that somebody looks for."""
    wanted = text.casefold()
    return [
        pod
        for pod in cluster.pods.values()
        if (not namespace or pod["namespace"] == namespace)
        and (not wanted or wanted in f"{pod['name']} {pod['gang']} {pod['node']}".casefold())
    ]


class Listing(Searched):
    """What one viewer sees."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "/pods", _STATES, "pod", SIZE)
        heading("Pods", 1)
        self.search("Pod, gang or node")
        with ui.element("div").classes("gy-empty") as self._empty:
            self._none = ui.label("Nothing is known of the cluster yet.")
        self._table = Table("Pods that wait, or hold GPUs", COLUMNS)
        self._table.set_visibility(False)
        self.pages()

    def show(self, cluster: Cluster) -> None:
        """Show how it stands."""
        pods = pods_like(cluster, self.filters["text"], self.filters["namespace"])
        states = [state_of(pod, cluster) for pod in pods]
        counts = {"": len(pods), **Counter(states)}
        if wanted := self.filters["state"]:
            pods = [pod for pod, state in zip(pods, states, strict=True) if state == wanted]
        seen = self.page_of(pods, cluster, counts)
        self._table.show([row(pod, cluster, pod_path(pod), node_path(pod["node"])) for pod in seen], cluster.at)
        self._none.set_text("No pod is like that." if cluster.pods else "No pod waits, and none holds a GPU.")
        self._empty.set_visibility(not pods)
        self._table.set_visibility(bool(pods))


def build(look: Look) -> None:
    """Make the page."""
    look.follow(Listing(look).show)
