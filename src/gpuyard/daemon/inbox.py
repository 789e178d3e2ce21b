"""Requests of other threads to the loop's thread, and the event that wakes it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from gpuyard.daemon.store.log import StoreFailing


class Inbox:
    """Requests in order of arrival, and an eventfd that wakes the loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], bool, Future[Any]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __len__(self) -> int:
        return len(self._waiting)

    def fileno(self) -> int:
        return self._bell

    def ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def put(self, command: Callable[[], Any], changes: bool) -> Future[Any]:
        answer: Future[Any] = Future()
        self._waiting.append((command, changes, answer))
        self.ring()
        return answer

    def hear(self, problem: str) -> list[tuple[Future[Any], Any]]:
        """Run the requests; answers wait for the write. With a problem, requests that change something are refused."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:  # nobody rang
            return []
        answers: list[tuple[Future[Any], Any]] = []
        while self._waiting:
            command, changes, answer = self._waiting.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                if problem and changes:
                    raise StoreFailing(problem)
                answers.append((answer, command()))
            except Exception as error:  # theirs to handle; a refusal has recorded nothing
                answer.set_exception(error)
        return answers
