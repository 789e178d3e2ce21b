"""The yard of a demonstration: it is there for as long as it is looked at."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.cli import output
from gpuyard.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.client import Client

GPUS = 8
MEMORY = "16G"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def yard(tokens: str = "auto") -> Iterator[tuple[Client, Path]]:
    """A daemon in a directory of its own; both are gone in the end, and so is every job, whatever happens."""
    from gpuyard.cli.up import Rules, start
    from gpuyard.cli.yard import Here
    from gpuyard.client import Client

    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-demo-"))
    os.environ |= {"GPUYARD_SINGLE_USER": "true", "GPUYARD_PAGE": "on"}  # the daemon's: nobody else is invited
    gpus = f"{GPUS}x{MEMORY}"
    rules = Rules(gpus, "priority", "easy", "pack", bind="127.0.0.1", port="0", tokens=tokens)
    settings = Here(str(folder), str(folder / "gpuyard.sock")).settings(**rules.flags())
    client = Client(settings.socket)
    try:
        start(settings, client, rules)
        yield client, folder
    except KeyboardInterrupt:
        output.say("interrupted: the jobs and the daemon are ended")
        raise SystemExit(130) from None
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        _clear(client)
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear(client: Client) -> None:
    """End what still runs, and the daemon."""
    from gpuyard.cli.up import stop
    from gpuyard.client import NoDaemon, Refused

    with suppress(GpuyardError, TimeoutError):  # whatever becomes of the jobs, the daemon has to go
        left = client.jobs()
        for job in reversed(left):  # those that wait come first: they would take the place of the others
            with suppress(Refused):  # it is over by now
                client.cancel(job["id"], grace=1.0)
        for job in left:
            client.wait(job["id"], timeout=30.0)
    with suppress(NoDaemon):
        stop(client)
