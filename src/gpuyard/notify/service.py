"""Notifications in the daemon: the thread that reads the event log and sends, and what the routes ask for."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from gpuyard.config import Settings, retry_delays
from gpuyard.daemon.context import BackgroundThread
from gpuyard.errors import UserError
from gpuyard.notify.messages import (
    LogReader,
    Sources,
    Trigger,
    body_of,
    check_template,
    long_waits,
    message_of,
    title_of,
    triggers,
    waiting_since,
)
from gpuyard.notify.outbox import DELIVERED, GIVEN_UP, Delivery, Outbox, Subscription
from gpuyard.notify.sender import MessageSender, OutgoingMessage, Stopped, uses_mail_server
from gpuyard.notify.subscriptions import (
    ALL,
    DEFAULT_EVENTS,
    LONG_WAIT,
    MOST_DESTINATIONS,
    NONE,
    REMOVED,
    START,
    TASKS,
    TEST,
    check_events,
    check_name,
    check_url,
    is_url,
    mask,
)

log = logging.getLogger("gpuyard")
Tried = TypeVar("Tried")
_PAUSE = 0.1  # seconds between two looks, so that a busy yard is looked at ten times a second at most
_IDLE = 30.0
_LAG = 1000  # events without news that are looked at again after a crash
_PRUNE = 6 * 3600.0
_OLD = 86400.0  # seconds after which events are not sent any more, and deliveries are dropped
_AT_ONCE, _OF_A_USER, _PARCELS = 4, 2, 20
"""Processes that send at the same time, of one user, and what each takes along."""


class Dispatcher(BackgroundThread):
    retry = 5.0

    def __init__(self, sources: Sources, outbox: Outbox, sender: MessageSender, delays: Sequence[float]) -> None:
        super().__init__("notices")
        self._sources, self._outbox, self._sender, self._delays = sources, outbox, sender, delays
        self._reading: LogReader | None = None
        self._senders = ThreadPoolExecutor(_AT_ONCE, "notices-send")
        self._lock = threading.Lock()
        self._busy: set[int] = set()  # subscriptions that something is being sent for
        self._under_way: list[str] = []  # a user for each process that sends
        self._wanted = True
        self._seq: int | None = None
        self._kept = 0  # how far the log has been looked at, by what is written down
        self._waits_at = self._prune_at = 0.0

    def committed(self, records: object) -> None:
        """Called by the loop's thread, so it must be quick."""
        if self._wanted:
            self._wake.set()

    def ring(self) -> None:
        self._wanted, self._waits_at = True, 0.0
        self._wake.set()

    def stop(self, patience: float = 2.0) -> None:
        """Stop; what is being sent may take a little longer, and is sent again by the next daemon if it does."""
        self._over.set()
        self._wake.set()
        end = time.monotonic() + patience
        while self._under_way and time.monotonic() < end:
            time.sleep(0.02)
        self._sender.stop()
        self._senders.shutdown(wait=True, cancel_futures=True)
        super().stop()

    def _end(self) -> None:
        if self._seq is not None:
            self._keep(self._seq, [])
        if self._reading is not None:
            self._reading.close()

    def _step(self) -> float:
        self._reading = self._reading or LogReader(self._sources.database)
        self._turn(self._reading, time.time())
        self._over.wait(_PAUSE)
        return self._timeout()

    def _turn(self, reading: LogReader, now: float) -> None:
        subscriptions = self._outbox.subscriptions()
        self._wanted = bool(subscriptions)
        self._look(reading, subscriptions, now)
        self._look_for_waits(subscriptions, now)
        self._hand_over(now, {one.id: one for one in subscriptions})
        if now >= self._prune_at:
            self._prune_at = now + _PRUNE
            self._outbox.prune(now, set(self._needed()))

    def _timeout(self) -> float:
        """Seconds until something is due by itself; the end of a sending process rings."""
        now = time.time()
        due = [now + (1.0 if self._busy else _IDLE)]
        if self._wanted:
            due.append(self._waits_at)
        if not self._busy and (waiting := self._outbox.next_due()) is not None:
            due.append(waiting)
        return max(min(due) - now, 0.0)

    # -- what to send --------------------------------------------------------------------

    def _look(self, reading: LogReader, subscriptions: Sequence[Subscription], now: float) -> None:
        """Read what is new in the log; without subscriptions, only how far it is."""
        last = reading.last()
        if self._seq is None:
            kept = self._outbox.cursor()
            self._seq = last if kept is None else min(kept, last)  # a restored log may be shorter
            self._keep(self._seq, [])
        if not subscriptions:
            self._seq = last
            return
        while self._seq < last and not self._over.is_set():
            rows, seq = reading.after(self._seq)
            news = [row for row in rows if row.at > now - _OLD]
            found = triggers(reading, news)
            new = [one for happening in found for one in self._deliveries(happening, subscriptions)]
            if new or seq - self._kept >= _LAG:
                self._keep(seq, new)
            self._seq = seq

    def _keep(self, seq: int, new: Sequence[Delivery]) -> None:
        self._outbox.advance(seq, new)
        self._kept = seq

    def _look_for_waits(self, subscriptions: Sequence[Subscription], now: float) -> None:
        """Find jobs that have waited for long; once for each job."""
        if now < self._waits_at:
            return
        views = self._sources.open() if subscriptions else []
        named = any(LONG_WAIT in (view.work.get("notify_on") or ()) for view in views)
        limits = [one.long_wait for one in subscriptions if named or LONG_WAIT in one.events]
        self._waits_at = now + (min(max(min(limits) / 10, 0.2), 10.0) if limits else 10.0)
        if not limits:
            return
        for happening in long_waits(views, now, min(limits)):
            if new := self._deliveries(happening, subscriptions):
                self._outbox.advance(None, new)

    def _deliveries(self, happening: Trigger, subscriptions: Sequence[Subscription]) -> list[Delivery]:
        found = list(recipients(happening, subscriptions))
        if found and happening.event in (START, LONG_WAIT):  # which may come again, and are sent once
            told = self._outbox.told(happening.id, happening.event)
            found = [one for one in found if one.id not in told]
        if not found:
            return []
        try:
            story = message_of(happening, self._sources)
        except Exception:  # one bad message must not block the others
            log.exception("job %s cannot be told of", happening.id)
            return []
        return [
            Delivery(
                one.id, one.name, one.target, one.user, happening.id, happening.event, happening.at,
                title_of(story.facts, one.title), body_of(story.facts, one.body), story.fields, next=happening.at,
            )
            for one in found
        ]  # fmt: skip

    def _needed(self) -> Iterator[int]:
        """URLs given with jobs that are not over."""
        for view in self._sources.open():
            for ref in view.work.get("notify") or ():
                if ref.startswith("#"):
                    yield int(ref[1:])

    # -- sending ----------------------------------------------------------------------------------

    def _hand_over(self, now: float, subscriptions: Mapping[int, Subscription]) -> None:
        parcels: dict[tuple[str, bool], list[OutgoingMessage]] = {}
        with self._lock:  # before it is read what is due: who is freed after that may have been sent by then
            busy = set(self._busy)
        for one in self._outbox.due(now, _PARCELS):
            subscription = subscriptions.get(one.subscription)
            if subscription is None:
                self._outbox.failed(one.id, REMOVED, now, None)
            elif one.subscription not in busy:
                url = subscription.url
                parcels.setdefault((one.user, uses_mail_server(url)), []).append(OutgoingMessage(one, url))
        for (user, _), some in parcels.items():
            places = list(dict.fromkeys(parcel.url for parcel in some))[:MOST_DESTINATIONS]
            taken = [parcel for parcel in some if parcel.url in places][:_PARCELS]
            with self._lock:
                if len(self._under_way) >= _AT_ONCE or self._under_way.count(user) >= _OF_A_USER:
                    continue
                self._under_way.append(user)
                self._busy.update(parcel.delivery.subscription for parcel in taken)
            self._senders.submit(self._send, user, taken)

    def _send(self, user: str, parcels: list[OutgoingMessage]) -> None:
        left = Counter(parcel.delivery.subscription for parcel in parcels)

        def note(parcel: OutgoingMessage, error: str) -> None:
            self._note(parcel.delivery, error, time.time())
            subscription = parcel.delivery.subscription
            left[subscription] -= 1
            if error or not left[subscription]:  # what comes next may go there at once, by another process
                del left[subscription]
                self._free([subscription])

        try:
            self._sender.send(user, parcels, note)
        except Stopped:  # the next life sends it
            return
        except Exception as error:  # or its messages would wait for ever, unnoticed
            log.warning("notifications of %s cannot be sent now: %s", user, type(error).__name__)
            for parcel in parcels:
                if parcel.delivery.subscription in left:
                    self._note(parcel.delivery, f"{type(error).__name__}: {error}", time.time())
        finally:
            with self._lock:
                self._under_way.remove(user)
            self._free(left)

    def _free(self, subscriptions: Iterable[int]) -> None:
        with self._lock:
            self._busy.difference_update(subscriptions)
        self._wake.set()

    def _note(self, one: Delivery, error: str, now: float) -> None:
        """Store the result; other deliveries to a failed place wait as long as this one."""
        if not error:
            self._outbox.delivered(one.id, now)
            return
        again = self._again(one, now)
        self._outbox.failed(one.id, error, now, again)
        if again is not None:
            self._outbox.postpone(one.subscription, again)
        then = "given up" if again is None else f"tried again in {again - now:.0f} s"
        log.warning("a notification of job %s (%s) to %s failed: %s; %s", one.job, one.event, one.target, error, then)

    def _again(self, one: Delivery, now: float) -> float | None:
        """When to try again; None if that has been going on for a day."""
        delay = self._delays[min(one.attempts, len(self._delays) - 1)]
        return None if now + delay > one.at + _OLD else now + delay


def recipients(happening: Trigger, subscriptions: Sequence[Subscription]) -> Iterator[Subscription]:
    """The subscriptions of the job's owner that the job names, or all but those given with other jobs."""
    view = happening.view
    work: Mapping[str, Any] = view.work
    refs, events = tuple(work.get("notify") or ()), tuple(work.get("notify_on") or ())
    if NONE in refs:
        return
    for one in subscriptions:
        if one.user != view.user or one.created > happening.at or not is_named(one, refs):
            continue
        wanted = events or one.events
        if happening.event not in wanted:
            continue
        if happening.each is not None and happening.each is not (TASKS in wanted):
            continue
        if happening.event == LONG_WAIT and happening.at - waiting_since(view) < one.long_wait:
            continue
        yield one


def is_named(one: Subscription, refs: Sequence[str]) -> bool:
    """Whether a job that names these wants this one; a job without names wants all but those given with jobs."""
    if one.of_jobs:
        return f"#{one.id}" in refs
    return not refs or ALL in refs or one.name in refs


_MOST_REFS = 10
_MOST_ASKED, _ASKED_BY_ONE = 8, 2  # URLs that are tried out at the same time, and those of one user


class TooManyTrials(UserError):
    """The user has URLs tried out already."""


class Trials:
    """Tries URLs out: each takes a process, and up to a minute where a server is silent."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_ASKED, "notices-asked")
        self._users: list[str] = []  # one entry for each trial, also for one that waits for its turn
        self._lock = threading.Lock()

    def start(self, user: str, trial: Callable[[], Tried]) -> Future[Tried]:
        with self._lock:
            if self._users.count(user) >= _ASKED_BY_ONE:
                raise TooManyTrials(f"{_ASKED_BY_ONE} URLs of yours are being tried out; wait until that is done")
            self._users.append(user)
        started = self._pool.submit(trial)
        started.add_done_callback(lambda _: self._end(user))
        return started

    def _end(self, user: str) -> None:
        with self._lock:
            self._users.remove(user)

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class NotificationService:
    def __init__(self, settings: Settings, sources: Sources, own_port: int = 0) -> None:
        self.outbox = Outbox(settings.data_dir / "notices.db")
        self.mail = bool(settings.mail)  # whether an address is enough
        self._host = sources.host
        self._sender = MessageSender(settings, own_port)
        self._trials = Trials()
        self.dispatcher = Dispatcher(sources, self.outbox, self._sender, retry_delays(settings.notify_retry))

    def start(self) -> None:
        self.dispatcher.start()

    def stop(self) -> None:
        """Stop, within a few seconds whatever hangs."""
        self.dispatcher.stop()
        self._trials.stop()
        self.outbox.close()

    def subscribe(
        self,
        user: str,
        url: str,
        *,
        name: str = "",
        events: Sequence[str] | None = None,
        long_wait: float | None = None,
        title: str = "",
        body: str = "",
    ) -> Future[Subscription]:
        """Add a subscription; refused at once, or once apprise has checked the URL."""
        kept = check_url(url, mail=self.mail)
        wanted = DEFAULT_EVENTS if events is None else check_events(events)
        new = Subscription(0, user, check_name(name) if name else "", kept, wanted)
        new = replace(new, title=check_template(title), body=check_template(body))
        if long_wait is not None:
            new = replace(new, long_wait=long_wait)

        def add() -> Subscription:
            self._check(user, kept)
            named = new if new.name else replace(new, name=self._free_name(user, kept))
            added = self.outbox.add(named, time.time())
            self.dispatcher.ring()
            return added

        return self._trials.start(user, add)

    def unsubscribe(self, user: str, which: str) -> Subscription:
        return self.outbox.remove(user, which, time.time())

    def test(self, user: str, which: str) -> Future[Delivery]:
        found = self.outbox.subscription(user, which)
        return self._trials.start(user, lambda: self._test(found))

    def _test(self, one: Subscription) -> Delivery:
        said: list[str] = []
        trial = self._trial(one)
        self._sender.send(one.user, [OutgoingMessage(trial, one.url)], lambda parcel, error: said.append(error))
        return self._tried(trial, said[0])

    def _trial(self, one: Subscription) -> Delivery:
        title, body = (
            f"gpuyard: a test from {self._host}",
            f"This is what gpuyard on {self._host} sends to {one.name}.\n",
        )
        fields = {"event": TEST, "user": one.user, "host": self._host}
        return Delivery(one.id, one.name, one.target, one.user, "", TEST, time.time(), title, body, fields)

    def _tried(self, trial: Delivery, error: str) -> Delivery:
        state = GIVEN_UP if error else DELIVERED
        done = replace(trial, state=state, attempts=1, ended=time.time(), error=error, body="", fields={})
        self.outbox.advance(None, [done])
        return done

    def refs(self, user: str, given: Sequence[str]) -> tuple[str, ...]:
        """What a job stores of its subscriptions: names, and numbers in place of URLs.

        Nobody waits for the check of a new URL: it is made later, and `notifications` tells what is wrong with it.
        """
        if len(given) > _MOST_REFS:
            raise UserError(f"a job can be told of at {_MOST_REFS} places at most")
        if NONE in given and len(given) > 1:
            raise UserError("notify: none excludes everything else")
        urls = {text: check_url(text, mail=self.mail) for text in given if is_url(text)}
        names = {text: self.outbox.subscription(user, text).name for text in given if text not in (ALL, NONE, *urls)}
        return tuple(
            dict.fromkeys(self._number(user, urls[one]) if one in urls else names.get(one, one) for one in given)
        )

    def _number(self, user: str, url: str) -> str:
        now = time.time()
        found = self.outbox.of_jobs(user, url, now)
        if found is None:
            found = self.outbox.add(Subscription(0, user, "", url, of_jobs=True), now)
            self.dispatcher.ring()
            with suppress(TooManyTrials):  # then its first notification tells
                self._trials.start(user, lambda: self._look_at(found))
        return f"#{found.id}"

    def _look_at(self, new: Subscription) -> None:
        if problem := self._sender.check(new.user, new.url):
            self._tried(self._trial(new), problem)

    def _check(self, user: str, url: str) -> None:
        if problem := self._sender.check(user, url):
            raise UserError(
                f"{mask(url)} cannot be used: {problem}; docs/how-to/be-told.md shows how such URLs are written"
            )

    def _free_name(self, user: str, url: str) -> str:
        """A name for a subscription without one: its scheme, with a number if need be."""
        scheme = url.partition("://")[0]
        taken = {one.name for one in self.outbox.subscriptions(user)}
        return next(name for n in range(1, 1000) if (name := scheme if n == 1 else f"{scheme}-{n}") not in taken)
