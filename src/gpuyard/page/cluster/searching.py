"""A list that one viewer looks through: a row of choices, fields, pages; all of it in the address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from nicegui import ui

from gpuyard.page.cluster.look import Look
from gpuyard.page.cluster.model import Cluster, Facts
from gpuyard.page.filtering import Choices, Field, Fields, Filters
from gpuyard.page.paging import Pager, page_number


class Searched(ABC):
    """Nodes, or pods."""

    def __init__(self, look: Look, path: str, choices: Mapping[str, str], what: str, size: int) -> None:
        self._look, self._known, self._what, self._size = look, choices, what, size
        self.filters = Filters(path, look.asked, ("state", "text", "namespace", "page"))
        if self.filters["state"] not in choices:
            self.filters.set(state="")

    @abstractmethod
    def show(self, cluster: Cluster) -> None:
        """Show how it stands."""

    def search(self, text: str) -> None:
        """Make the fields; the first is called by what it looks for."""
        with ui.element("search").classes("gy-list-filters"):
            self._choices = Choices("State", self._known, self._choose)
            fields = (Field("text", text, "search"), Field("namespace", "Namespace", "folder_open"))
            self._fields = Fields(self.filters, fields, self._changed)
        self._choices.show(self.filters["state"])

    def pages(self) -> None:
        """Make the buttons for pages."""
        self._pager = Pager(self._go)
        self._pager.show(1, self._size, 0, "")

    def page_of(self, found: Sequence[Facts], cluster: Cluster, counts: Mapping[str, int]) -> Sequence[Facts]:
        """Those of them that are on the page which is looked at; the buttons and choices tell of the others."""
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
