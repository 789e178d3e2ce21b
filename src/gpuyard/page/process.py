"""The page's process: it gives up root, ends with the daemon, and serves on a given socket."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading

import uvicorn
from starlette.types import ASGIApp


def end_with_daemon() -> None:
    """End when the daemon does: stdin is a pipe from it, unless this was started at a terminal."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_wait_for_end, name="lifeline", daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


log = logging.getLogger("gpuyard.page")
NOBODY = 65534
_VARIABLE = "GPUYARD_PAGE_USER"


def drops_root() -> bool:
    return os.environ.get(_VARIABLE) == "nobody" and os.geteuid() == 0


def drop_root() -> None:
    if not drops_root():
        return
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    missing = next((path for path in _needed() if not _can_read(path)), None)
    os.seteuid(0)
    os.setegid(0)
    if missing is not None:
        log.warning(
            "the page's process stays root's, since nobody may not read %s; install gpuyard where everybody may",
            missing,
        )
        return
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _needed() -> list[str]:
    """Python, and one file per place that modules come from, since later imports come from there as well."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("os", "gpuyard", "nicegui", "numpy"))
    return [os.path.realpath(sys.executable), *(file for file in files if file)]


def _can_read(path: str) -> bool:
    try:
        os.listdir(os.path.dirname(path))
        with open(path, "rb"):
            return True
    except OSError:
        return False


_GC_THRESHOLDS = 20_000, 20, 50


def prepare() -> None:
    """Set up logging and disable NiceGUI's storage. Call before NiceGUI is imported."""
    logging.basicConfig(level=logging.WARNING, format="page: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(_is_relevant)
    os.environ["NICEGUI_STORAGE_PATH"] = "/nonexistent"  # nothing is stored; the default is the working directory


def _is_relevant(record: logging.LogRecord) -> bool:
    """False if a browser left before its answer, which starlette logs as a failure."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "No response returned.")


def serve(listening: int, app: ASGIApp) -> None:
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=1, ws_max_size=2**20, ws_per_message_deflate=False,
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    with socket.socket(fileno=listening) as listener:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
