"""A real terminal for programs that take the whole screen: tmux, in which a test types and reads."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.yard import until

_REVERSE = re.compile(r"\x1b\[(?:\d+;)*7m(?:\x1b\[\d+m)*([^\x1b\n]*)")


class Terminal:
    """A terminal of some size in which a command runs."""

    def __init__(self, folder: Path, command: str, environment: Mapping[str, str], width: int, height: int) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("no tmux to drive a terminal with; apt-get install tmux")
        self._tmux = ["tmux", "-u", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._environment = {**environment, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"}
        self._ask("new-session", "-d", "-x", str(width), "-y", str(height), f"trap : INT; {command}; exec cat")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("kill-server")

    def type(self, *keys: str) -> None:
        """Press keys, by the names that tmux has for them."""
        self._ask("send-keys", *keys)

    def write(self, text: str) -> None:
        """Press the keys of a text."""
        self._ask("send-keys", "-l", text)

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        self._ask("resize-window", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        """What is on the screen."""
        return self._ask("capture-pane", "-p").split("\n")[:-1]

    def shows(self, *texts: str) -> list[str]:
        """Wait until all of these are on the screen; its lines."""
        found: list[str] = []

        def seen() -> bool:
            found[:] = self.lines()
            return all(text in "\n".join(found) for text in texts)

        try:
            until(seen, f"{texts} on the screen")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *found])) from None
        return found

    def hides(self, text: str) -> None:
        """Wait until a text is no longer on the screen."""
        until(lambda: text not in "\n".join(self.lines()), f"the end of {text!r} on the screen")

    def selected(self) -> str:
        """What is written in reverse video."""
        found = _REVERSE.search(self.coloured())
        return found[1].strip() if found else ""

    def coloured(self) -> str:
        """What is on the screen, with the codes that make it look so."""
        return self._ask("capture-pane", "-p", "-e")

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout
