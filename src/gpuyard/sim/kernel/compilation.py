"""How far the compilation of a module is, and how long it will take: functions are counted as numba finishes them."""

from __future__ import annotations

import ast
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuyard.sim.kernel.compiler import cache_home, path_of, reachable, title_of


class Compilation:
    """The compilation of a module, as far as it has got."""

    def __init__(self, name: str, source: str, entry: str) -> None:
        self.entry, self._folder, self._title = entry, path_of(name, source).parent, title_of(name, source)
        functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        self._calls = {one: reachable(one, functions) for one in functions}
        self._work = {one: sum(1 for _ in ast.walk(node)) for one, node in functions.items()}
        self._finished, self.now = set[str](), "the policy"
        self._began = time.monotonic()
        self.total, self.expected = len(functions), sum(self._work.values()) * _seconds_per_node()

    def __enter__(self) -> Compilation:
        from numba.core import event

        class Listener(event.Listener):  # type: ignore[misc]
            def on_start(listener, event: Any) -> None:  # noqa: N805
                function = event.data["dispatcher"].py_func
                if function.__module__ == self._title:
                    self.now = function.__name__.removeprefix("_")

            def on_end(listener, event: Any) -> None:  # noqa: N805
                function = event.data["dispatcher"].py_func
                if function.__module__ == self._title:
                    self._finished.add(function.__name__)

        self._listener = Listener()
        event.register("numba:compile", self._listener)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from numba.core import event

        event.unregister("numba:compile", self._listener)
        if kind is None and self.entry in self._finished:
            self._clean_up()

    def _clean_up(self) -> None:
        """Note the speed of this machine, and remove what an interrupted compilation would have needed."""
        if not self._loaded():
            with suppress(OSError):
                _pace_file().write_text(f"{self.seconds / sum(self._work.values()):.3g}")
        for path in (self._folder / "__pycache__").glob("*.nb[ci]"):
            if f".{self.entry}-" not in path.name:
                path.unlink(missing_ok=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def _loaded(self) -> set[str]:
        from gpuyard.sim.kernel.references import LOADED

        return {name for title, name in LOADED.copy() if title == self._title}

    def done(self) -> set[str]:
        return self._finished.copy().union(*(self._calls[name] for name in self._loaded()))

    def left(self) -> float:
        """Seconds that it will still take, roughly; a fifth of the time goes into optimising all of it at the end."""
        part = 0.8 * sum(self._work[name] for name in self.done()) / sum(self._work.values())
        if part < 0.2:
            return max(self.expected - self.seconds, 1.0)
        return self.seconds * (1.0 - part) / part


def _seconds_per_node() -> float:
    """How long this machine takes to compile a node of a syntax tree: as the last time, else by its speed."""
    try:
        return float(_pace_file().read_text())
    except (OSError, ValueError):
        return 0.8 * min(_loop_seconds() for _ in range(5))


def _loop_seconds() -> float:
    began, table = time.perf_counter(), dict[int, int]()
    for i in range(10_000):
        table[i & 1023] = table.get(i & 1023, 0) + i
    return time.perf_counter() - began


def _pace_file() -> Path:
    return cache_home() / "kernel" / "seconds_per_node"
