"""The terminal: curses paints frames and names the keys."""

from __future__ import annotations

import curses
import locale
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gpuyard.cli.jobs.cancel import describe_cancelled
from gpuyard.cli.jobs.show import sentences
from gpuyard.cli.jobs.top import frames
from gpuyard.cli.jobs.top.daemon_feed import CommandRunner, Feed, LogFeed, LogPiece, Wanted, earlier
from gpuyard.cli.jobs.top.keys import Command, press
from gpuyard.cli.jobs.top.view_state import MOST, PIECE, Model, Panel, Picture, lay_out, settle
from gpuyard.cli.terminal.styled_lines import Line
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.client.client import Client

_LOOK = 50  # milliseconds between looks at what has come in, while no key is pressed
_NAMES = {
    curses.KEY_UP: "up", curses.KEY_DOWN: "down", curses.KEY_PPAGE: "pageup", curses.KEY_NPAGE: "pagedown",
    curses.KEY_HOME: "home", curses.KEY_END: "end", curses.KEY_BACKSPACE: "backspace", curses.KEY_ENTER: "enter",
    curses.KEY_BTAB: "backtab", curses.KEY_LEFT: "left", curses.KEY_DC: "delete", curses.KEY_RESIZE: "resize",
    "\n": "enter", "\r": "enter", "\t": "tab", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace",
    "\x03": "interrupt", "\x0c": "redraw", "\x15": "clear",
}  # fmt: skip
_PLAIN = {
    "title": curses.A_BOLD, "head": curses.A_UNDERLINE, "focus": curses.A_BOLD | curses.A_UNDERLINE,
    "selected": curses.A_REVERSE, "alert": curses.A_BOLD | curses.A_REVERSE, "key": curses.A_BOLD,
    "busy": curses.A_BOLD, "bad": curses.A_BOLD, "warn": curses.A_BOLD, "faint": curses.A_DIM, "track": curses.A_DIM,
}  # fmt: skip
_COLOURS = {"good": curses.COLOR_GREEN, "bar": curses.COLOR_GREEN, "focus": curses.COLOR_GREEN, "bad": curses.COLOR_RED,
            "alert": curses.COLOR_RED, "warn": curses.COLOR_MAGENTA}  # fmt: skip
"""Colours that can be read on dark and on light; the background stays the terminal's own."""


def run(client: Client, model: Model, interval: float) -> None:
    """Show the yard until the user has seen enough; the terminal is as before when this returns."""
    locale.setlocale(locale.LC_ALL, "")
    for variable in ("LINES", "COLUMNS"):  # or curses would believe them, whatever size the terminal takes
        os.environ.pop(variable, None)
    curses.set_escdelay(25)
    signal.signal(signal.SIGTERM, _end)
    with suppress(KeyboardInterrupt), _terminal() as screen:
        Top(client, model, interval, screen).run()


def _end(*_: Any) -> None:
    raise SystemExit(143)


@contextmanager
def _terminal() -> Iterator[curses.window]:
    """The whole terminal, as long as it lasts. Not curses' own wrapper: that sets colours whether wanted or not."""
    try:
        screen = curses.initscr()
    except curses.error as error:
        raise UserError(f"this terminal cannot be drawn on ({error}); set TERM, or use gpuyard ps") from error
    try:
        curses.noecho()
        curses.cbreak()
        screen.keypad(True)
        screen.timeout(_LOOK)
        with suppress(curses.error):  # some terminals cannot hide the cursor
            curses.curs_set(0)
        yield screen
    finally:
        screen.keypad(False)
        curses.echo()
        curses.nocbreak()
        curses.endwin()


class Top:
    """The loop: take in what came, draw, obey a key."""

    def __init__(self, client: Client, model: Model, interval: float, screen: curses.window) -> None:
        self._client, self._model, self._screen = client, model, screen
        self._feed, self._hands = Feed(client, interval), CommandRunner()
        self._log: LogFeed | None = None
        self._styles = _styles()
        self._bars = frames.LINES if "utf" in locale.getencoding().lower() else frames.ASCII
        self._drawn = 0.0

    def run(self) -> None:
        """Until `q` or Ctrl-C."""
        self._feed.start()
        news = True
        while True:
            self._model.ticks = time.monotonic()
            news = self._take_in() or news
            self._model.height, self._model.width = self._screen.getmaxyx()
            settle(self._model)
            self._feed.want(self._wish())
            if news or self._model.ticks - self._drawn >= 1.0:
                self._draw()
            key = self._key()
            news = bool(key)
            if key and not self._obey(key):
                return

    def _key(self) -> str:
        """The name of a key; nothing if none is pressed."""
        try:
            found = self._screen.get_wch()
        except curses.error:
            return ""
        except KeyboardInterrupt:
            return "interrupt"
        return _NAMES.get(found, found if isinstance(found, str) else "other")

    def _obey(self, key: str) -> bool:
        """Do what a key is for; whether to go on."""
        if key in ("resize", "redraw"):
            curses.update_lines_cols()
            self._screen.clear()
            return True
        if key == "clear":
            self._model.typed, key = "", "backspace"
        self._model.ticks = time.monotonic()
        for command in press(self._model, key):
            if command.verb == "quit":
                return False
            self._carry_out(command)
        return True

    # -- what was asked for -----------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        client, id, model = self._client, command.id, self._model
        if command.verb == "log":
            self._close_log()
            self._log = LogFeed(client, id, PIECE)
        elif command.verb == "close":
            self._close_log()
        elif command.verb == "earlier":
            start = model.log.start if model.log else 0
            self._hands.do(lambda: earlier(client, id, start, MOST if command.step else PIECE))
        elif command.verb == "explain":
            self._hands.do(lambda: Panel(f"Job {id}", sentences(client.explain(id))))
        else:
            self._hands.do(self._change(command))

    def _change(self, command: Command) -> Callable[[], str]:
        client, id = self._client, command.id

        def change() -> str:
            try:
                match command.verb:
                    case "cancel":
                        said = describe_cancelled(client.cancel(id))
                    case "hold":
                        said = toggle_hold(client, id)
                    case _:
                        said = f"priority {set_priority(client, id, command.step):.12g}"
            finally:
                self._feed.poke()
            return f"job {id}: {said}"

        return change

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.closed = True
        self._log = None

    # -- what came in -----------------------------------------------------------------------------

    def _take_in(self) -> bool:
        """Take in what the threads have found; whether there was anything."""
        sources: list[tuple[queue.SimpleQueue[Any], Callable[[Any], None]]] = [
            (self._feed.news, self._take_picture),
            (self._hands.done, self._take_result),
        ]
        if self._log is not None:
            sources.append((self._log.pieces, self._take_piece))
        news = False
        for source, take in sources:
            while not source.empty():  # only this thread takes anything out
                take(source.get())
                news = True
        return news

    def _take_picture(self, found: Picture | str) -> None:
        model = self._model
        if isinstance(found, str):
            model.away_since = model.away_since if model.away else model.ticks
            model.away = found
        else:
            model.show(found)

    def _take_result(self, found: Any) -> None:
        if isinstance(found, Panel):
            if self._model.mode == "lists":  # the user may have gone elsewhere meanwhile
                self._model.panel, self._model.mode = found, "panel"
        elif isinstance(found, LogPiece):
            self._take_piece(found)
        else:
            self._model.say(str(found))

    def _take_piece(self, piece: LogPiece) -> None:
        log = self._model.log
        if log is None or log.id != piece.id:
            return
        log.state = piece.state or log.state
        if piece.anew:
            log.restart()
        elif piece.start is None:
            log.append(piece.data)
        elif log.count() == 0:
            log.start = piece.start
            log.append(piece.data)
        else:
            log.prepend(piece.data, piece.start)

    # -- what is seen -----------------------------------------------------------------------------

    def _wish(self) -> Wanted:
        """What is on the screen, and as much before and after it, so that a page further needs no waiting."""
        model = self._model
        lists = lay_out(model).lists
        rows = {name: max(lists.get(name, 0), 20) for name in ("running", "waiting")}
        first = {name: max(0, model.places[name].top // 50 * 50 - 2 * rows[name]) for name in rows}
        user = model.user if model.mine else None
        running = (0, 500) if model.places["running"].top < 400 else (first["running"], 500)
        return Wanted(model.filter, user, running, (first["waiting"], 50 + 5 * rows["waiting"]))

    def _draw(self) -> None:
        self._drawn = self._model.ticks
        self._screen.erase()
        for y, line in enumerate(frames.frame(self._model, self._bars)):
            self._paint(y, line)
        self._screen.refresh()

    def _paint(self, y: int, line: Line) -> None:
        x = 0
        for piece in line:
            try:
                self._screen.addstr(y, x, piece.text, self._styles.get(piece.style, 0))
            except curses.error:
                return  # the last place of the screen, after which the cursor cannot stand; or it has just shrunk
            x = self._screen.getyx()[1]


def toggle_hold(client: Client, id: str) -> str:
    """Hold a waiting job, or release it if it is held by now; what was done."""
    if client.job(id)["state"] == "held":
        client.release(id)
        return "released"
    client.hold(id)
    return "held"


def set_priority(client: Client, id: str, step: float) -> float:
    """Give a job more or less priority than it has; the new one."""
    priority = client.job(id)["priority"] + step
    client.edit(id, priority=priority)
    return priority


def _styles() -> dict[str, int]:
    """What the names of styles mean on this terminal."""
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return dict(_PLAIN)
    curses.start_color()
    curses.use_default_colors()
    styles = dict(_PLAIN)
    for number, (name, colour) in enumerate(_COLOURS.items(), 1):
        curses.init_pair(number, colour, -1)
        styles[name] = curses.color_pair(number) | _PLAIN.get(name, 0)
    return styles
