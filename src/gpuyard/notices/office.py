"""Notifications as the daemon has them: what people may ask for, and the threads that see to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from gpuyard.config import Settings, retry_delays
from gpuyard.errors import UserError
from gpuyard.notices.clerk import Clerk
from gpuyard.notices.courier import Courier, Parcel
from gpuyard.notices.outbox import DELIVERED, GIVEN_UP, Delivery, Outbox, Subscription
from gpuyard.notices.story import Sources
from gpuyard.notices.templates import check_template
from gpuyard.notices.urls import check_url, is_url, mask
from gpuyard.notices.words import ALL, NONE, TEST, USUAL, check_events, check_name

_MOST_REFS = 10


class Office:
    """Where people say what they want to be told of, and ask what became of it."""

    def __init__(self, settings: Settings, sources: Sources) -> None:
        self.outbox = Outbox(settings.data_dir / "notices.db")
        self.mail = bool(settings.mail)
        """Whether an address is enough."""
        self._host = sources.host
        self._courier = Courier(settings)
        self._asked = ThreadPoolExecutor(2, "notices-asked")
        self.clerk = Clerk(sources, self.outbox, self._courier, retry_delays(settings.notify_retry))

    def start(self) -> None:
        """Begin; this returns at once."""
        self.clerk.start()

    def stop(self) -> None:
        """End, within a few seconds whatever hangs."""
        self.clerk.stop()
        self._asked.shutdown(wait=True, cancel_futures=True)
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
        """Let a user be told; refused at once, or once apprise has looked at the URL."""
        kept = check_url(url, mail=self.mail)
        wanted = USUAL if events is None else check_events(events)
        new = Subscription(0, user, check_name(name) if name else "", kept, wanted)
        new = replace(new, title=check_template(title), body=check_template(body))
        if long_wait is not None:
            new = replace(new, long_wait=long_wait)

        def add() -> Subscription:
            self._check(user, kept)
            named = new if new.name else replace(new, name=self._free_name(user, kept))
            added = self.outbox.add(named, time.time())
            self.clerk.ring()
            return added

        return self._asked.submit(add)

    def unsubscribe(self, user: str, which: str) -> Subscription:
        """Tell a user no more."""
        return self.outbox.remove(user, which, time.time())

    def test(self, user: str, which: str) -> Future[Delivery]:
        """Send something now, and tell how that went."""
        found = self.outbox.subscription(user, which)
        return self._asked.submit(self._test, found)

    def _test(self, one: Subscription) -> Delivery:
        now = time.time()
        title, body = (
            f"gpuyard: a test from {self._host}",
            f"This is what gpuyard on {self._host} sends to {one.name}.\n",
        )
        fields = {"event": TEST, "user": one.user, "host": self._host}
        trial = Delivery(one.id, one.name, one.target, one.user, "", TEST, now, title, body, fields)
        said: list[str] = []
        self._courier.send(one.user, [Parcel(trial, one.url)], lambda parcel, error: said.append(error))
        error = said[0]
        state = GIVEN_UP if error else DELIVERED
        done = replace(trial, state=state, attempts=1, ended=time.time(), error=error, body="", fields={})
        self.outbox.advance(None, [done])
        return done

    def refs(self, user: str, given: Sequence[str]) -> Future[tuple[str, ...]]:
        """What a job keeps of where its news are to go: names, and numbers in place of URLs."""
        if len(given) > _MOST_REFS:
            raise UserError(f"a job can be told of at {_MOST_REFS} places at most")
        if NONE in given and len(given) > 1:
            raise UserError("notify: none excludes everything else")
        urls = {text: check_url(text, mail=self.mail) for text in given if is_url(text)}
        for text in given:
            if text not in (ALL, NONE) and text not in urls:
                self.outbox.subscription(user, text)  # or it is refused
        known = {text: self.outbox.of_jobs(user, url, time.time()) for text, url in urls.items()}

        def ref(text: str) -> str:
            if text not in urls:
                return text if text in (ALL, NONE) else self.outbox.subscription(user, text).name
            found = known[text]
            if found is None:
                self._check(user, urls[text])
                found = self.outbox.add(Subscription(0, user, "", urls[text], of_jobs=True), time.time())
                self.clerk.ring()
            return f"#{found.id}"

        def all_of_them() -> tuple[str, ...]:
            return tuple(dict.fromkeys(map(ref, given)))

        if any(one is None for one in known.values()):
            return self._asked.submit(all_of_them)
        done: Future[tuple[str, ...]] = Future()
        done.set_result(all_of_them())
        return done

    def _check(self, user: str, url: str) -> None:
        if problem := self._courier.check(user, url):
            raise UserError(
                f"{mask(url)} cannot be used: {problem}; docs/how-to/be-told.md shows how such URLs are written"
            )

    def _free_name(self, user: str, url: str) -> str:
        """A name for a subscription that was given none: its scheme, with a number if need be."""
        scheme = url.partition("://")[0]
        taken = {one.name for one in self.outbox.subscriptions(user)}
        return next(name for n in range(1, 1000) if (name := scheme if n == 1 else f"{scheme}-{n}") not in taken)
