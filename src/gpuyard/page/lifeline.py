"""This process ends with the daemon, however that ends: standard input is a pipe whose other end is the daemon's.

Nothing ever comes by it but its end. Unlike a signal at the parent's death this has no moment in which it can be
missed, and it ends what this process has started as well.
"""

from __future__ import annotations

import os
import signal
import stat
import threading


def hold() -> None:
    """End when the daemon does. Whoever starts this by hand, at a terminal, ends it themselves."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
