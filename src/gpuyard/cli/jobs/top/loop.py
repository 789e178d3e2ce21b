"""The loop of `gpuyard top`: take in what threads have found, draw a frame, act on a key."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuyard.cli.jobs.cancel import describe_cancelled
from gpuyard.cli.jobs.show import sentences
from gpuyard.cli.jobs.top import frames
from gpuyard.cli.jobs.top.daemon_feed import CommandRunner, Feed, LogFeed, LogPiece, Wanted, earlier
from gpuyard.cli.jobs.top.keys import Command, press
from gpuyard.cli.jobs.top.view_state import MOST, PIECE, Model, Panel, Snapshot, lay_out, settle
from gpuyard.cli.terminal.full_screen import FullScreen, full_screen

if TYPE_CHECKING:
    from gpuyard.client.client import Client


def run(client: Client, model: Model, interval: float) -> None:
    """Show GPUs and jobs until `q` or Ctrl-C."""
    with full_screen("gpuyard ps") as screen:
        Top(client, model, interval, screen).run()


class Top:
    def __init__(self, client: Client, model: Model, interval: float, screen: FullScreen) -> None:
        self._client, self._model, self._screen = client, model, screen
        self._feed, self._runner = Feed(client, interval), CommandRunner()
        self._log: LogFeed | None = None
        self._drawn = 0.0

    def run(self) -> None:
        self._feed.start()
        news = True
        while True:
            self._model.ticks = time.monotonic()
            news = self._take_in() or news
            self._model.width, self._model.height = self._screen.size
            settle(self._model)
            self._feed.want(self._wanted())
            if news or self._model.ticks - self._drawn >= 1.0:
                self._draw()
            key = self._screen.key()
            news = bool(key)
            if key and not self._handle(key):
                return

    def _handle(self, key: str) -> bool:
        """Act on a key; False ends the loop."""
        if key == "redraw":
            return True
        if key == "clear":
            self._model.typed, key = "", "backspace"
        self._model.ticks = time.monotonic()
        for command in press(self._model, key):
            if command.verb == "quit":
                return False
            self._carry_out(command)
        return True

    def _carry_out(self, command: Command) -> None:
        client, id, model = self._client, command.id, self._model
        if command.verb == "log":
            self._close_log()
            self._log = LogFeed(client, id, PIECE)
        elif command.verb == "close":
            self._close_log()
        elif command.verb == "earlier":
            start = model.log.start if model.log else 0
            self._runner.do(lambda: earlier(client, id, start, MOST if command.step else PIECE))
        elif command.verb == "explain":
            self._runner.do(lambda: Panel(f"Job {id}", sentences(client.explain(id))))
        else:
            self._runner.do(self._change(command))

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

    def _take_in(self) -> bool:
        """Take what the threads have found; whether there was anything."""
        sources: list[tuple[queue.SimpleQueue[Any], Callable[[Any], None]]] = [
            (self._feed.news, self._take_snapshot),
            (self._runner.done, self._take_result),
        ]
        if self._log is not None:
            sources.append((self._log.pieces, self._take_piece))
        news = False
        for source, take in sources:
            while not source.empty():  # only this thread takes anything out
                take(source.get())
                news = True
        return news

    def _take_snapshot(self, found: Snapshot | str) -> None:
        model = self._model
        if isinstance(found, str):
            model.unreachable_since = model.unreachable_since if model.unreachable else model.ticks
            model.unreachable = found
        else:
            model.show(found)

    def _take_result(self, found: Any) -> None:
        if isinstance(found, Panel):
            if self._model.mode == "lists":  # the user may have left the lists meanwhile
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
        if piece.restarted:
            log.restart()
        elif piece.start is None:
            log.append(piece.data)
        elif log.count() == 0:
            log.start = piece.start
            log.append(piece.data)
        else:
            log.prepend(piece.data, piece.start)

    def _wanted(self) -> Wanted:
        """The rows on the screen, and as many before and after them: the next page is there without a wait."""
        model = self._model
        lists = lay_out(model).lists
        rows = {name: max(lists.get(name, 0), 20) for name in ("running", "waiting")}
        first = {name: max(0, model.places[name].top // 50 * 50 - 2 * rows[name]) for name in rows}
        user = model.user if model.mine else None
        running = (0, 500) if model.places["running"].top < 400 else (first["running"], 500)
        return Wanted(model.filter, user, running, (first["waiting"], 50 + 5 * rows["waiting"]))

    def _draw(self) -> None:
        self._drawn = self._model.ticks
        self._screen.draw(frames.frame(self._model, self._screen.bars))


def toggle_hold(client: Client, id: str) -> str:
    if client.job(id)["state"] == "held":
        client.release(id)
        return "released"
    client.hold(id)
    return "held"


def set_priority(client: Client, id: str, step: float) -> float:
    """Raise or lower the priority; returns the new one."""
    priority = client.job(id)["priority"] + step
    client.edit(id, priority=priority)
    return priority
