"""What a job that comes in is known by: its signature, for which its script is read, in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

from gpuyard.config import Settings
from gpuyard.daemon.fingerprints import Fingerprints, digest_of
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.profiles import TAG
from gpuyard.server.permissions import Caller
from gpuyard.signatures import script_of, sign


class Signing:
    """Signs jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._prints = settings, Fingerprints()

    async def __call__(self, wanted: Sequence[Wanted], caller: Caller) -> list[Wanted]:
        """Jobs of somebody, each with its signature."""
        return await asyncio.to_thread(lambda: [self.signed(one, self.content(one, caller)) for one in wanted])

    def content(self, one: Wanted, caller: Caller) -> str:
        """A hash of what a job's script holds; empty if that cannot be told. Not for the yard's thread."""
        if one.script:
            return digest_of(one.script)
        return self.read(one.work.command, one.work.directory, caller)

    def read(self, command: Sequence[str], directory: str, caller: Caller) -> str:
        """A hash of what the script of a command holds, as far as somebody may read it; not for the yard's thread."""
        script = script_of(command)
        uid = caller.uid if self._settings.shared else None
        return self._prints.of(os.path.join(directory, script), uid) if script else ""

    def signed(self, one: Wanted, content: str) -> Wanted:
        """A job with its signature."""
        work = one.work
        tags = [tag for tag in work.tags if tag != TAG]
        found = sign(
            work.command, directory=work.directory, content=content, user=one.request.user, tags=tags,
            gpus=one.request.gpus,
        )  # fmt: skip
        return replace(one, work=replace(work, signature=found.exact, likeness=found.likeness))
