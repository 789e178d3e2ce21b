"""The daemon's recordings as a source, from a daemon that records."""

from __future__ import annotations

import math
import time

import numpy as np
from tests.yard import Yard, until

from gpuyard.monitor.sources import open_source
from gpuyard.recordings.series import Recording

GIB = 2**30


def test_a_job_and_its_gpu_as_they_were_recorded(yard: Yard) -> None:
    begin = time.time()
    job = yard.submit("--gpus", "1", "--simulate-use", "3G;util=42", "sleep", "600")
    source = open_source("recordings", lambda: yard.client)

    def recorded() -> Recording | None:
        found = source.read(["utilization", "memory_used", "process_memory"], -math.inf, math.inf, job=job)
        used = found.of("process_memory")
        return found if used and np.nanmax(used[0].mean) == 3 * GIB else None

    found = until(recorded, "the job in the recordings")
    assert found.simulated
    [used], [busy] = found.of("process_memory"), found.of("utilization")
    assert (used.subject.job, used.subject.gpu) == (job, busy.subject.gpu)
    assert np.nanmax(busy.mean) == 42
    assert busy.subject.uuid == f"SIMULATED-{busy.subject.gpu}"
    span = source.read(["memory_used"], begin, time.time(), gpus=[busy.subject.uuid])
    assert {one.subject.gpu for one in span.series} == {busy.subject.gpu}
    assert np.nanmax(span.of("memory_used")[0].mean) == 3 * GIB
    assert any(mark.subject is not None and mark.subject.job == job for mark in found.marks)
