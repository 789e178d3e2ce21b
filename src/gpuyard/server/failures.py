"""How often somebody was wrong: who is so again and again has to wait, and gets no more attention until then."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

_MOST = 10
_EVERY = 30.0  # seconds after which one of them is forgiven
_REMEMBERED = 10_000  # places


class Failures:
    """Failures by place; each place may have a few at once, and then one every half minute."""

    def __init__(self, most: float = _MOST, every: float = _EVERY) -> None:
        self._most, self._every = most, every
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def add(self, place: str) -> None:
        """Somebody there was wrong once more."""
        now = time.monotonic()
        count = min(self._left_over(place, now) + 1.0, self._most)
        self._counts[place] = count, now
        self._counts.move_to_end(place)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def wait(self, place: str) -> int:
        """Seconds for which whoever is wrong there is not listened to; 0 for most."""
        over = self._left_over(place, time.monotonic()) - (self._most - 1)
        return math.ceil(over * self._every) if over > 0 else 0

    def _left_over(self, place: str, now: float) -> float:
        count, since = self._counts.get(place, (0.0, now))
        return max(0.0, count - (now - since) / self._every)
