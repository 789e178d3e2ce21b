"""The output of jobs of this machine, kept within its limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.engine import Watch
from tests.localengine import folder_of

from gpuyard.engines.base import Ended
from gpuyard.engines.local import output


def test_a_hundred_megabytes_of_output(watch: Watch) -> None:
    watch.shell("1", "head -c 100000000 /dev/zero | tr '\\0' x", limit=10_000_000)
    watch.until(Ended, "1")
    assert watch.engine.log_size("1", 1) == 100_000_000
    log = folder_of(watch) / "output.log"
    assert log.stat().st_blocks * 512 <= 10_000_000
    assert len(watch.log("1")) == pytest.approx(10_000_000, abs=10_000)


def test_output_is_limited_while_the_job_runs(watch: Watch) -> None:
    watch.shell("1", "head -c 3000000 /dev/zero; echo >up; sleep 60", limit=1_000_000)
    watch.wait_for("up")
    watch.idle(1.1)
    assert (folder_of(watch) / "output.log").stat().st_blocks * 512 <= 1_000_000


def test_whoever_follows_the_output_keeps_their_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * 300_000)
    place, text = output.read(log, 0, 1000)
    assert (place, text) == (1000, b"a" * 1000)
    output.trim(log, 100_000)
    first, text = output.read(log, place, 2**20)
    assert text == b"a" * (8192 - 1000)
    last, text = output.read(log, first, 2**20)
    assert text == b"\n[gpuyard: %d bytes left out]\n" % (
        300_000 - 8192 - len(text.strip(b"\n").partition(b"\n")[2])
    ) + b"a" * (len(text.strip(b"\n").partition(b"\n")[2]))
    assert last == 300_000
    with log.open("ab") as file:
        file.write(b"more")
    assert output.read(log, last, 2**20) == (300_004, b"more")


def test_a_job_that_cuts_its_output_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"short")
    assert output.read(log, 900, 100) == (5, b"")


def test_where_no_holes_can_be_made_the_file_is_left_alone(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise output.HolesUnsupported(95, "Operation not supported")

    monkeypatch.setattr(output, "_punch", fail)
    for job in ("1", "2"):
        watch.shell(job, "head -c 30000 /dev/zero", limit=10_000)
        watch.until(Ended, job)
    assert (folder_of(watch) / "output.log").stat().st_size == 30_000
    assert [record.message for record in caplog.records if "output is not limited" in record.message] != []
    assert len(caplog.records) == 1
