"""What all routes are given: the daemon, its commands, settings, permissions, and readers of its store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuyard.config import Settings
from gpuyard.daemon.commands import Commands
from gpuyard.daemon.jobs.progress_reader import ProgressReader
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.reader import Reader
from gpuyard.server.auth.permissions import Permissions
from gpuyard.server.stream.streams import Streams, Watch


@dataclass(frozen=True, slots=True)
class Context:
    """What the routes of one daemon share. Lives in the event loop, where `watch` is."""

    daemon: Daemon
    commands: Commands
    settings: Settings
    permissions: Permissions
    progress: ProgressReader
    watch: Watch = field(default_factory=Watch)
    streams: Streams = field(default_factory=Streams)
    _local: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, daemon: Daemon, settings: Settings) -> Context:
        progress = ProgressReader(daemon.engine, settings.data_dir / "work")
        return cls(daemon, daemon.commands, settings, Permissions(settings), progress)

    async def ask(self, command: Callable[[], Any]) -> Any:
        """Run a change in the daemon's thread; returns when its events are on disk."""
        return await asyncio.wrap_future(self.daemon.ask(command))

    async def look(self, command: Callable[[], Any]) -> Any:
        """Run something that changes nothing in the daemon's thread."""
        return await asyncio.wrap_future(self.daemon.ask(command, changes=False))

    @property
    def reader(self) -> Reader:
        if not hasattr(self._local, "reader"):
            self._local.reader = Reader(self.settings.database)
        reader: Reader = self._local.reader
        return reader
