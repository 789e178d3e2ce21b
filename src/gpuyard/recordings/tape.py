"""What is written down of looks: samples become chunks, and minutes and hours as they close.

Of every subject the open chunk of each level is in memory, and is written again, as a whole, whenever there is more of
it. So a chunk on disk is always whole, and whoever is killed loses only what came after the last writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from gpuyard.recordings.codec import AT, COVERED, HIGH, KEPT, LOW, Damaged, decode, encode
from gpuyard.recordings.file import Chunk, RecordingFile, Who
from gpuyard.recordings.levels import APART, HOURS, MINUTES, SAMPLES, Level, held, one_of
from gpuyard.recordings.series import OF_JOBS, Floats

OF_GPUS = tuple(name for name in KEPT if name not in OF_JOBS)
"""What is kept of a GPU."""
_OVER = 120.0  # seconds after its last sample that nothing is kept in memory of a subject


@dataclass(slots=True)
class _Open:
    """The chunk of a level that is being filled."""

    level: Level
    begin: int
    names: tuple[str, ...]
    rows: list[tuple[float, ...]] = field(default_factory=list)
    """The instant, and a value for each name; seconds since the epoch, NaN where nothing is known."""
    changed: bool = False

    def put(self, at: float, values: Mapping[str, float]) -> None:
        """A value more, or another in the place of the last."""
        row = (at, *(values.get(name, np.nan) for name in self.names))
        if self.rows and self.rows[-1][0] == at:
            self.rows[-1] = row
        elif not self.rows or at > self.rows[-1][0]:  # a clock that goes back is not to spoil what there is
            self.rows.append(row)
        self.changed = True

    def columns(self, since: float = 0.0) -> dict[str, Floats]:
        """All of it, or since an instant, column by column; times since the beginning."""
        values = np.array([row for row in self.rows if row[0] >= since], dtype=np.float64).T
        return {AT: values[0] - self.begin, **dict(zip(self.names, values[1:], strict=True))}

    def encoded(self) -> bytes:
        """All of it, without what was never known."""
        columns = {name: values for name, values in self.columns().items() if not np.isnan(values).all()}
        return encode(columns, means=self.level is not SAMPLES)

    def load(self, data: bytes) -> None:
        """Go on with what there is already."""
        found = decode(data)
        nothing = np.full(len(found[AT]), np.nan)
        columns = (found[AT] + self.begin, *(found.get(name, nothing) for name in self.names))
        self.rows = list(zip(*(column.tolist() for column in columns), strict=True))


class _Track:
    """A subject that is being recorded."""

    def __init__(self, file: RecordingFile, subject: int, names: tuple[str, ...]) -> None:
        self._file, self._subject, self._names = file, subject, names
        self._spread = (COVERED, *(f"{name}{kind}" for name in names for kind in ("", LOW, HIGH)))
        self._open: dict[int, _Open] = {}
        self.last = 0.0
        """When the last sample was."""

    def add(self, at: float, values: Mapping[str, float]) -> Iterator[Chunk]:
        """One sample more; chunks that are over by it come out of this."""
        yield from self.settle(at)
        self._chunk(SAMPLES, at).put(at, values)
        self.last = at

    def settle(self, now: float) -> Iterator[Chunk]:
        """Close the minute if it is over, or if a clock went back before it."""
        minute = self._open.get(SAMPLES.number)
        if minute is None or minute.begin <= now < minute.begin + SAMPLES.chunk:
            return
        del self._open[SAMPLES.number]
        yield from self.close(minute)

    def close(self, minute: _Open) -> Iterator[Chunk]:
        """Let the coarser levels know of a minute, whose samples are complete."""
        if not minute.rows:
            return
        columns, begin = minute.columns(), float(minute.begin)
        minutes = self._chunk(MINUTES, begin)
        minutes.put(begin, one_of(columns, held(columns[AT], float(SAMPLES.chunk), APART)))
        began = begin // HOURS.period * HOURS.period
        hour = minutes.columns(since=began)
        self._chunk(HOURS, began).put(began, one_of(hour, hour[COVERED]))
        yield Chunk(SAMPLES.number, self._subject, minute.begin, False, minute.encoded())
        yield from self._written(MINUTES, HOURS)

    def changed(self) -> Iterator[Chunk]:
        """What has changed since it was last written."""
        yield from self._written(SAMPLES)

    def _written(self, *levels: Level) -> Iterator[Chunk]:
        for level in levels:
            chunk = self._open.get(level.number)
            if chunk is not None and chunk.changed:
                chunk.changed = False
                yield Chunk(level.number, self._subject, chunk.begin, level is SAMPLES, chunk.encoded())

    def _chunk(self, level: Level, at: float) -> _Open:
        """The chunk for an instant: the open one, one of a former life, or a new one."""
        begin, found = level.chunk_of(at), self._open.get(level.number)
        if found is None or found.begin != begin:
            found = _Open(level, begin, self._names if level is SAMPLES else self._spread)
            before = self._file.load(level, self._subject, begin)
            if before is not None:
                with suppress(Damaged):  # then it is written anew
                    found.load(before)
            self._open[level.number] = found
        return found


class Tape:
    """All subjects that are being recorded. For one thread at a time."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file
        self._tracks: dict[Who, _Track] = {}
        self._chunks: dict[tuple[int, int, int], Chunk] = {}
        """What is to be written, by level, subject and time: of two of the same only the later."""

    def add(self, who: Who, at: float, values: Mapping[str, float]) -> None:
        """One sample more."""
        track = self._tracks.get(who)
        if track is None:
            track = self._tracks[who] = _Track(self._file, self._file.subject(who), tuple(values))
        self._note(track.add(at, values))

    def write(self, now: float) -> None:
        """Write down all that is new."""
        gone = []
        for who, track in self._tracks.items():
            self._note(track.settle(now))
            self._note(track.changed())
            if track.last < now - _OVER:
                gone.append(who)
        if self._chunks:
            self._file.write(list(self._chunks.values()))
            self._chunks = {}
        for who in gone:
            del self._tracks[who]
        self._file.forget_known(gone)

    def finish(self, now: float) -> None:
        """Let the coarser levels know of what a former life had no time for."""
        for subject, begin, data in self._file.unfinished():
            if begin + SAMPLES.chunk > now:
                continue  # it goes on
            try:
                names = OF_JOBS if any(name in OF_JOBS for name in decode(data)) else OF_GPUS
            except Damaged:  # nobody will ever know; it is left as it is
                self._file.write([Chunk(SAMPLES.number, subject, begin, False, data)])
                continue
            track = _Track(self._file, subject, names)
            minute = _Open(SAMPLES, begin, names)
            minute.load(data)
            self._note(track.close(minute))
            self._file.write(list(self._chunks.values()))
            self._chunks = {}

    def _note(self, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            self._chunks[chunk.level, chunk.subject, chunk.at] = chunk
