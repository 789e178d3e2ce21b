"""The dashboard's views: the cluster, one node, the pods, one pod."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from nicegui import ui

from gpuyard.page.api import Facts
from gpuyard.page.cluster import cluster_facts as facts
from gpuyard.page.cluster.cluster_feed import WAITING, Cluster, ClusterVisit, LiveElement, key_of
from gpuyard.page.parts import Section, Since, command, facts_list, heading, link, span, tagged
from gpuyard.page.table import Choices, Field, Fields, Filters, Pager, Table, page_number


class FilteredList(ABC):
    def __init__(self, look: ClusterVisit, path: str, choices: Mapping[str, str], what: str, size: int) -> None:
        self._look, self._known, self._what, self._size = look, choices, what, size
        self.filters = Filters(path, look.query, ("state", "text", "namespace", "page"))
        if self.filters["state"] not in choices:
            self.filters.set(state="")

    @abstractmethod
    def show(self, cluster: Cluster) -> None: ...

    def search(self, text: str) -> None:
        with ui.element("search").classes("gy-list-filters"):
            self._choices = Choices("State", self._known, self._choose)
            fields = (Field("text", text, "search"), Field("namespace", "Namespace", "folder_open"))
            self._fields = Fields(self.filters, fields, self._changed)
        self._choices.show(self.filters["state"])

    def pages(self) -> None:
        self._pager = Pager(self._go)
        self._pager.show(1, self._size, 0, "")

    def page_of(self, found: Sequence[Facts], cluster: Cluster, counts: Mapping[str, int]) -> Sequence[Facts]:
        """The items of the current page; updates the pager and the counts of the choices."""
        size = self._size
        page = min(page_number(self.filters["page"]), max(1, -(-len(found) // size)))
        self._choices.show(self.filters["state"], counts)
        self._fields.suggest("namespace", cluster.namespaces)
        self._pager.show(page, size, len(found), f"{len(found):,} {self._what}{'s' * (len(found) != 1)}")
        return found[(page - 1) * size : page * size]

    async def _changed(self) -> None:
        await self._go(1)

    async def _choose(self, state: str) -> None:
        self.filters.set(state=state)
        await self._go(1)

    async def _go(self, page: int) -> None:
        self.filters.set(page="" if page <= 1 else str(page))
        self.filters.tell_address()
        if self._look.feed.cluster is not None:
            self.show(self._look.feed.cluster)


FEW = 12  # up to this many nodes are shown as tiles, more as boxes with a bar for each GPU
PAGE = 250  # boxes on a page
_NEXT = 10
_STANDS = {"": "All nodes", "room": "With room", "full": "Full", "foreign": "Foreign", "closed": "Closed"}


class ClusterElement(LiveElement, component="../assets/cluster.js"):
    """All of the overview; the filters stand in its slots."""


class ClusterOverview(FilteredList):
    def __init__(self, look: ClusterVisit) -> None:
        super().__init__(look, "/", _STANDS, "node", PAGE)
        heading("Cluster", 1)
        self._screen = ClusterElement()
        with self._screen.add_slot("filters"):
            self.search("Node or model")
        with self._screen.add_slot("pager"):
            self.pages()

    def show(self, cluster: Cluster) -> None:
        found = facts.nodes_like(cluster, self.filters["text"], self.filters["namespace"])
        stands = [facts.standings(node) for node in found]
        counts = {"": len(found), **Counter(word for words in stands for word in words)}
        if wanted := self.filters["state"]:
            found = [node for node, words in zip(found, stands, strict=True) if wanted in words]
        few = len(found) <= FEW
        seen = self.page_of(found, cluster, counts)
        nodes = {
            f"node {node['name']}": facts.node_tile(node, cluster) if few else facts.node_box(node) for node in seen
        }
        order = [node["name"] for node in seen]
        waiting = facts.next_pods(cluster.waiting[:_NEXT])
        self._screen.show(
            {"figures": facts.figures(cluster), "order": order, "few": few, "head": waiting, **nodes}, cluster.at
        )


class NodeElement(LiveElement, component="../assets/cluster_node.js"):
    """A node's tile on a page of its own."""


class NodeView:
    def __init__(self, name: str) -> None:
        self._name = name
        heading(name, 1)
        self._gone = Section("gy-empty", props="role=status")
        self._node = NodeElement()
        self._heading = heading("Pods on it")
        self._table = Table(f"Pods on {name}", facts.COLUMNS)

    def show(self, cluster: Cluster) -> None:
        node = cluster.nodes.get(self._name)
        gone = "" if node else f"The cluster has no node {self._name} with GPUs (any more)."
        self._gone.show(gone, lambda: ui.label(gone), visible=bool(gone))
        self._node.set_visibility(node is not None)
        if node is not None:
            self._node.show({"node": facts.node_tile(node, cluster)}, cluster.at)
        pods = cluster.on(self._name)
        self._heading.set_visibility(bool(pods))
        self._table.set_visibility(bool(pods))
        self._table.show([facts.pod_row(pod, cluster) for pod in pods], cluster.at)


def build_node(look: ClusterVisit, name: str) -> int | None:
    look.follow(NodeView(name).show)
    return 404 if look.feed.cluster is not None and name not in look.feed.cluster.nodes else None


SIZE = 50  # rows on a page
_STATES = {"": "All", "waiting": "Waiting", "running": "Running", "foreign": "Of others"}


def state_of(pod: Facts, cluster: Cluster) -> str:
    if not cluster.is_ours(pod):
        return "foreign"
    return "waiting" if pod["phase"] in WAITING else "running"


def pods_like(cluster: Cluster, text: str, namespace: str) -> list[Facts]:
    wanted = text.casefold()
    return [
        pod
        for pod in cluster.pods.values()
        if (not namespace or pod["namespace"] == namespace)
        and (not wanted or wanted in f"{pod['name']} {pod['gang']} {pod['node']}".casefold())
    ]


class PodList(FilteredList):
    def __init__(self, look: ClusterVisit) -> None:
        super().__init__(look, "/pods", _STATES, "pod", SIZE)
        heading("Pods", 1)
        self.search("Pod, gang or node")
        with ui.element("div").classes("gy-empty") as self._empty:
            self._none = ui.label("Nothing is known of the cluster yet.")
        self._table = Table("Pods that wait, or hold GPUs", facts.COLUMNS)
        self._table.set_visibility(False)
        self.pages()

    def show(self, cluster: Cluster) -> None:
        pods = pods_like(cluster, self.filters["text"], self.filters["namespace"])
        states = [state_of(pod, cluster) for pod in pods]
        counts = {"": len(pods), **Counter(states)}
        if wanted := self.filters["state"]:
            pods = [pod for pod, state in zip(pods, states, strict=True) if state == wanted]
        seen = self.page_of(pods, cluster, counts)
        self._table.show([facts.pod_row(pod, cluster) for pod in seen], cluster.at)
        self._none.set_text("No pod is like that." if cluster.pods else "No pod waits, and none holds a GPU.")
        self._empty.set_visibility(not pods)
        self._table.set_visibility(bool(pods))


class PodView:
    def __init__(self, look: ClusterVisit, namespace: str, name: str) -> None:
        self._look, self._key, self._name = look, f"{namespace}/{name}", name
        with ui.element("div").classes("gy-cl-title"):
            heading(name, 1)
            self._chip = Section()
        self._gone = Section("gy-empty", props="role=status")
        self._line = Section()
        self._why = Section("gy-card gy-cl-why", "section")
        self._facts = Section("gy-card", "section")
        self._gang = heading("The rest of its gang")
        self._members = Table(f"The gang of {name}", facts.COLUMNS)
        heading("More of it")
        where = ("-n", namespace)
        for line in (
            ("gpuyard", "kubernetes", "explain", *where, f"pod/{name}"),
            ("kubectl", "describe", "pod", *where, name),
            ("kubectl", "logs", *where, name),
        ):
            command(shlex.join(line))
        self._hide()

    def show(self, cluster: Cluster) -> None:
        pod, zone = cluster.pods.get(self._key), self._look.zone
        gone = "" if pod else f"{self._key} has ended or was deleted, or it holds no GPU."
        self._gone.show(gone, lambda: ui.label(gone), visible=bool(gone))
        if pod is None:
            self._hide()
            return
        self._chip.show(pod["phase"], lambda: _chip(pod))
        times = [pod[name] for name in ("phase", "node", "gpus", "created_at", "started_at", "position")]
        self._line.show((zone, times), lambda: _line(pod, self._look))
        why = facts.waiting_text(pod)
        self._why.show(why, lambda: _why(pod, why), visible=bool(why))
        said = list(facts.pod_facts(pod, cluster))
        self._facts.show(said, lambda: _facts(said))
        others = [one for one in cluster.gang_of(pod) if key_of(one) != self._key]
        self._gang.set_visibility(bool(others))
        self._members.set_visibility(bool(others))
        self._members.show([facts.pod_row(one, cluster) for one in others], cluster.at)

    def _hide(self) -> None:
        for section in (self._chip, self._line, self._why, self._facts):
            section.show(None, lambda: None, visible=False)
        self._gang.set_visibility(False)
        self._members.set_visibility(False)


def _chip(pod: Facts) -> None:
    chip = facts.chip_of(pod)
    tagged("span", chip["text"]).classes(f"gy-chip gy-{chip['state']}")


def _line(pod: Facts, look: ClusterVisit) -> None:
    began = pod["started_at"]
    with ui.element("p").classes("gy-job-line"):
        with ui.element("span"):
            ui.label("in namespace ")
            link(f"/pods?namespace={pod['namespace']}", pod["namespace"])
        if pod["node"]:
            with ui.element("span"):
                ui.label(f"on {facts.gpus_text(pod)} of ")
                link(facts.node_path(pod["node"]), pod["node"])
        with ui.element("span"):
            since = pod["created_at"] if pod["phase"] in WAITING or began is None else began
            ui.label("waiting for " if pod["phase"] in WAITING else "running for " if began else "made ")
            Since(since)
            ui.label(f", since {look.when(since)}" if pod["phase"] in WAITING or began else " ago")
        if began is not None:
            ui.label(f"waited {span(max(0.0, began - pod['created_at']))}")
        if pod["position"]:
            ui.label(f"number {pod['position']:,} in the queue")


def _why(pod: Facts, why: str) -> None:
    if pod["phase"] in WAITING:
        heading("Why is it waiting?")
    tagged("p", why).classes("gy-job-why")


def _facts(said: Sequence[facts.PodFact]) -> None:
    with ui.element("dl").classes("gy-job-facts"):
        facts_list(said)


def build_pod(look: ClusterVisit, namespace: str, name: str) -> int | None:
    look.follow(PodView(look, namespace, name).show)
    cluster = look.feed.cluster
    return 404 if cluster is not None and f"{namespace}/{name}" not in cluster.pods else None
