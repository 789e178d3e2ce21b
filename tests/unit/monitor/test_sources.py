"""Which source a text means; the daemon's recordings and simulated GPUs as sources."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.monitor.sources import open_source
from gpuyard.monitor.sources.csv_files import SmiCsv
from gpuyard.monitor.sources.prometheus import PrometheusSource
from gpuyard.monitor.sources.recorded import Recorded
from gpuyard.monitor.sources.simulated_gpus import SimulatedSource
from gpuyard.recordings.series import OF_GPUS, Subject

T0 = 1_800_000_000.0


class Asked:
    """A client whose recordings a test makes up."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def recording(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return self.answer


def nobody() -> Any:
    raise AssertionError("nobody is to be asked")


def test_a_text_says_which_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUYARD_PROMETHEUS_URL", raising=False)
    assert isinstance(open_source("recordings", Asked), Recorded)
    assert open_source("prometheus", nobody).name == "Prometheus at http://localhost:9090"
    assert open_source("prometheus", nobody, url="https://a:b@box/prom/").name == "Prometheus at https://box/prom"
    assert open_source("prometheus:box:9090", nobody, url="ignored").name == "Prometheus at http://box:9090"
    assert isinstance(open_source("http://box:9090", nobody), PrometheusSource)
    monkeypatch.setenv("GPUYARD_PROMETHEUS_URL", "http://elsewhere:1")
    assert open_source("prometheus", nobody).name == "Prometheus at http://elsewhere:1"
    assert isinstance(open_source("simulated:2x80G", nobody), SimulatedSource)
    assert isinstance(open_source("gpu_usage.csv", nobody), SmiCsv)
    (tmp_path / "b.csv").write_text("2026/11/16 18:45:01.123, 0, 12.50\n")
    [series] = open_source(f"{tmp_path}/b.csv:timestamp,index,power.draw", nobody).read(["power"], 0, 4e9).series
    assert series.mean.tolist() == [12.5]
    with pytest.raises(UserError, match="'promtheus' is no source; did you mean 'prometheus'"):
        open_source("promtheus", nobody)


ANSWER: dict[str, Any] = {
    "from": "2027-01-15T08:00:00+00:00", "to": "2027-01-15T08:00:03+00:00", "start": T0, "end": T0 + 3, "period": 1.0,
    "level": "samples", "simulated": True, "energy_wh": 1.0, "gpu_hours": 0.1, "warnings": ["a gap"],
    "gpus": [
        {
            "index": n, "uuid": f"GPU-{n}", "name": "A100", "memory_total": 2**30, "at": [T0, T0 + 1, T0 + 2],
            "metrics": {
                "power": {"mean": [1.0, None, 3.0], "min": None, "max": None},
                "utilization": {"mean": [5, 6, 7], "min": [4, 5, 6], "max": [8, 9, 10]},
            },
        }
        for n in range(2)
    ],
    "jobs": [{"id": "17", "attempt": 1, "gpu": 1, "at": [T0 + 1],
              "metrics": {"process_memory": {"mean": [2**20], "min": None, "max": None}}}],
    "marks": [{"at": T0 + 1, "until": T0 + 2, "label": "job 17", "gpu": 1, "job": "17"},
              {"at": T0, "until": None, "label": "XID 79", "gpu": 0, "job": None}],
}  # fmt: skip


def test_recordings_of_the_daemon() -> None:
    client = Asked(ANSWER)
    found = open_source("recordings", lambda: client).read(["power", "utilization"], T0, T0 + 3, gpus=["0", "1"])
    assert client.asked[-1] == {
        "metrics": ["utilization", "power"], "points": 2000, "since": T0, "until": T0 + 3, "gpus": [0, 1]
    }  # fmt: skip
    assert (found.start, found.end, found.simulated, found.warnings) == (T0, T0 + 3, True, ["a gap"])
    power = found.of("power")[1]
    assert power.subject == Subject(1, "GPU-1", "A100")
    np.testing.assert_array_equal(power.mean, [1, np.nan, 3])
    assert power.low is None
    busy = found.of("utilization")[0]
    assert busy.low is not None
    assert busy.high is not None
    assert (busy.low.tolist(), busy.high.tolist()) == ([4, 5, 6], [8, 9, 10])
    [used] = found.of("process_memory")
    assert (used.subject, used.mean.tolist()) == (Subject(1, "GPU-1", "A100", "17"), [2**20])
    assert [(mark.at, mark.until, mark.label) for mark in found.marks] == [
        (T0 + 1, T0 + 2, "job 17"), (T0, None, "XID 79"),
    ]  # fmt: skip


def test_recordings_of_a_job_and_of_gpus_by_uuid() -> None:
    client = Asked(ANSWER)
    source = Recorded(client.recording)
    whole = source.read(["power"], -math.inf, math.inf, job="17")
    assert client.asked[-1] == {"job": "17", "metrics": ["power"], "points": 2000}
    assert (whole.start, whole.end, len(whole.series)) == (T0, T0 + 3, 5)
    part = source.read(["power"], T0 + 1, T0 + 9, gpus=["GPU-1"], step=4.0)
    assert client.asked[-1]["points"] == 2
    assert {one.subject.gpu for one in part.series} == {1}
    assert [one.at[0] for one in part.of("power")] == [T0 + 1]
    assert [mark.label for mark in part.marks] == ["job 17"]


def test_a_job_that_still_runs_is_marked_however_long_ago_it_began() -> None:
    marks = [
        {"at": T0 - 0.0003, "until": None, "label": "job 17", "gpu": 1, "job": "17"},  # spans are told in milliseconds
        {"at": T0 - 0.0003, "until": None, "label": "XID 79", "gpu": 1, "job": None},
    ]
    source = Recorded(Asked(ANSWER | {"marks": marks}).recording)
    assert [mark.label for mark in source.read(["power"], -math.inf, math.inf, job="17").marks] == ["job 17", "XID 79"]
    assert [mark.label for mark in source.read(["power"], T0 + 1, T0 + 9, gpus=["GPU-1"]).marks] == ["job 17"]


def test_simulated_gpus_are_the_same_every_time_and_say_what_they_are() -> None:
    found = [SimulatedSource("2x16G").read(OF_GPUS, T0, T0 + 1800) for _ in range(2)]
    assert found[0].simulated
    assert found[0].warnings == ["these GPUs are simulated: nothing was measured"]
    assert len(found[0].series) == 2 * len(OF_GPUS)
    for one, again in zip(found[0].series, found[1].series, strict=True):
        np.testing.assert_array_equal(one.mean, again.mean)
    by_metric = {one.metric: one.mean for one in found[0].series if one.subject.gpu == 0}
    busy = by_metric["utilization"]
    assert busy.min() == 0 < 50 < busy.max() <= 100
    assert set(by_metric["power"][busy == 0]) == {25.0}
    assert ((by_metric["memory_used"] + by_metric["memory_free"]) == 16 * 2**30).all()
    [series] = SimulatedSource("2x16G").read(["power"], T0, T0 + 60, gpus=["1"], step=10.0).series
    assert (series.subject.gpu, series.at.tolist()) == (1, [T0 + 10 * n for n in range(7)])
    assert "no simulated GPU '7'" in SimulatedSource("1").read(["power"], T0, T0 + 1, gpus=["7"]).warnings[-1]
