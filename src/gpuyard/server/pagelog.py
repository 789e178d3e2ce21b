"""What the page's process says, in the daemon's log: without secrets, and never so much that it fills a disk."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import IO

log = logging.getLogger("gpuyard")
_LONGEST = 2000  # characters of a line
_BURST, _REFILL = 500.0, 1.0  # lines: so many at once, and so many a second


class PageLog:
    """Reads lines, and writes them down."""

    def __init__(self) -> None:
        self._left, self._since = _BURST, time.monotonic()
        self._passed_over = 0

    async def read(self, stream: IO[bytes]) -> None:
        """All that comes, until its end."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stream
        )
        rest = b""
        try:
            while data := await reader.read(2**14):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:_LONGEST]
                for line in lines:
                    self.tell(line)
            self.tell(rest)
        finally:
            transport.close()

    def tell(self, line: bytes) -> None:
        """Write a line down, if there were not too many of late."""
        text = line.decode(errors="replace").rstrip()[:_LONGEST].removeprefix("page: ")
        if not text:
            return
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._since) * _REFILL)
        self._since = now
        if self._left < 1.0:
            self._passed_over += 1
            return
        self._left -= 1.0
        if self._passed_over:
            log.info("page: (%d more lines)", self._passed_over)
            self._passed_over = 0
        log.info("page: %s", text)
