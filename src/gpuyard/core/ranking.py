"""A queue in order, as far as anybody looks: most plans need only its head, so most of it is never sorted."""

from __future__ import annotations

import numpy as np

from gpuyard.core.pool import Floats, Ints

_SMALL = 24  # below this, sorting everything is as cheap as looking for the smallest


class Ranking:
    """Hands out rows by ascending key, ties by ascending row, in chunks that grow as they are asked for."""

    def __init__(self, keys: Floats, rows: Ints, gpus: Ints) -> None:
        self._keys = keys
        self._rows = rows
        self._gpus = gpus
        self._size = 1
        self._gone: int | None = None

    def next(self, limit: int) -> Ints:
        """The next rows in order that want fewer GPUs than `limit`; empty when there are none left."""
        keep = self._gpus[self._rows] < limit
        if self._gone is not None:
            keep[self._gone] = False
            self._gone = None
        if not keep.all():
            self._keys, self._rows = self._keys[keep], self._rows[keep]
        size, n = self._size, len(self._rows)
        self._size *= 8
        if n <= max(size, _SMALL):
            everything = self._rows[np.argsort(self._keys, kind="stable")]
            self._keys, self._rows = self._keys[:0], self._rows[:0]
            return everything
        if size == 1:
            self._gone = int(np.argmin(self._keys))
            return self._rows[self._gone : self._gone + 1]
        near = self._keys <= np.partition(self._keys, size)[size]
        chunk: Ints = self._rows[near][np.argsort(self._keys[near], kind="stable")]
        self._keys, self._rows = self._keys[~near], self._rows[~near]
        return chunk
