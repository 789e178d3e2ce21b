"""What happens in a training, as plain values: kept, told to whoever listens, and written a line each."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuyard.errors import UserError

Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """The events of one training. `history` is part of its state; what concerns only this process is not in it."""

    def __init__(self, path: str | os.PathLike[str] | None = None, listeners: Sequence[Listener] = ()) -> None:
        self.history: list[Event] = []
        self._path = None if path is None else Path(path)
        self._listeners = list(listeners)
        self._lines = 0

    def tell(self, event: Event, *, passing: bool = False) -> None:
        """Something happened; `passing` says that it is no part of the training itself, such as a checkpoint."""
        if passing:
            event = {**event, "passing": True}
        else:
            self.history.append(event)
        if self._path is not None:
            self._write("a", [event])
        for listener in self._listeners:
            listener(event)

    def state(self) -> dict[str, Any]:
        return {"history": [_plain(event) for event in self.history], "lines": self._lines}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there: what a file has beyond was told by a run that went on without being saved."""
        self.history = [dict(event) for event in state["history"]]
        if self._path is None:
            return
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        if len(lines) >= state["lines"] > 0:
            lines = lines[: state["lines"]] + [line for line in lines[state["lines"] :] if _is_passing(line)]
            self._path.write_text("".join(f"{line}\n" for line in lines))
            self._lines = len(lines)
        else:
            self._lines = 0
            self._write("w", self.history)

    def _write(self, mode: str, events: Sequence[Event]) -> None:
        assert self._path is not None
        try:
            if mode == "a" and self._lines == 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.exists() and self._path.stat().st_size:
                    raise UserError(f"{self._path} is there already; events go to a new file, or move that one away")
            with self._path.open(mode) as file:
                file.writelines(json.dumps(_plain(event)) + "\n" for event in events)
        except OSError as error:
            raise UserError(f"no events can be written to {self._path}: {error.strerror}") from None
        self._lines += len(events)


def _is_passing(line: str) -> bool:
    """Whether a line tells of what did happen, although the training went back; half a line tells nothing."""
    try:
        return bool(json.loads(line).get("passing"))
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    """As JSON has it: what is unknown is null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
