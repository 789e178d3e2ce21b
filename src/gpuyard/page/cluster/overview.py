"""The cluster: a few numbers, the nodes with their GPUs, and who comes next."""

from __future__ import annotations

from collections import Counter

from gpuyard.page.cluster.look import Kept, Look
from gpuyard.page.cluster.model import Cluster
from gpuyard.page.cluster.searching import Searched
from gpuyard.page.cluster.shaping import box, figures, head, nodes_like, standings, tile
from gpuyard.page.parts import heading

FEW = 12
"""Nodes that are shown at large; more are boxes with a bar for each GPU."""
PAGE = 250
"""Boxes on a page."""
_NEXT = 10
_STANDS = {"": "All nodes", "room": "With room", "full": "Full", "foreign": "Foreign", "closed": "Closed"}


class Screen(Kept, component="../assets/cluster.js"):
    """Has all of it but the filters, which stand in its slots."""


class Overview(Searched):
    """What one viewer sees."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "/", _STANDS, "node", PAGE)
        heading("Cluster", 1)
        self._screen = Screen()
        with self._screen.add_slot("filters"):
            self.search("Node or model")
        with self._screen.add_slot("pager"):
            self.pages()

    def show(self, cluster: Cluster) -> None:
        """Show how it stands."""
        found = nodes_like(cluster, self.filters["text"], self.filters["namespace"])
        stands = [standings(node) for node in found]
        counts = {"": len(found), **Counter(word for words in stands for word in words)}
        if wanted := self.filters["state"]:
            found = [node for node, words in zip(found, stands, strict=True) if wanted in words]
        few = len(found) <= FEW
        seen = self.page_of(found, cluster, counts)
        nodes = {f"node {node['name']}": tile(node, cluster) if few else box(node) for node in seen}
        order = [node["name"] for node in seen]
        waiting = head(cluster.waiting[:_NEXT])
        self._screen.show(
            {"figures": figures(cluster), "order": order, "few": few, "head": waiting, **nodes}, cluster.at
        )


def build(look: Look) -> None:
    """Make the page."""
    look.follow(Overview(look).show)
