"""What is kept of looks at GPUs: small, whole after a sudden end, coarser with age, and as fine as is asked for."""

from __future__ import annotations

import logging
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.recordings.chunks import (
    AT,
    COVERED,
    HIGH,
    HOURS,
    LOW,
    MINUTES,
    SAMPLES,
    Damaged,
    condensed,
    decode,
    encode,
    held,
    one_of,
)
from gpuyard.recordings.database import KEPT_OF_GPUS, RecordingFile, Who, Writer
from gpuyard.recordings.queries import Told, Track, Wanted, read

T = 1_800_000_000.0
"""The beginning of an hour."""
GPU = Who(0, "GPU-0", "NVIDIA A100", 80 * 2**30)
G = 2**30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recordings.db"


def sample(power: float = 100.0, **others: float) -> dict[str, float]:
    return {**dict.fromkeys(KEPT_OF_GPUS, math.nan), "power": power, **others}


def record(path: Path, begin: float, end: float, step: float = 1.0, who: Who = GPU, close: bool = True) -> None:
    """A GPU whose power in watts is the number of the minute since T, and whose memory is in use by gigabytes."""
    file = RecordingFile(path)
    tape = Writer(file)
    for n in range(math.ceil((end - begin) / step)):
        at = begin + n * step
        values = sample((at - T) // 60, memory_used=2.0 * G, utilization=50.0)
        tape.add(who, at, values if not who.job else {"process_memory": 1.0 * G, "process_utilization": 40.0})
    tape.write(end)
    if close:
        file.close()


def told(path: Path, start: float, end: float, *metrics: str, **wishes: Any) -> Told:
    return read(path, Wanted(start, end, metrics or ("power",), **wishes))


def only(found: Told) -> Track:
    [track] = found.gpus
    return track


# -- the codec ------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.floats(0, 59.9), st.none() | st.integers(0, 100), st.none() | st.floats(0, 2e12), st.floats(0, 1500)
        ),
        min_size=1,
        max_size=80,
    )
)
def test_what_goes_in_comes_out_as_exactly_as_it_is_worth(rows: list[tuple[float | None, ...]]) -> None:
    at, busy, memory, power = np.array(rows, dtype=np.float64).T
    columns = {AT: np.sort(at), "utilization": busy, "memory_used": memory, "power": power}
    found = decode(encode(columns))
    assert list(found) == list(columns)
    for name, within in ((AT, 0.0006), ("utilization", 0.0), ("memory_used", 32768.0), ("power", 0.0501)):
        assert np.array_equal(np.isnan(found[name]), np.isnan(columns[name]))
        assert np.nanmax(np.abs(found[name] - columns[name]), initial=0.0) <= within
    assert list(decode(encode(columns), ("power",))) == ["power"]


def test_numbers_of_every_size_are_kept() -> None:
    bits = np.array([0.0, 2.0**40, 4.0, 0.0])
    falling = np.array([80 * G, 0, 80 * G, 65536.0])
    found = decode(encode({AT: np.arange(4.0), "throttle": bits, "memory_used": falling, "power": np.full(4, 3.1)}))
    assert found["throttle"].tolist() == bits.tolist()
    assert found["memory_used"].tolist() == falling.tolist()
    assert found["power"].tolist() == pytest.approx([3.1] * 4)


def test_a_mean_is_finer_than_a_single_value() -> None:
    columns = {AT: np.zeros(1), "utilization": np.array([33.34]), "utilization" + LOW: np.array([33.34])}
    found = decode(encode(columns, means=True))
    assert found["utilization"][0] == pytest.approx(33.3)
    assert found["utilization" + LOW][0] == 33.0


def test_a_minute_of_a_busy_gpu_is_small() -> None:
    """20 MB for a day of 8 GPUs are 1,736 bytes a minute, and the file needs some of that for itself."""
    draw = np.random.default_rng(0)
    columns = {
        AT: np.arange(60) + draw.normal(0, 0.003, 60),
        "utilization": draw.integers(50, 100, 60).astype(float),
        "memory_used": 2e10 + draw.normal(0, 1e8, 60),
        "memcopy": draw.integers(20, 60, 60).astype(float),
        "power": 250 + draw.normal(0, 20, 60),
        "temperature": 60 + draw.integers(-1, 2, 60).astype(float),
        "sm_clock": 1410 - 15.0 * draw.integers(0, 8, 60),
        "memory_clock": np.full(60, 1593.0),
        "throttle": 4.0 * draw.integers(0, 2, 60),
        "xid": np.zeros(60),
    }
    assert len(encode(columns)) < 900


def test_a_format_of_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="format 9"):
        decode(b"\x09" + encode({AT: np.zeros(2)})[1:])


# -- levels ---------------------------------------------------------------------------------------------------


def test_many_become_one_with_the_least_and_the_most() -> None:
    columns = {"power": np.array([10.0, 30.0, math.nan, 50.0]), "throttle": np.array([0.0, 4.0, 1.0, 0.0])}
    found = condensed(columns, np.array([1.0, 3.0, 1.0, 1.0]), np.array([0, 2]))
    assert found[COVERED].tolist() == [4.0, 2.0]
    assert (found["power"].tolist(), found["power" + LOW].tolist()) == ([25.0, 50.0], [10.0, 50.0])
    assert found["throttle" + HIGH].tolist() == [4.0, 1.0]
    both = one_of(columns, np.ones(4))
    assert (both["power"], both["power" + HIGH], both["throttle"]) == (30.0, 50.0, 5.0)
    again = condensed(found, found[COVERED], np.array([0]))  # minutes that become an hour
    assert (again["power"][0], again["power" + LOW][0], again["power" + HIGH][0]) == (pytest.approx(200 / 6), 10, 50)


def test_what_was_never_known_stays_unknown() -> None:
    found = one_of({"power": np.array([math.nan, math.nan])}, np.ones(2))
    assert all(math.isnan(found[name]) for name in ("power", "power" + LOW, "power" + HIGH))


def test_a_sample_holds_until_the_next_but_not_through_a_gap() -> None:
    assert held(np.array([0.0, 1.0, 2.0, 12.0]), 60.0).tolist() == [1.0, 1.0, 10.0, 1.0]
    assert held(np.array([0.0, 1.0, 50.0]), 51.5).tolist() == [1.0, 1.0, 1.0]
    assert held(np.array([3.0]), 3.25).tolist() == [0.25]


# -- writing and reading --------------------------------------------------------------------------------------


def test_samples_minutes_and_hours_are_kept_as_they_close(path: Path) -> None:
    record(path, T, T + 7250)
    samples = told(path, T + 60, T + 120)
    assert (samples.level, samples.period, only(samples).who) == (SAMPLES, 1.0, GPU)
    track = only(samples)
    assert track.at.tolist() == [T + 60 + n for n in range(61)]
    power = track.metrics["power"]
    assert (set(power.mean.tolist()), power.low, power.high) == ({1.0, 2.0}, None, None)
    minutes = told(path, T, T + 7200, points=100)
    assert (minutes.level, minutes.period) == (MINUTES, 120.0)  # 120 values would be more than were asked for
    power = only(minutes).metrics["power"]
    assert power.mean[:2].tolist() == pytest.approx([0.5, 2.5])
    assert power.low is not None
    assert power.high is not None
    assert (power.low[1], power.high[1]) == (2.0, 3.0)
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT level, at, open FROM chunks ORDER BY level, at").fetchall()
    assert [row for row in rows if row[0] > 0] == [
        (1, MINUTES.chunk_of(T), 0), (2, HOURS.chunk_of(T), 0),
    ]  # fmt: skip
    assert [at for level, at, open in rows if open] == [T + 7200]  # nobody knows yet how that goes on


def test_an_hour_is_made_of_its_own_minutes(path: Path) -> None:
    record(path, T, T + 3 * 3600, step=10)
    with closing(sqlite3.connect(path)) as file:
        [data] = file.execute("SELECT data FROM chunks WHERE level = 2").fetchone()
    hours = decode(data)
    assert hours["power"].tolist() == pytest.approx([29.5, 89.5, 149.5])
    assert hours["power" + LOW].tolist() == [0, 60, 120]
    assert hours["power" + HIGH].tolist() == [59, 119, 179]


def test_memory_free_follows_and_what_was_not_measured_is_left_out(path: Path) -> None:
    record(path, T, T + 10)
    track = only(told(path, T, T + 10, "memory_free", "memcopy"))
    assert list(track.metrics) == ["memory_free"]
    assert set(track.metrics["memory_free"].mean.tolist()) == {78.0 * G}


def test_a_gap_is_where_nobody_looked_and_idle_is_no_gap(path: Path) -> None:
    record(path, T, T + 30, step=10)
    record(path, T + 300, T + 303)
    track = only(told(path, T, T + 400))
    assert (track.at - T).tolist() == [0, 10, 20, 21, 300, 301, 302]
    assert np.isnan(track.metrics["power"].mean).tolist() == [False, False, False, True, False, False, False]
    assert track.watt_hours == pytest.approx((0 + 5 * 2) / 3600)  # five watts, in the fifth minute alone
    few = only(told(path, T, T + 400, points=4))
    assert len(few.at) <= 4
    assert np.isnan(few.metrics["power"].mean).sum() == 1


@pytest.mark.parametrize("points", [1, 2, 7, 100, 599])
def test_never_more_than_was_asked_for_and_nothing_is_lost(path: Path, points: int) -> None:
    record(path, T, T + 600)
    track = only(told(path, T, T + 600, points=points))
    power = track.metrics["power"]
    assert len(track.at) <= points
    assert (np.diff(track.at) > 0).all()
    assert power.low is not None
    assert power.high is not None
    assert (power.low.min(), power.high.max()) == (0.0, 9.0)
    assert track.watt_hours == pytest.approx(sum(60 * n for n in range(10)) / 3600, rel=0.02)


def test_a_long_span_of_what_began_just_now_is_told_by_samples(path: Path) -> None:
    record(path, T, T + 40)
    found = told(path, T - 86400, T + 41)
    assert (found.level, len(only(found).at)) == (SAMPLES, 40)
    record(path, T + 40, T + 20 * 3600, step=10)
    assert told(path, T - 86400, T + 20 * 3600).level is MINUTES


def test_energy_is_the_same_at_every_level(path: Path) -> None:
    record(path, T, T + 4 * 3600, step=10)
    real = sum(60 * n for n in range(240)) / 3600
    assert only(told(path, T, T + 4 * 3600, points=20_000)).watt_hours == pytest.approx(real, rel=0.01)
    minutes = told(path, T, T + 4 * 3600, points=60)
    assert minutes.level is MINUTES
    assert only(minutes).watt_hours == pytest.approx(real, rel=0.01)


def test_jobs_have_series_of_their_own(path: Path) -> None:
    record(path, T, T + 20)
    record(path, T + 5, T + 15, who=Who(0, "GPU-0", job="17", attempt=2))
    found = told(path, T, T + 20, "process_memory", "power", jobs=[("17", 2), ("17", 1)])
    [own] = found.jobs
    assert (own.who.job, own.who.attempt, own.who.gpu, len(own.at)) == ("17", 2, 0, 10)
    assert set(own.metrics["process_memory"].mean.tolist()) == {1.0 * G}
    assert list(only(found).metrics) == ["power"]
    assert told(path, T, T + 20, "power", jobs=[("17", 2)]).jobs == []


def test_who_is_killed_loses_only_what_came_after_the_last_writing(path: Path) -> None:
    record(path, T, T + 90, close=False)  # and not a word more
    record(path, T + 95, T + 100)
    track = only(told(path, T, T + 100))
    assert (track.at - T).tolist() == [*range(90), *range(95, 100)]
    # the second minute was never closed by the one who filled it
    file = RecordingFile(path)
    Writer(file).finish(T + 600)
    file.close()
    with closing(sqlite3.connect(path)) as connection:
        [data] = connection.execute("SELECT data FROM chunks WHERE level = 1").fetchone()
        assert connection.execute("SELECT count(*) FROM chunks WHERE open = 1").fetchone() == (0,)
    assert decode(data)["power"].tolist() == [0.0, 1.0]


def test_a_chunk_that_is_damaged_is_a_gap_and_no_end(path: Path) -> None:
    record(path, T, T + 150)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for at, data in ((T + 60, b"\x01"), (T + 120, b"\x01\x3c\x00\x02no zlib")):
            changed = connection.execute("UPDATE chunks SET data = ? WHERE level = 0 AND at = ?", (data, at))
            assert changed.rowcount == 1
    for begin in (T + 150, T + 300):  # in the minute of the second, and in a life after it
        file = RecordingFile(path)
        tape = Writer(file)
        tape.finish(begin)
        tape.add(GPU, begin, sample(7.0))
        tape.write(begin)
        file.close()
    track = only(told(path, T, T + 400))
    known = track.at[~np.isnan(track.metrics["power"].mean)]
    assert known.tolist() == [*(T + np.arange(60)), T + 150, T + 300]


@pytest.mark.parametrize("cut", [0, 3, 4, 20])
def test_bytes_that_are_cut_off_are_damaged(cut: int) -> None:
    with pytest.raises(Damaged):
        decode(encode({AT: np.arange(60.0), "power": np.sqrt(np.arange(60.0))})[:cut])


def test_a_clock_that_goes_back_loses_nothing_of_before(path: Path) -> None:
    file = RecordingFile(path)
    tape = Writer(file)
    for n in range(30):
        tape.add(GPU, T + 600 + n, sample(5.0))
    tape.add(GPU, T + 300, sample(6.0))  # nothing was written in between
    tape.write(T + 301)
    file.close()
    track = only(told(path, T, T + 1000))
    assert (~np.isnan(track.metrics["power"].mean)).sum() == 31


def test_what_is_old_goes_and_the_coarser_stays(path: Path) -> None:
    record(path, T, T + 3 * 3600, step=10)
    file = RecordingFile(path)
    [subject] = file.subjects()
    assert file.forget(SAMPLES, subject, T + 2 * 3600, 50) == 50  # a bite
    while file.forget(SAMPLES, subject, T + 2 * 3600, 50):
        pass
    assert told(path, T + 600, T + 1200).level is MINUTES
    assert told(path, T + 2.5 * 3600, T + 2.6 * 3600).level is SAMPLES
    for level in (SAMPLES, MINUTES, HOURS):
        file.forget(level, subject, T + 30 * 86400, 10_000)
    assert (file.forget_subjects(10), file.subjects()) == (1, [])
    assert file.subject(GPU) == 1
    file.close()


def test_a_file_that_is_damaged_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"this is no database, but long enough to be looked at" * 100)
    with caplog.at_level(logging.WARNING, "gpuyard"):
        record(path, T, T + 5)
    assert "is damaged" in caplog.text
    assert len(only(told(path, T, T + 5)).at) == 5
    assert path.with_name("recordings.db.damaged").read_bytes().startswith(b"this is")


def test_a_file_of_another_version_or_another_program_is_set_aside(path: Path) -> None:
    for statement in ("PRAGMA user_version = 99", "CREATE TABLE mine (a)"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
            connection.commit()
        RecordingFile(path).close()
        assert path.with_name("recordings.db.damaged").exists()
        path.unlink()
