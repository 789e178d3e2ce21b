"""`python -m gpuyard.page --fd N --socket PATH`: serve the page on a socket that the daemon listens at."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.page import dropping, lifeline
from gpuyard.unixhttp import reachable

if TYPE_CHECKING:
    from fastapi import FastAPI

_CYCLES = 20_000, 20, 50


def _matters(record: logging.LogRecord) -> bool:
    """Whether a line is worth it: that a browser left before its answer is no failure, which starlette takes it for."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "No response returned.")


def _go_first() -> None:
    """Where memory runs out, let this end, and what it has started, before any job and the daemon: it comes back."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="gpuyard.page", description="The process of gpuyard's page.")
    parser.add_argument("--fd", type=int, required=True, help="The listening socket, inherited from the daemon.")
    parser.add_argument("--socket", required=True, help="Where the daemon listens.")
    parser.add_argument("--traces", default="", help="A folder of traces, to be simulated by who looks.")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="page: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(_matters)
    os.environ["NICEGUI_STORAGE_PATH"] = "/nonexistent"  # it keeps nothing; else it would look where it was started

    _go_first()
    lifeline.hold()

    from gpuyard.page.app import make_app

    with reachable(given.socket) as daemon:  # whose path may be too long for an address, for as long as this lives
        _serve(given.fd, make_app(daemon, given.traces))


def _serve(listening: int, app: FastAPI) -> None:
    import uvicorn

    from gpuyard.page.simulations import places

    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=1, ws_max_size=2**20, ws_per_message_deflate=False,
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_CYCLES)
    if dropping.is_due():
        places.make_cache(dropping.NOBODY)
    dropping.drop()
    with socket.socket(fileno=listening) as listener:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
