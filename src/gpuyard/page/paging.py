"""Which part of a long list is shown, and the way to the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

SIZES = (50, 100, 200)


class Pager:
    """Buttons for the pages of a list whose length is known."""

    def __init__(self, go: Callable[[int], Awaitable[None]]) -> None:
        self.page, self.pages = 1, 1
        self._go = go
        with ui.element("nav").classes("gy-list-pager").props('aria-label="Pages of the table"') as self._nav:
            self._text = ui.label().props("role=status")
            self._back = [
                self._button("first_page", "First page", lambda: 1),
                self._button("chevron_left", "Page before", lambda: self.page - 1),
            ]
            self._on = [
                self._button("chevron_right", "Next page", lambda: self.page + 1),
                self._button("last_page", "Last page", lambda: self.pages),
            ]

    def _button(self, icon: str, label: str, page: Callable[[], int]) -> ui.button:
        async def click() -> None:
            await self._go(page())

        found = ui.button(icon=icon, on_click=click).props("flat round dense")
        found._props["aria-label"] = label
        return found

    def show(self, page: int, size: int, rows: int, what: str) -> None:
        """Tell which rows of how many are shown."""
        self.page, self.pages = page, max(1, -(-rows // size))
        first, last = min((page - 1) * size + 1, rows), min(page * size, rows)
        self._nav.set_visibility(rows > 0)
        self._text.set_text(f"{first:,}–{last:,} of {what}" if self.pages > 1 else what)
        for button in self._back:
            button.set_enabled(page > 1)
        for button in self._on:
            button.set_enabled(page < self.pages)
        for button in (*self._back, *self._on):
            button.set_visibility(self.pages > 1)


def page_number(text: str) -> int:
    """The page that an address names; the first if it names none."""
    return max(1, int(text)) if text.isdecimal() and len(text) < 8 else 1
