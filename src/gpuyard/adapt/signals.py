"""Signals that a training heeds between its steps, never within one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_CODE = 75  # exit code of an interrupted process that can be resumed (EX_TEMPFAIL of sysexits.h)


class Interrupted(SystemExit):
    """The training was told to end, has written its checkpoint, and goes on from there when it is begun again.

    Nobody need catch it: the process then ends with code 75 and without a traceback.
    """

    def __init__(self, why: str) -> None:
        super().__init__(EXIT_CODE)
        self.why = why

    def __str__(self) -> str:
        return self.why


class Signals:
    """While entered, SIGTERM asks to end and SIGUSR1 asks for a checkpoint; both only leave a note of it.

    In a job of gpuyard SIGUSR1 is what the job chose to be preempted by (`--signal USR1`), and asks to end, too.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.end = ""  # why to end; empty without a request
        self.save = False  # whether a checkpoint was requested
        self.any = False  # whether any signal came
        self._in_job = bool((os.environ if environment is None else environment).get("GPUYARD_JOB_ID"))
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows it in no other
            for number in (signal.SIGTERM, signal.SIGUSR1):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM or self._in_job:
            self.end = f"got {signal.Signals(number).name}"
        self.save = self.any = True

    def saved(self) -> None:
        self.save = False
        self.any = bool(self.end)
