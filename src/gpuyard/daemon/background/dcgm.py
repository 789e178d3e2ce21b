"""Which jobs are on which GPU, in files that dcgm-exporter reads, so that its series carry our jobs' ids.

`dcgm-exporter --hpc-job-mapping-dir=FOLDER` takes each file there that is named by a number for that GPU, and each line
of it for a job, as other schedulers' prologs write them. A thread of its own writes them, so that no job waits for a
disk; MIG devices have no number of their own there, and are left out.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuyard.core.events import Exited, Placed, Preempted, Requeued
from gpuyard.daemon.context import BackgroundThread, Context
from gpuyard.daemon.store.records import Record
from gpuyard.errors import GpuyardError
from gpuyard.files import replacing

_MODES = 0o755, 0o644  # others read them, whatever our umask is


class JobMapping(BackgroundThread):
    """Its files stay when it stops, since jobs go on."""

    def __init__(self, context: Context, folder: str) -> None:
        super().__init__("dcgm")
        self._context = context
        self._folder = Path(folder).expanduser()
        self._wanted = bool(folder)
        self._written: dict[int, str] = {}

    def start(self) -> None:
        """Start the thread, if a folder is set."""
        if self._wanted:
            self._context.listeners.append(self._heard)
            super().start()

    def write(self) -> None:
        devices = [device for device in self._context.machine.gpus.devices if not device.uuid.startswith("MIG-")]
        running = [view for view in list(self._context.store.open.values()) if view.state == "running"]
        _provide(self._folder)
        for device in devices:
            text = "".join(f"{view.id}\n" for view in running if device.index in view.gpus)
            if self._written.get(device.index) != text:
                with replacing(self._folder / str(device.index), durable=False) as draft:
                    draft.write_text(text)
                    draft.chmod(_MODES[1])
                self._written[device.index] = text

    def _step(self) -> None:
        try:
            self.write()
        except OSError as error:
            why = f"dcgm_job_mapping: {self._folder} cannot be written ({error.strerror or error}); jobs go on"
            raise GpuyardError(why) from error

    def _heard(self, records: list[Record]) -> None:
        """Called by the loop's thread."""
        if any(isinstance(record.event, Placed | Exited | Preempted | Requeued) for record in records):
            self._wake.set()


def _provide(folder: Path) -> None:
    """Make a folder that everybody may read; an existing one stays as it is."""
    if folder.is_dir():
        return
    if folder != folder.parent:
        _provide(folder.parent)
    folder.mkdir(mode=_MODES[0], exist_ok=True)
    # our umask took away what others need; no link is followed, should one have been put there meanwhile
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, _MODES[0])
    finally:
        os.close(descriptor)
