"""Signals that end a program, heard like Ctrl-C, so that there is time to clear up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def interruptible() -> Iterator[Callable[[Handler], None]]:
    """Signals raise KeyboardInterrupt, until what this yields is called with a handler for the time of clearing up.

    Ignored signals stay ignored. Only the main thread can hear any; in others nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    heard = [number for number in SIGNALS if main and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}

    def handle(handler: Handler) -> None:
        for number in heard:
            signal.signal(number, handler)

    try:
        yield handle
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
