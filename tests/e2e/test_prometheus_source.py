"""A real Prometheus as a source: what exporters of made-up GPUs and gpuyard itself told, read back as it was."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.dcgm_exporter import NEW, OLD, Exporter, Scrape
from tests.prometheus import RealPrometheus, tool
from tests.yard import Yard, opened, until

from gpuyard.monitor.sources.prometheus import PrometheusSource
from gpuyard.recordings.series import USUAL, Recording, Series

MIB = 2**20
PAST = math.floor(time.time() / 86400 - 2) * 86400.0
LONG = 26_000
"""Samples of the past, one each second: more than twice what Prometheus tells at once."""
HOLE = range(12_000, 12_100)
ENOUGH = 6
"""Scrapes to look at."""


class Scene(NamedTuple):
    """Who is there to be scraped, and who scrapes."""

    prometheus: RealPrometheus
    new: Exporter
    old: Exporter
    yard: Yard
    since: float

    def read(self, *metrics: str, since: float | None = None, **wish: object) -> Recording:
        begin = self.since if since is None else since
        return PrometheusSource(self.prometheus.url, patience=0.5).read(
            metrics, begin, time.time() + 1, **wish  # type: ignore[arg-type]
        )  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("prometheus")
    tool("prometheus")
    with (
        Exporter(families=(NEW, OLD)) as new,
        Exporter(families=(OLD,), host="n2", gpus=1) as old,
        opened(folder) as yard,
    ):
        yard.serve("--port", "0")
        daemon = yard.client.status()["url"].removeprefix("http://")
        server = RealPrometheus(folder / "server", [new.target, old.target, daemon])
        fill(server, folder)
        since = time.time()
        server.start()
        try:
            until(lambda: min(len(new.told), len(old.told)) >= ENOUGH, "some scrapes")
            until(lambda: server.query("gpuyard_gpu_utilization_ratio"), "a scrape of the daemon")
            yield Scene(server, new, old, yard, since)
        finally:
            server.stop()


def fill(server: RealPrometheus, folder: Path) -> None:
    """Give a Prometheus that is still to start a past: a gap in it, and a pod that begins later."""
    lines = ["# TYPE DCGM_FI_DEV_POWER_USAGE gauge"]
    for second in range(LONG):
        pod = ',pod="train"' if second >= 20_000 else ""
        labels = f'gpu="0",UUID="GPU-past",Hostname="n9",instance="n9:9400"{pod}'
        if second not in HOLE:
            lines.append(f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {second / 8} {PAST + second:.0f}")
    (folder / "past").write_text("\n".join([*lines, "# EOF", ""]))
    command = [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(folder / "past"), str(server.blocks)]
    subprocess.run(command, check=True, capture_output=True)


def one(recording: Recording, metric: str, uuid: str) -> Series:
    [found] = [series for series in recording.of(metric) if series.subject.uuid == uuid]
    return found


def compared(series: Series, told: list[Scrape], gpu: int, factor: float = 1.0) -> int:
    """Hold what was read against what was exported, value by value and in order; how many there were.

    A scrape that took too long was told to a Prometheus that had stopped listening: such a one may be missing.
    """
    known = ~np.isnan(series.mean)
    scrapes = iter(told)
    for value, at in zip(series.mean[known], series.at[known], strict=True):
        said = next((one for one in scrapes if one.gpus[gpu][series.metric] * factor == value), None)
        assert said is not None, (series.metric, value, at)
        assert abs(said.at - at) < 5
    return int(known.sum())


def test_values_are_what_was_exported(scene: Scene) -> None:
    metrics = (*USUAL, "memory_used", "memory_free", "sm_clock", "memory_clock", "xid")
    [stored] = scene.prometheus.query('count_over_time(DCGM_FI_DEV_POWER_USAGE{gpu="0",Hostname="n1"}[1h])')
    found = scene.read(*metrics, gpus=["GPU-n1-0", "GPU-n1-1", "GPU-n2-0"])
    for exporter, uuid, gpu in ((scene.new, "GPU-n1-0", 0), (scene.new, "GPU-n1-1", 1), (scene.old, "GPU-n2-0", 0)):
        for metric in metrics:
            factor = MIB if metric.startswith("memory_") and metric != "memory_clock" else 1.0
            assert compared(one(found, metric, uuid), list(exporter.told), gpu, factor) >= ENOUGH - 1
    first = one(found, "power", "GPU-n1-0")
    assert len(first.mean) >= int(stored["value"][1])  # all that there are, the very first as well
    assert (first.subject.name, first.subject.host) == ("NVIDIA A100-SXM4-80GB", "n1")
    assert first.period == pytest.approx(0.5, abs=0.05)
    assert one(found, "power", "GPU-n2-0").subject.host == "127.0.0.1"  # the old one does not say its name
    assert not [text for text in found.warnings if "where that has gaps" in text]  # it has both names, with the same


def test_hours_are_read_in_pieces_with_the_gap_that_there_was(scene: Scene) -> None:
    source = PrometheusSource(scene.prometheus.url)
    found = source.read(["power"], PAST, PAST + LONG - 1, step=1.0)
    [series] = found.series
    known = ~np.isnan(series.mean)
    expected = [second for second in range(LONG) if second not in HOLE]
    assert (series.at[known] - PAST).tolist() == expected
    assert series.mean[known].tolist() == [second / 8 for second in expected]
    assert (~known).sum() == 1
    [warning] = found.warnings
    assert warning.startswith("nothing is known from ")


def test_spans_have_the_mean_the_least_and_the_most(scene: Scene) -> None:
    source = PrometheusSource(scene.prometheus.url)
    found = source.read(["power"], PAST, PAST + LONG - 1, step=50.0)
    [series] = found.series
    assert series.low is not None
    assert series.high is not None
    rows = np.arange(LONG // 50)
    hole = (rows >= HOLE.start // 50) & (rows < HOLE.stop // 50)
    expected = np.where(hole, np.nan, (rows * 50 + 24.5) / 8)
    np.testing.assert_allclose(series.mean, expected, rtol=1e-9)
    np.testing.assert_array_equal(series.low[~hole], (rows * 50 / 8)[~hole])
    np.testing.assert_array_equal(series.high[~hole], ((rows * 50 + 49) / 8)[~hole])
    assert (series.at - PAST).tolist() == (rows * 50).tolist()
    assert (len(series.mean), series.period) == (LONG // 50, 50.0)
    by_itself = source.read(["power"], PAST, PAST + LONG - 1)
    assert by_itself.series[0].period == 10.0  # 26,000 values are more than anybody can see


def test_more_points_than_prometheus_tells_at_once(scene: Scene) -> None:
    found = PrometheusSource(scene.prometheus.url).read(["power"], PAST, PAST + LONG - 1, step=2.0)
    [series] = found.series
    assert len(series.mean) == LONG // 2 > 11_000
    known = ~np.isnan(series.mean)
    assert known.sum() == (LONG - len(HOLE)) // 2
    np.testing.assert_array_equal(series.mean[known], (series.at[known] - PAST + 0.5) / 8)


def test_labels_that_change_while_it_is_scraped(scene: Scene) -> None:
    before = len(scene.new.told)
    scene.new.more[1] = [{"hpc_job": "17", "pod": "train"}, {"hpc_job": "18", "pod": "train"}]
    until(lambda: len(scene.new.told) >= before + 3, "scrapes of two jobs on a GPU")
    scene.new.more.clear()
    until(lambda: len(scene.new.told) >= before + 6, "scrapes of none")
    series = one(scene.read("power", gpus=["n1:1"]), "power", "GPU-n1-1")
    assert compared(series, list(scene.new.told), 1) >= 6
    of_job = scene.read("power", job="17")
    assert [found.subject.uuid for found in of_job.series] == ["GPU-n1-1"]


def test_gpuyard_is_scraped_and_read_back(scene: Scene) -> None:
    job = scene.yard.submit("--gpus", "1", "--simulate-use", "3G;util=42", "sleep", "600")
    found = until(lambda: busy(scene, job), "the job in Prometheus")
    used, load = found.of("process_memory"), found.of("utilization")
    assert found.simulated
    assert [(series.subject.job, series.mean[-1]) for series in used] == [(job, 3 * 2**30)]
    assert [series.subject.uuid for series in load] == [used[0].subject.uuid]
    assert load[0].mean[-1] == pytest.approx(42)
    free = one(scene.read("memory_free", job=job), "memory_free", load[0].subject.uuid)
    assert free.mean[-1] == 13 * 2**30


def busy(scene: Scene, job: str) -> Recording | None:
    found = scene.read("utilization", "process_memory", job=job)
    known = [series for series in found.series if series.mean[-1] > 0]
    return found if len(known) == 2 else None


def test_prometheus_stopped_half_way(scene: Scene) -> None:
    gpus = ["GPU-n1-0", "GPU-n2-0"]
    begin = time.time() - 1
    scene.prometheus.stop()
    stopped = len(scene.new.told)
    away = scene.read("power", since=begin, gpus=gpus)
    assert away.series == []
    [warning] = away.warnings
    assert warning.startswith(f"Prometheus at {scene.prometheus.url} does not answer (")
    time.sleep(2.0)  # scrapes that do not happen
    scene.prometheus.start()
    until(lambda: len(scene.new.told) >= stopped + 3 and scene.old.told[-1].at > time.time() - 1, "scrapes again")
    found = until(lambda: resumed(scene, begin, gpus), "the gap in what is read")
    series = one(found, "power", "GPU-n1-0")
    gap = max(np.flatnonzero(np.isnan(series.mean)), key=lambda place: series.at[place + 1] - series.at[place])
    assert series.at[gap + 1] - series.at[gap - 1] > 2.0
    assert series.mean[gap + 1] in [scrape.gpus[0]["power"] for scrape in scene.new.told[stopped:]]  # it goes on
    compared(series, list(scene.new.told), 0)
    assert any(text.startswith("nothing is known") and " from " in text for text in found.warnings), found.warnings


def resumed(scene: Scene, begin: float, gpus: list[str]) -> Recording | None:
    found = scene.read("power", since=begin, gpus=gpus)
    enough = len(found.series) == 2 and all(np.isnan(series.mean[1:-1]).any() for series in found.series)
    return found if enough else None


def test_a_window_is_drawn_and_an_outage_in_it_is_a_gap_a_warning_and_no_failure(scene: Scene) -> None:
    words = ("--source", "prometheus", "--url", scene.prometheus.url, "--gpus", "GPU-n1-0")
    done = scene.yard("plot", *words, "--since", "10m", "--out", "figures", "--format", "png,html")
    assert done.code == 0, done
    names = [f"figures/{metric}.png" for metric in USUAL]
    assert done.out.split() == [*names, "figures/plots.html"]
    begin, end = (datetime.fromtimestamp(PAST + second, UTC).isoformat() for second in (11_000, 13_000))
    span = ("--from", begin, "--to", end, "--metrics", "power", "--format", "html", "--json")
    words = (*words[:-1], "GPU-past")
    done = scene.yard("plot", *words, *span, "--out", "gap")
    assert (done.code, "nothing is known from" in done.err) == (0, True)
    page = (scene.yard.cwd / "gap/plots.html").read_text()
    found = re.search(r'id="recorded">(.*?)</script>', page)
    assert found is not None
    values = json.loads(found[1])["panels"][0]["lines"][0]["mean"]
    assert (values[0], values[-1], values.count(None)) == (11_000 / 8, 13_000 / 8, 1)
    scene.prometheus.stop()
    try:
        done = scene.yard("plot", *words, *span, "--out", "never", more={"GPUYARD_PROMETHEUS_PATIENCE": "0.2"})
    finally:
        scene.prometheus.start()
    assert (done.code, (scene.yard.cwd / "never").exists()) == (2, False)
    assert "there is nothing to draw" in done.err
