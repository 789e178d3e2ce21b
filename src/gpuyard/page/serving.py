"""How pages are served: by a process that is told which socket to listen at, and says little."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket

import uvicorn
from starlette.types import ASGIApp

_CYCLES = 20_000, 20, 50


def prepare() -> None:
    """To be called before NiceGUI is imported: what is logged, and that nothing is stored."""
    logging.basicConfig(level=logging.WARNING, format="page: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(_matters)
    os.environ["NICEGUI_STORAGE_PATH"] = "/nonexistent"  # it keeps nothing; else it would look where it was started


def _matters(record: logging.LogRecord) -> bool:
    """Whether a line is worth it: that a browser left before its answer is no failure, which starlette takes it for."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "No response returned.")


def serve(listening: int, app: ASGIApp) -> None:
    """Serve at a listening socket until told to end."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=1, ws_max_size=2**20, ws_per_message_deflate=False,
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_CYCLES)
    with socket.socket(fileno=listening) as listener:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
