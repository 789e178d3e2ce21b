"""What recording costs: CPU of the daemon on eight GPUs of a made-up driver, bytes for a day, seconds to see a month.

The made-up NVML reads its state from a file at every call, which a real one does not: the CPU that is told is too high
rather than too low. Values are noisy: each second differs from the one before in nearly every metric.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.fake_nvml import FakeNvml, build

from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.recordings.chunks import AT, COVERED, HIGH, HOURS, LOW, MINUTES, Level, encode
from gpuyard.recordings.database import KEPT_OF_GPUS as KEPT_OF_GPUS
from gpuyard.recordings.database import Chunk, RecordingFile, Who, Writer
from gpuyard.recordings.queries import Wanted, read
from gpuyard.recordings.series import OF_GPUS

GPUS = 8
DAY = 86400
BEGIN = 1_800_000_000.0
TICKS = os.sysconf("SC_CLK_TCK")


def looks(seconds: int, seed: int) -> Iterator[tuple[float, dict[str, float], dict[str, float]]]:
    """A busy GPU, and the job on it, second by second."""
    draw = np.random.default_rng(seed)
    for first in range(0, seconds, 3600):
        n = min(3600, seconds - first)
        busy = np.clip(draw.normal(80, 12, n), 0, 100).round()
        memory = 40e9 + np.cumsum(draw.normal(0, 2e7, n))
        columns = {
            "utilization": busy, "memory_used": memory, "memcopy": (0.5 * busy + draw.normal(0, 4, n)).clip(0).round(),
            "power": 120 + 2.4 * busy + draw.normal(0, 8, n), "temperature": (60 + draw.normal(0, 1, n)).round(),
            "sm_clock": 1410 - 15.0 * draw.integers(0, 8, n), "memory_clock": np.full(n, 1593.0),
            "throttle": 4.0 * draw.integers(0, 2, n), "xid": np.zeros(n),
        }  # fmt: skip
        at = BEGIN + first + np.arange(n) + draw.normal(0, 0.004, n)
        for k in range(n):
            values = {name: float(column[k]) for name, column in columns.items()}
            own = {"process_memory": values["memory_used"] - 4e8, "process_utilization": values["utilization"]}
            yield float(at[k]), values, own


def filled(path: Path, seconds: int) -> int:
    """Record all GPUs for so long; bytes that the file has then."""
    file = RecordingFile(path)
    tape = Writer(file)
    for gpu in range(GPUS):
        who = Who(gpu, f"GPU-{gpu}", "NVIDIA A100-SXM4-80GB", 80 * 2**30)
        for n, (at, values, own) in enumerate(looks(seconds, gpu)):
            tape.add(who, at, values)
            tape.add(Who(gpu, who.uuid, job=str(1000 * gpu + n // 7200), attempt=1), at, own)
            if n % 600 == 0:
                tape.write(at)
        tape.write(BEGIN + seconds)
    file.close()
    return path.stat().st_size


def month(path: Path, repeat: int) -> tuple[float, int]:
    """Seconds to read 30 days of all GPUs, all metrics, at 600 points; and how many values there were."""
    file = RecordingFile(path)
    for gpu in range(GPUS):
        subject = file.subject(Who(gpu, f"GPU-{gpu}", "NVIDIA A100-SXM4-80GB", 80 * 2**30))
        for level in (MINUTES, HOURS):
            file.write([Chunk(level.number, subject, *chunk) for chunk in spread(level, 30 * DAY, gpu)])
    file.close()
    took, found = [], None
    for _ in range(repeat):
        began = time.perf_counter()
        found = read(path, Wanted(BEGIN, BEGIN + 30 * DAY, OF_GPUS))
        took.append(time.perf_counter() - began)
    assert found is not None
    return sorted(took)[len(took) // 2], sum(len(track.at) for track in found.gpus)


def spread(level: Level, seconds: int, seed: int) -> Iterator[tuple[int, bool, bytes]]:
    """Chunks of a coarser level, as a month of recording leaves them."""
    draw = np.random.default_rng(seed)
    for begin in range(level.chunk_of(BEGIN), int(BEGIN) + seconds, level.chunk):
        at = np.arange(0.0, level.chunk, level.period)
        at = at[(begin + at >= BEGIN) & (begin + at < BEGIN + seconds)]
        columns = {AT: at, COVERED: np.full(len(at), level.period)}
        for name in KEPT_OF_GPUS:
            mean = draw.normal(1000.0, 100.0, len(at))
            columns |= {name: mean, name + LOW: mean - 200, name + HIGH: mean + 200}
        if len(at):
            yield begin, False, encode(columns, means=True)


def cpu(folder: Path, seconds: float) -> dict[str, float]:
    """Percent of a core that a daemon takes on busy GPUs, with recording and without."""
    library = build(folder)
    if library is None:
        sys.exit("no C compiler to build the made-up NVML with; apt-get install gcc libc6-dev")
    fake = FakeNvml(library, folder)
    for gpu in range(GPUS):
        fake.add(uuid=f"GPU-{gpu}", mem_total=80 * 2**30, mem_used=2**30, util=50 + gpu, power_mw=200000 + gpu)
    data = folder / "data"
    data.mkdir()
    own = {"GPUYARD_DATA_DIR": str(data), "GPUYARD_CONFIG": str(data / "none"), "GPUYARD_PORT": "none"}
    found = {}
    for record in ("on", "off"):
        daemon = subprocess.Popen(
            [sys.executable, "-m", "gpuyard", "serve"], env={**fake.env, **own, "GPUYARD_RECORD": record},
            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _await(Client(data_dir=data))
            time.sleep(3)
            before = _spent(daemon.pid)
            time.sleep(seconds)
            after = _spent(daemon.pid)
        finally:
            daemon.terminate()
            daemon.wait()
        found[f"recording {record}"] = 100 * (after - before) / seconds
    return found


def _await(client: Client) -> None:
    for _ in range(600):
        try:
            client.status()
            return
        except NoDaemon:
            time.sleep(0.1)
    sys.exit("the daemon did not start")


def _spent(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=4, help="of a day that are recorded to measure its size")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which the daemon's CPU is measured")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        size = filled(here / "day.db", given.hours * 3600) * 24 / given.hours
        took, values = month(here / "month.db", given.repeat)
        result: dict[str, Any] = {
            "gpus": GPUS, "day_bytes": round(size), "month_seconds": round(took, 4), "month_values": values,
            "month_file_bytes": (here / "month.db").stat().st_size,
            "cpu_percent": {name: round(part, 2) for name, part in cpu(here, given.seconds).items()},
        }  # fmt: skip
    if given.json:
        print(json.dumps(result))
        return
    print(f"a day of {GPUS} GPUs at 1 s, with jobs: {size / 1e6:.1f} MB (by {given.hours} hours)")
    print(f"30 days of {GPUS} GPUs, {len(OF_GPUS)} metrics, 600 points: read in {1000 * took:.0f} ms")
    for name, part in result["cpu_percent"].items():
        print(f"CPU of the daemon on {GPUS} busy GPUs ({name}): {part:.2f} % of a core")


if __name__ == "__main__":
    main()
