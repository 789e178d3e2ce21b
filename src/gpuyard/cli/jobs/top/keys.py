"""What keys do: they change the view's state at once; what takes longer becomes a command."""

from __future__ import annotations

from typing import NamedTuple

from gpuyard.api.types import OVER
from gpuyard.cli.jobs.top.frames import HELP
from gpuyard.cli.jobs.top.view_state import LISTS, LogView, Model, Panel, lay_out


class Command(NamedTuple):
    verb: str  # quit, cancel, hold (or release), priority, explain, log, earlier or close
    id: str = ""
    step: float = 0.0  # change of the priority; of `earlier`, 1: all of it


def press(model: Model, key: str) -> list[Command]:
    """Act on a key: a name (`up`), or the letter that it writes."""
    if model.mode != "confirm":
        model.message = ""
    return _MODES[model.mode](model, key)


# -- lists ----------------------------------------------------------------------------------------


def _lists(model: Model, key: str) -> list[Command]:
    if key in ("q", "interrupt"):
        return [Command("quit")]
    if key in (*_MOVES, "tab", "backtab"):
        model.places[model.focus].pinned = False
    if key in _MOVES:
        _move(model, _MOVES[key])
    elif key in ("tab", "backtab"):
        step = 1 if key == "tab" else -1
        model.focus = LISTS[(LISTS.index(model.focus) + step) % len(LISTS)]
    elif key == "/":
        model.mode, model.typed = "filter", model.filter
    elif key == "escape":
        model.filter, model.mine = "", False
    elif key == "u":
        model.mine = not model.mine
        model.say(f"only jobs of {model.user} (u: all)" if model.mine else "jobs of all users")
    elif key == "?":
        model.mode, model.panel = "panel", Panel("Keys", HELP.splitlines())
    else:
        return _act(model, _ALIASES.get(key, key))
    return []


def _move(model: Model, where: str) -> None:
    """Move within a list; at its edge into its neighbour, if that has any rows."""
    place, total = model.places[model.focus], model.part(model.focus).total
    page = max(lay_out(model).lists.get(model.focus, 1), 1)
    steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page, "home": -total, "end": total}
    if (where == "up" and place.index == 0) or (where == "down" and place.index >= total - 1):
        _cross(model, steps[where])
    else:
        model.go(model.focus, place.index + steps[where])


def _cross(model: Model, step: int) -> None:
    shown = list(lay_out(model).lists)
    position = shown.index(model.focus) + step if model.focus in shown else -1
    while 0 <= position < len(shown):
        total = model.part(shown[position]).total
        if total:
            model.focus = shown[position]
            model.go(model.focus, 0 if step > 0 else total - 1)
            return
        position += step


def _act(model: Model, key: str) -> list[Command]:
    row = model.selected()
    if key not in "lech+-" or len(key) != 1:
        return []
    if row is None:
        model.say("no job is selected")
        return []
    if key == "l":
        model.mode, model.log = "log", LogView(row.id, row.name, row.state)
        return [Command("log", row.id)]
    if key == "e":
        return [Command("explain", row.id)]
    if row.state in OVER:
        model.say(f"job {row.id} is over")
    elif key == "c":
        model.mode, model.to_cancel = "confirm", row
    elif row.state == "running":
        model.say(f"job {row.id} runs already; only a waiting job can be {'held' if key == 'h' else 'moved'}")
    elif key == "h":
        model.places[model.focus].pinned = True
        return [Command("hold", row.id)]
    else:
        model.places[model.focus].pinned = True
        return [Command("priority", row.id, 1.0 if key == "+" else -1.0)]
    return []


# -- questions, panels and output -----------------------------------------------------------------


def _confirm(model: Model, key: str) -> list[Command]:
    row, model.to_cancel, model.mode = model.to_cancel, None, "lists"
    if key in ("y", "Y") and row is not None:
        return [Command("cancel", row.id)]
    model.say("not cancelled")
    return [Command("quit")] if key == "interrupt" else []


def _filter(model: Model, key: str) -> list[Command]:
    done = _type(model, key)
    if key == "escape":
        model.filter = ""
    elif key not in _MOVES:
        model.filter = model.typed.strip()
    if done:
        model.mode = "lists"
    return [Command("quit")] if key == "interrupt" else []


def _type(model: Model, key: str) -> bool:
    """Add a key to the typed text; True if it ends the input."""
    if key == "backspace":
        model.typed = model.typed[:-1]
    elif len(key) == 1 and key.isprintable():
        model.typed += key
    return key in ("enter", "escape", "interrupt")


def _panel(model: Model, key: str) -> list[Command]:
    panel = model.panel
    if panel is None or _MOVES.get(key) is None:
        model.panel, model.mode = None, "lists"
        return [Command("quit")] if key == "interrupt" else []
    page = max(model.height - 3, 1)
    panel.top += {"up": -1, "down": 1, "pageup": -page, "pagedown": page}.get(_MOVES[key], 0)
    if _MOVES[key] in ("home", "end"):
        panel.top = 0 if _MOVES[key] == "home" else len(panel.lines)
    panel.top = max(panel.top, 0)
    return []


def _log(model: Model, key: str) -> list[Command]:
    log = model.log
    if log is None or key in ("q", "escape", "left"):
        model.log, model.mode = None, "lists"
        return [Command("close")]
    if key == "interrupt":
        return [Command("quit")]
    height = max(model.height - 2, 1)
    steps = {"up": -1, "down": 1, "pageup": -height, "pagedown": height, "home": -log.count()}
    if key == " ":
        log.scroll(height, height)
    elif key == "/":
        model.mode, model.typed = "search", ""
    elif key in ("n", "N") and log.found:
        _search(model, log, log.found, -1 if key == "n" else 1)
    elif _MOVES.get(key) == "end":
        log.bottom = None
    elif key in _MOVES:
        log.scroll(steps[_MOVES[key]], height)
    log.home = height if _MOVES.get(key) == "home" else 0
    if log.bottom is not None and log.bottom <= height and log.start > 0 and not log.loading:
        log.loading = True
        return [Command("earlier", log.id, 1.0 if log.home else 0.0)]
    return []


def _search(model: Model, log: LogView, text: str, step: int) -> None:
    if not log.search(text, step):
        where = "above" if step < 0 else "below"
        model.say(f"'{text}' is not found {where}" + (" in what was read" if log.start else ""))


def _type_search(model: Model, key: str) -> list[Command]:
    if not _type(model, key):
        return []
    model.mode = "log"
    if key == "enter" and model.typed and model.log is not None:
        _search(model, model.log, model.typed, -1)
    elif key == "escape" and model.log is not None:
        model.log.found = ""
    return [Command("quit")] if key == "interrupt" else []


_MOVES = {
    "up": "up", "k": "up", "down": "down", "j": "down", "pageup": "pageup", "pagedown": "pagedown",
    "home": "home", "g": "home", "end": "end", "G": "end",
}  # fmt: skip
_ALIASES = {"enter": "l", "=": "+", "_": "-", "delete": "c"}
_MODES = {
    "lists": _lists, "confirm": _confirm, "filter": _filter, "panel": _panel, "log": _log, "search": _type_search,
}  # fmt: skip
