"""Answers of the daemon's thread on their way to the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
from tests.yard import PATIENCE

from gpuyard.daemon.context import Inbox
from gpuyard.errors import UserError
from gpuyard.server.context import ASKER, Answers, RequestThreads


def test_all_answers_of_a_turn_wake_the_event_loop_once() -> None:
    async def ask() -> tuple[list[Any], int]:
        answers, asked = Answers(), [Future[int]() for _ in range(5)]
        waiting = [asyncio.ensure_future(answers.wait(one)) for one in asked]
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        with mock.patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe) as woken:
            for number, one in enumerate(asked):
                one.set_result(number)
        return await asyncio.gather(*waiting), woken.call_count

    assert asyncio.run(ask()) == ([0, 1, 2, 3, 4], 1)


def test_an_answer_may_come_before_anybody_waits_and_after_others() -> None:
    async def ask() -> list[Any]:
        answers, found = Answers(), []
        for number in range(3):
            one = Future[int]()
            one.set_result(number)
            found.append(await answers.wait(one))
        return found

    assert asyncio.run(ask()) == [0, 1, 2]


def test_a_refusal_is_raised_and_the_others_have_their_answers() -> None:
    async def ask() -> list[Any]:
        answers, bad, good = Answers(), Future[int](), Future[int]()
        waiting = [asyncio.ensure_future(answers.wait(one)) for one in (bad, good)]
        await asyncio.sleep(0)
        bad.set_exception(UserError("no"))
        good.set_result(1)
        return await asyncio.gather(*waiting, return_exceptions=True)

    refused, answered = asyncio.run(ask())
    assert isinstance(refused, UserError)
    assert answered == 1


def test_who_stops_waiting_withdraws_the_request() -> None:
    async def ask() -> list[bool]:
        answers, begun, other = Answers(), Future[int](), Future[int]()
        begun.set_running_or_notify_cancel()
        waiting = [asyncio.ensure_future(answers.wait(one)) for one in (begun, other)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        for gone in waiting:
            with pytest.raises(asyncio.CancelledError):
                await gone
        begun.set_result(1)  # nobody waits for it any more, and that is no error
        await asyncio.sleep(0)
        return [begun.cancelled(), other.cancelled()]

    assert asyncio.run(ask()) == [False, True]


def test_requests_that_come_together_ring_once_and_later_ones_again() -> None:
    inbox = Inbox()
    first = [inbox.put(lambda n=n: n, True) for n in range(3)]  # type: ignore[misc]
    assert os.eventfd_read(inbox.fileno()) == 1
    assert [value for _, value in inbox.hear("")] == [0, 1, 2]
    assert all(one.running() for one in first)
    inbox.put(lambda: 4, True)
    assert os.eventfd_read(inbox.fileno()) == 1
    assert [value for _, value in inbox.hear("")] == [4]
    assert inbox.hear("") == []


def test_changes_of_one_turn_of_the_event_loop_reach_the_daemon_together() -> None:
    async def ask() -> tuple[list[int], list[Any]]:
        answers, inbox = Answers(), Inbox()
        waiting = [asyncio.ensure_future(answers.to_change(inbox, lambda n=n: n)) for n in range(3)]  # type: ignore[misc]
        sizes = [len(inbox)]
        asyncio.get_running_loop().call_soon(lambda: sizes.append(len(inbox)))  # after all three have asked
        while not len(inbox):
            await asyncio.sleep(0)
        sizes.append(len(inbox))
        for answer, value in inbox.hear(""):
            answer.set_result(value)
        return sizes, await asyncio.gather(*waiting)

    assert asyncio.run(ask()) == ([0, 0, 3], [0, 1, 2])


def test_a_later_change_is_handed_over_too() -> None:
    async def ask() -> list[Any]:
        answers, inbox, found = Answers(), Inbox(), []
        for n in range(2):
            waiting = asyncio.ensure_future(answers.to_change(inbox, lambda n=n: n))  # type: ignore[misc]
            while not len(inbox):
                await asyncio.sleep(0)
            for answer, value in inbox.hear(""):
                answer.set_result(value)
            found.append(await waiting)
        return found

    assert asyncio.run(ask()) == [0, 1]


def test_who_waits_for_a_request_that_is_withdrawn_waits_no_longer() -> None:
    async def ask() -> bool:
        answers, withdrawn = Answers(), Future[int]()
        waiting = asyncio.ensure_future(answers.wait(withdrawn))
        await asyncio.sleep(0)
        withdrawn.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(ask())


def test_one_user_has_few_threads_and_another_need_not_wait_for_them() -> None:
    threads, go, begun = RequestThreads(), threading.Event(), threading.Semaphore(0)

    def read(what: str) -> str:
        begun.release()
        assert go.wait(PATIENCE)
        return what

    def ask(user: str, act: Callable[..., Any], *arguments: Any) -> Future[Any]:
        ASKER.set(user)
        return threads.submit(act, *arguments)

    context = contextvars.copy_context()
    found = [context.run(ask, "ann", read, f"{n}") for n in range(50)]
    begun.acquire(timeout=PATIENCE)
    begun.acquire(timeout=PATIENCE)
    assert context.run(ask, "bob", str, 7).result(PATIENCE) == "7"
    assert not begun.acquire(blocking=False), "two of one user at once"
    assert found[-1].cancel()
    go.set()
    assert [one.result(PATIENCE) for one in found[:-1]] == [f"{n}" for n in range(49)]
    with pytest.raises(ZeroDivisionError):
        context.run(ask, "ann", lambda: 1 / 0).result(PATIENCE)
    threads.shutdown()
    assert not threads._waiting, "nothing is kept of users who ask for nothing"
