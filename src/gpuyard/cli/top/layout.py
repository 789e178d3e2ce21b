"""How much of the screen everything gets."""

from __future__ import annotations

from typing import NamedTuple

from gpuyard.cli.top.model import LISTS, Model

_SMALL = 12
"""Lines of a screen below which only one list is shown."""
_WORTH = 3
"""Lines that have to be left over for what has ended to be shown unasked."""


class Layout(NamedTuple):
    """Lines of each part, headings not counted."""

    gpus: int
    lists: dict[str, int]
    """Only those that are shown, in their order."""


def lay_out(model: Model) -> Layout:
    """Share the screen out: title, GPUs, lists, keys."""
    gpus = len(model.picture.gpus) if model.picture else 0
    room = model.height - 2  # title and keys
    if model.height < _SMALL:
        return Layout(0, {model.focus: max(room - 1, 0)})
    shown = min(gpus, max(2, model.height // 3))
    room -= shown + 1 if shown else 0
    wants = {name: max(1, model.part(name).total) for name in LISTS}
    names = [name for name in LISTS if name != "ended" or model.focus == "ended"]
    room -= len(names)
    spare = room - sum(wants[name] for name in names)
    if "ended" not in names and spare >= _WORTH:
        given = {name: wants[name] for name in names}
        return Layout(shown, {**given, "ended": min(spare - 1, wants["ended"])})
    return Layout(shown, _share(wants, names, model.focus, room))


def _share(wants: dict[str, int], names: list[str], focus: str, room: int) -> dict[str, int]:
    """A line for each in turn, while it wants one; whoever is looked at gets two."""
    given = dict.fromkeys(names, 0)
    turns = [*names, *(name for name in names if name == focus)]
    while room > 0 and any(given[name] < wants[name] for name in names):
        for name in turns:
            if room > 0 and given[name] < wants[name]:
                given[name] += 1
                room -= 1
    return given


def settle(model: Model) -> None:
    """Scroll each list so that the selected row is seen, and no more is empty than need be."""
    layout = lay_out(model)
    for name, place in model.places.items():
        rows, total = max(layout.lists.get(name, 1), 1), model.part(name).total
        place.top = min(place.top, place.index, max(total - rows, 0))
        place.top = max(place.top, place.index - rows + 1, 0)
