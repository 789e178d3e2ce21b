"""Files that nvidia-smi wrote: any fields, with units or without, cut off, appended to, from other systems."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.monitor.sources import csv_files
from gpuyard.monitor.sources.csv_files import SmiCsv
from gpuyard.recordings.series import Recording

MIB = 2**20
SIX = """\
index, timestamp, name, utilization.gpu [%], utilization.memory [%], power.draw [W]
0, 2026/11/16 18:45:01.123, NVIDIA A100-SXM4-80GB, 45 %, 12 %, 123.45 W
1, 2026/11/16 18:45:01.125, NVIDIA A100-SXM4-80GB, 0 %, 0 %, [N/A]
0, 2026/11/16 18:45:02.123, NVIDIA A100-SXM4-80GB, 46 %, 13 %, 124.00 W
1, 2026/11/16 18:45:02.125, NVIDIA A100-SXM4-80GB, [Not Supported], 1 %, ERR!
"""


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    """A zone whose clocks change."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    csv_files._minute.cache_clear()  # nobody's zone changes but here
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()
    csv_files._minute.cache_clear()


def read(tmp_path: Path, content: str | bytes, *metrics: str, fields: tuple[str, ...] = ()) -> Recording:
    path = tmp_path / "gpu_usage.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return SmiCsv(path, fields).read(metrics or ("utilization", "memcopy", "power"))


def values(recording: Recording, metric: str, gpu: int = 0) -> list[float]:
    [series] = [one for one in recording.of(metric) if one.subject.gpu == gpu]
    return [round(value, 3) for value in series.mean.tolist()]


def test_the_six_columns_of_a_course(tmp_path: Path) -> None:
    found = read(tmp_path, SIX)
    assert found.warnings == []
    assert values(found, "utilization") == [45, 46]
    assert values(found, "memcopy", 1) == [0, 1]
    assert values(found, "power") == [123.45, 124.0]
    np.testing.assert_array_equal(found.of("utilization")[1].mean, [0, np.nan])
    assert [one.subject.gpu for one in found.of("power")] == [0]  # the other never told
    [power] = found.of("power")
    assert (power.subject.name, power.period) == ("NVIDIA A100-SXM4-80GB", 1.0)
    assert power.at.tolist() == [1794851101.123, 1794851102.123]  # 17:45 UTC
    assert (found.start, found.end, found.simulated) == (1794851101.123, 1794851102.125, False)


def test_any_fields_and_their_units(tmp_path: Path) -> None:
    content = """\
timestamp, uuid, memory.used [MiB], memory.total [MiB], temperature.gpu, clocks.current.sm [MHz], \
clocks.current.memory [MHz], clocks_throttle_reasons.active, fan.speed [%], pstate
2026/11/16 18:45:01.123, GPU-a, 1000 MiB, 81920 MiB, 41, 1410 MHz, 1215 MHz, 0x0000000000000044, [N/A], P0
"""
    names = ("memory_used", "memory_free", "temperature", "sm_clock", "memory_clock", "throttle")
    found = read(tmp_path, content, *names)
    assert {name: values(found, name) for name in names} == {
        "memory_used": [1000 * MIB], "memory_free": [80920 * MIB], "temperature": [41], "sm_clock": [1410],
        "memory_clock": [1215], "throttle": [0x44],
    }  # fmt: skip
    assert found.series[0].subject.uuid == "GPU-a"


def test_no_units_and_no_header(tmp_path: Path) -> None:
    head, *lines = "timestamp, index, memory.used [MiB], power.draw [W]", "2026/11/16 18:45:01.123, 3, 1000, 50.5\n"
    found = read(tmp_path, "\n".join([head, *lines]), "memory_used", "power")
    assert (values(found, "memory_used", 3), values(found, "power", 3)) == ([1000 * MIB], [50.5])
    named = read(tmp_path, lines[0], "memory_used", fields=("timestamp", "index", "memory.used", "power.draw"))
    assert values(named, "memory_used", 3) == [1000 * MIB]
    with pytest.raises(
        UserError, match=r"gpu_usage.csv, line 1: '2026/11/16 .*' is no header of nvidia-smi; .*noheader"
    ):
        read(tmp_path, lines[0])


@pytest.mark.parametrize(
    "content",
    [
        SIX.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + SIX.encode(),
        SIX.encode("utf-16"),  # PowerShell's >
        SIX.replace("1, 2026", "\n1, 2026", 1).encode(),
    ],
    ids=["crlf", "bom", "utf-16", "empty line"],
)
def test_files_of_other_systems(tmp_path: Path, content: bytes) -> None:
    found = read(tmp_path, content)
    assert (values(found, "power"), found.warnings) == ([123.45, 124.0], [])


@pytest.mark.parametrize("cut", range(1, 72))
def test_a_file_that_is_cut_off_anywhere_tells_no_wrong_number(tmp_path: Path, cut: int) -> None:
    content = SIX.splitlines(keepends=True)
    lines = content[0] + content[1] + content[3]
    found = read(tmp_path, lines[:-cut])
    whole = cut == 1  # only the end of the line is missing
    assert values(found, "power") == ([123.45, 124.0] if whole else [123.45])
    if not whole and lines[:-cut][-1] != "\n":
        [warning] = found.warnings
        assert "gpu_usage.csv, line 3: " in warning
        assert warning.endswith("; it is left out")


def test_a_number_that_is_cut_off_is_no_number_without_units_either(tmp_path: Path) -> None:
    content = "timestamp, index, power.draw [W]\n2026/11/16 18:45:01.123, 0, 123.4\n2026/11/16 18:45:02.123, 0, 12"
    found = read(tmp_path, content, "power")
    assert values(found, "power") == [123.4]
    assert found.warnings == [f"{tmp_path}/gpu_usage.csv, line 3: it ends in the middle; it is left out"]


def test_lines_that_are_no_values_are_told_and_left_out(tmp_path: Path) -> None:
    content = SIX + "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.\n" * 7
    found = read(tmp_path, content)
    assert values(found, "power") == [123.45, 124.0]
    assert len(found.warnings) == 6
    assert "line 6: 'Unable to determine the device handle" in found.warnings[0]
    assert found.warnings[-1].endswith(": 2 more lines are left out")


def test_several_runs_in_one_file_with_a_gap_between_them(tmp_path: Path) -> None:
    content = (
        "index, timestamp, power.draw [W]\n"
        + "".join(f"0, 2026/11/16 18:45:0{second}.000, {second} W\n" for second in range(4))
        + "timestamp, index, utilization.gpu [%], power.draw [W]\n"
        + "".join(f"2026/11/16 18:50:0{second}.000, 0, 7 %, {second} W\n" for second in range(4))
    )
    found = read(tmp_path, content, "utilization", "power")
    np.testing.assert_array_equal(found.of("power")[0].mean, [0, 1, 2, 3, np.nan, 0, 1, 2, 3])
    np.testing.assert_array_equal(found.of("utilization")[0].mean[-4:], [7, 7, 7, 7])
    assert found.warnings == [
        "nothing is known of utilization of GPU 0 before 18:50:00",
        "nothing is known of power of GPU 0 from 18:45:03 to 18:50:00",
    ]


def test_a_gpu_that_ends_and_one_with_a_hole_are_told_apart(tmp_path: Path) -> None:
    lines = [f"{gpu}, 2026/11/16 18:45:0{second}.000, 7 W\n" for second in range(3) for gpu in (0, 1)]
    found = read(tmp_path, "index, timestamp, power.draw [W]\n" + "".join(lines) + "1, 2026/11/16 18:45:12.000, 7 W\n")
    assert [text for text in found.warnings if "nothing" in text] == [
        "nothing is known of GPU 1 from 18:45:02 to 18:45:12",
        "nothing is known of GPU 0 after 18:45:02",
    ]
    late = [f"{gpu}, 2026/11/16 18:45:1{second}.000, 7 W\n" for second in range(3) for gpu in (0, 1)]
    found = read(tmp_path, "index, timestamp, power.draw [W]\n1, 2026/11/16 18:45:00.000, 7 W\n" + "".join(late))
    assert [text for text in found.warnings if "nothing" in text] == [
        "nothing is known of GPU 1 from 18:45:00 to 18:45:10",
        "nothing is known of GPU 0 before 18:45:10",
    ]


def test_the_hour_that_there_is_twice(tmp_path: Path) -> None:
    content = "timestamp, index, power.draw [W]\n" + "".join(
        f"2026/10/25 {clock}.000, 0, {watts} W\n"
        for watts, clock in enumerate(("02:59:58", "02:59:59", "02:00:00", "02:00:01"))
    )
    [power] = read(tmp_path, content, "power").series
    assert power.mean.tolist() == [0, 1, 2, 3]
    assert np.diff(power.at).tolist() == [1, 1, 1]


def test_part_of_a_file_and_spans_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"0, 2026/11/16 18:{s // 60:02}:{s % 60:02}.000, {s % 60} W\n" for s in range(600))
    path.write_text("index, timestamp, power.draw [W]\n" + rows)
    source = SmiCsv(path)
    begin, end = source.span()
    assert end - begin == 599
    [part] = source.read(["power"], begin + 60, begin + 119).series
    assert part.mean.tolist() == list(range(60))
    [spans] = source.read(["power"], step=60.0).series
    assert spans.low is not None
    assert spans.high is not None
    assert (spans.mean.tolist(), spans.period) == ([29.5] * 10, 60.0)
    assert (set(spans.low.tolist()), set(spans.high.tolist())) == ({0}, {59})


def test_what_is_no_such_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory"):
        SmiCsv(tmp_path / "none.csv").read(["power"])
    with pytest.raises(
        UserError, match="has no line that tells anything; nvidia-smi writes some by nvidia-smi --query"
    ):
        read(tmp_path, SIX.splitlines(keepends=True)[0])
    with pytest.raises(UserError, match="line 1: no column is the timestamp"):
        read(tmp_path, "index, power.draw [W]\n0, 1 W\n")
    with pytest.raises(UserError, match="there is no metric 'powr'; did you mean 'power'"):
        read(tmp_path, SIX, "powr")
    found = read(tmp_path, SIX + "index, time", "power", "sm_clock")
    assert "line 6: 'index, time' has 2 fields in place of 6; it is left out" in found.warnings.pop(0)
    assert found.warnings == [f"{tmp_path}/gpu_usage.csv has no sm_clock (field clocks.sm or clocks.current.sm)"]
