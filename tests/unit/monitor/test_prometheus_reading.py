"""Prometheus as a source, against a stand-in: names, units, labels, pieces, and what it does not answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.bareserver import Listener, answering
from tests.certificates import certificate
from tests.promstandin import PromStandIn, Refusal

from gpuyard.errors import UserError
from gpuyard.monitor.sources.prometheus import PrometheusSource
from gpuyard.recordings.series import Recording, Series, Subject
from gpuyard.spec.times import format_when

T0 = 1_790_000_000.0
MIB = 2**20
N1 = {"gpu": "0", "UUID": "GPU-a", "modelName": "NVIDIA A100", "Hostname": "n1", "instance": "n1:9400"}
OWN = {"gpu": "0", "uuid": "GPU-a", "name": "NVIDIA A100", "instance": "10.0.0.1:62333", "job": "gpuyard"}


@pytest.fixture
def server() -> Iterator[PromStandIn]:
    with PromStandIn() as found:
        yield found


def line(*values: float | str, start: float = T0, step: float = 1.0) -> list[tuple[float, str]]:
    return [(start + number * step, str(value)) for number, value in enumerate(values)]


def source(server: PromStandIn, **options: float | str) -> PrometheusSource:
    return PrometheusSource(server.url, sleep=lambda _: None, **options)  # type: ignore[arg-type]


def read(server: PromStandIn, *metrics: str, seconds: float = 60.0, **wish: object) -> Recording:
    return source(server).read(metrics, T0, T0 + seconds, **wish)  # type: ignore[arg-type]


def only(recording: Recording, metric: str) -> Series:
    [found] = recording.of(metric)
    return found


def gaps(recording: Recording) -> list[str]:
    return [text for text in recording.warnings if "nothing is known" in text]


@pytest.mark.parametrize(
    ("name", "labels", "metric", "told", "meant"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", N1, "utilization", 45, 45),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", N1, "memcopy", 7, 7),
        ("DCGM_FI_DEV_POWER_USAGE", N1, "power", 123.456, 123.456),
        ("DCGM_FI_DEV_GPU_TEMP", N1, "temperature", 41, 41),
        ("DCGM_FI_DEV_FB_USED", N1, "memory_used", 1000, 1000 * MIB),
        ("DCGM_FI_DEV_FB_FREE", N1, "memory_free", 80920, 80920 * MIB),
        ("DCGM_FI_DEV_SM_CLOCK", N1, "sm_clock", 1410, 1410),
        ("DCGM_FI_DEV_MEM_CLOCK", N1, "memory_clock", 1215, 1215),
        ("DCGM_FI_DEV_XID_ERRORS", N1, "xid", 79, 79),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", N1, "throttle", 4, 4),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", N1, "throttle", 4, 4),
        ("dcgm_gpu_utilization", {"gpu": "0", "uuid": "GPU-a"}, "utilization", 45, 45),
        ("dcgm_mem_copy_utilization", {"gpu": "0"}, "memcopy", 7, 7),
        ("dcgm_power_usage", {"gpu": "0"}, "power", 123.456, 123.456),
        ("dcgm_gpu_temp", {"gpu": "0"}, "temperature", 41, 41),
        ("dcgm_fb_used", {"gpu": "0"}, "memory_used", 1000, 1000 * MIB),
        ("dcgm_fb_free", {"gpu": "0"}, "memory_free", 1000, 1000 * MIB),
        ("dcgm_sm_clock", {"gpu": "0"}, "sm_clock", 1410, 1410),
        ("dcgm_memory_clock", {"gpu": "0"}, "memory_clock", 1215, 1215),
        ("dcgm_xid_errors", {"gpu": "0"}, "xid", 31, 31),
        ("gpuyard_gpu_utilization_ratio", OWN, "utilization", 0.45, 45),
        ("gpuyard_gpu_memory_copy_ratio", OWN, "memcopy", 0.07, 7),
        ("gpuyard_gpu_memory_used_bytes", OWN, "memory_used", 1000, 1000),
        ("gpuyard_gpu_power_watts", OWN, "power", 99.5, 99.5),
        ("gpuyard_gpu_temperature_celsius", OWN, "temperature", 41, 41),
        ("gpuyard_gpu_sm_clock_hertz", OWN, "sm_clock", 1.41e9, 1410),
        ("gpuyard_gpu_memory_clock_hertz", OWN, "memory_clock", 1.215e9, 1215),
        ("gpuyard_gpu_throttle_reasons", OWN, "throttle", 4, 4),
    ],
)
def test_every_name_in_our_unit(
    server: PromStandIn, name: str, labels: dict[str, str], metric: str, told: float, meant: float
) -> None:
    server.add(name, line(*[told] * 61), **labels)
    found = read(server, metric)
    assert found.warnings == []
    assert only(found, metric).mean.tolist() == pytest.approx([meant] * 61)
    assert only(found, metric).at.tolist() == [T0 + second for second in range(61)]  # the first and the last as well
    assert only(found, metric).period == 1.0


def test_what_is_no_number_and_what_dcgm_does_not_know_is_a_gap(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(1, "NaN", "+Inf", "-Inf", 140737488355328, 6), **N1)
    server.add("DCGM_FI_DEV_GPU_TEMP", line(1, 2147483632, 9223372036854775794, 4, 5, 6), **N1)
    found = read(server, "power", "temperature", seconds=5)
    np.testing.assert_array_equal(only(found, "power").mean, [1, *[np.nan] * 4, 6])
    np.testing.assert_array_equal(only(found, "temperature").mean, [1, np.nan, np.nan, 4, 5, 6])


def test_free_memory_of_gpuyards_own_follows_from_the_rest(server: PromStandIn) -> None:
    server.add("gpuyard_gpu_memory_total_bytes", line(*[100] * 61), **OWN)
    server.add("gpuyard_gpu_memory_used_bytes", line(*range(61)), **OWN)
    found = read(server, "memory_free")
    assert [one.metric for one in found.series] == ["memory_free"]
    assert only(found, "memory_free").mean.tolist() == [100 - second for second in range(61)]
    spans = only(read(server, "memory_free", step=20.0), "memory_free")
    assert spans.low is not None
    assert spans.high is not None
    assert (spans.mean[1], spans.low[1], spans.high[1]) == (
        pytest.approx(spans.mean[1]),
        spans.low[1],
        spans.low[1] + 19,
    )
    assert spans.low[1] < spans.mean[1] < spans.high[1] < 100


def test_labels_that_change_are_one_gpu_and_count_once(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(30)), **N1)
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(30, 50), start=T0 + 30), **N1, pod="train-1", container="c")
    for job in ("17", "18"):  # two jobs on the GPU: the same series twice
        server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(50, 61), start=T0 + 50), **N1, hpc_job=job)
    found = read(server, "power")
    assert only(found, "power").mean.tolist() == list(range(61))
    assert only(found, "power").subject == Subject(0, "GPU-a", "NVIDIA A100")
    assert found.warnings == []
    spans = only(read(server, "power", step=30.0), "power")
    assert spans.high is not None
    assert np.nanmax(spans.high) == 60
    assert np.nanmax(spans.mean) <= 60


def test_the_newer_name_counts_and_the_older_one_fills_its_gaps(server: PromStandIn) -> None:
    server.add("dcgm_power_usage", line(*[7] * 61), gpu="0", uuid="GPU-a", instance="n1:9400")
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*[9] * 31, start=T0 + 30), **N1)
    found = read(server, "power")
    values = only(found, "power").mean
    assert values.tolist() == [7] * 30 + [9] * 31
    assert found.warnings == [
        "power of GPU 0 is DCGM_FI_DEV_POWER_USAGE, and where that has gaps dcgm_power_usage"
    ]  # fmt: skip
    server.series.pop()
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*[9] * 61), **N1)
    found = read(server, "power")
    assert (set(only(found, "power").mean), found.warnings) == ({9.0}, [])  # they cover the same: nothing to say


def test_several_hosts_are_told_apart_and_can_be_chosen(server: PromStandIn) -> None:
    for host in ("n1", "n2"):
        for gpu in ("0", "1"):
            labels = {"gpu": gpu, "UUID": f"GPU-{host}-{gpu}", "Hostname": host, "instance": f"{host}.lab:9400"}
            server.add("DCGM_FI_DEV_POWER_USAGE", line(*[int(gpu)] * 61), **labels)
    found = read(server, "power")
    assert [(one.subject.host, one.subject.gpu) for one in found.series] == [
        ("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1),
    ]  # fmt: skip
    for chosen, expected in (
        (["0"], ["GPU-n1-0", "GPU-n2-0"]),
        (["n2:1"], ["GPU-n2-1"]),
        (["n1.lab:0"], ["GPU-n1-0"]),
        (["GPU-n2-0", "n1:1"], ["GPU-n1-1", "GPU-n2-0"]),
    ):
        assert [one.subject.uuid for one in read(server, "power", gpus=chosen).series] == expected
    one = read(server, "power", gpus=["n2:1", "7"])
    assert [series.subject.host for series in one.series] == [""]  # a single machine needs no name
    assert one.warnings == [f"Prometheus at {server.url} knows no GPU '7'"]


@pytest.mark.parametrize("instance", ["n1:9400", "proxy:9400"])
def test_a_host_is_what_series_say_and_not_the_address_of_another(server: PromStandIn, instance: str) -> None:
    for host, address in (("n1", "proxy:9400"), ("n2", instance)):
        labels = {"gpu": "0", "UUID": f"GPU-{host}", "Hostname": host, "instance": address}
        server.add("DCGM_FI_DEV_POWER_USAGE", line(*[1] * 61), **labels)
    assert [one.subject.uuid for one in read(server, "power", gpus=["n1:0"]).series] == ["GPU-n1"]
    assert read(server, "power", gpus=["n1:1"]).series == []
    by_address = {one.subject.uuid for one in read(server, "power", gpus=["proxy:0"]).series}
    assert by_address == ({"GPU-n1"} if instance == "n1:9400" else {"GPU-n1", "GPU-n2"})


def test_mig_devices_are_gpus_of_their_own(server: PromStandIn) -> None:
    for part in ("1", "2"):
        server.add("DCGM_FI_DEV_FB_USED", line(*[int(part)] * 61), **N1, GPU_I_ID=part, GPU_I_PROFILE="1g.10gb")
    found = read(server, "memory_used")
    assert [(one.subject.uuid, one.subject.name, one.mean[0]) for one in found.series] == [
        ("GPU-a/1", "NVIDIA A100 MIG 1g.10gb", MIB), ("GPU-a/2", "NVIDIA A100 MIG 1g.10gb", 2 * MIB),
    ]  # fmt: skip


def test_a_job_by_gpuyards_own_metrics_and_by_dcgms_label(server: PromStandIn) -> None:
    for gpu in ("0", "1"):
        labels = {**OWN, "gpu": gpu, "uuid": f"SIMULATED-{gpu}"}
        server.add("gpuyard_gpu_utilization_ratio", line(*[0.5] * 61), **labels)
    used = {"gpu": "1", "exported_job": "17", "job": "gpuyard", "instance": OWN["instance"]}
    server.add("gpuyard_job_gpu_memory_bytes", line(*range(20), start=T0 + 10), **used)
    found = read(server, "utilization", "process_memory", job="17")
    assert found.simulated
    assert found.warnings == []  # a job is not there all the time
    assert only(found, "utilization").subject.gpu == 1
    assert only(found, "process_memory").subject == Subject(1, "SIMULATED-1", "NVIDIA A100", "17")
    assert [one.metric for one in read(server, "utilization", job="17").series] == ["utilization"]
    alone = only(read(server, "process_memory", job="17", gpus=["SIMULATED-1"]), "process_memory")
    assert alone.subject == Subject(1, "SIMULATED-1", "NVIDIA A100", "17")
    assert read(server, "process_memory", gpus=["SIMULATED-0"]).series == []
    server.add("DCGM_FI_DEV_GPU_UTIL", line(*[3] * 61), **{**N1, "gpu": "3", "UUID": "GPU-d"}, hpc_job="18")
    assert only(read(server, "utilization", job="18"), "utilization").subject.uuid == "GPU-d"
    unknown = read(server, "utilization", job="19")
    assert unknown.series == []
    assert "knows nothing of job 19" in unknown.warnings[0]
    assert len(read(server, "utilization", job="19", gpus=["3"]).series) == 1


def test_errors_that_came_up_are_marked(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_XID_ERRORS", line(13, 13, 0, 79, 79, 31), **N1)
    marks = read(server, "xid", seconds=5).marks
    assert [(mark.at - T0, mark.label) for mark in marks] == [(3, "XID 79"), (5, "XID 31")]


@pytest.mark.parametrize("step", [None, 5.0])
def test_errors_that_gpuyard_counts(server: PromStandIn, step: float | None) -> None:
    server.add("gpuyard_gpu_xid_errors_total", line(*[2] * 30, *[3] * 31), **OWN, xid="13")  # two are from before
    server.add("gpuyard_gpu_xid_errors_total", line(*[1] * 41, start=T0 + 20), **OWN, xid="79")
    found = read(server, "xid", step=step)
    assert [(mark.at - T0, mark.label) for mark in found.marks] == [(20, "XID 79"), (30, "XID 13")]
    assert set(only(found, "xid").mean.tolist()) == {0, 13, 79}
    assert found.warnings == []


def test_where_nothing_was_scraped_is_a_gap(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", [*line(*range(20)), *line(*range(40, 61), start=T0 + 40)], **N1)
    found = read(server, "power")
    power = only(found, "power")
    assert np.isnan(power.mean).sum() == 1
    assert power.at[np.isnan(power.mean)].tolist() == [T0 + 20]
    [warning] = found.warnings
    assert warning.startswith("nothing is known from ")
    spans = only(read(server, "power", step=5.0), "power")
    known = spans.at[~np.isnan(spans.mean)] - T0
    assert not [at for at in known if 20 <= at < 35]


def test_a_long_time_is_asked_for_in_pieces(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(11_000)), **N1)
    found = read(server, "power", seconds=10_999)
    assert only(found, "power").mean.tolist() == list(range(11_000))
    spans = read(server, "power", seconds=10_999, step=100.0)
    series = only(spans, "power")
    first = int(T0 // 100 * 100 - T0)
    assert series.at[0] - T0 == first
    assert series.mean[1] == pytest.approx(first + 100 + 49.5)
    server.most, server.asked[:] = 50, []
    assert only(read(server, "power", seconds=10_999, step=100.0), "power").mean.tolist() == pytest.approx(
        series.mean.tolist(), nan_ok=True
    )
    assert len(server.asked) > 12  # what was too much at once was asked for in halves


def test_a_month_is_spans_by_itself(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*[100] * 43_200, step=60.0), **N1)
    found = read(server, "power", seconds=30 * 86400)
    series = only(found, "power")
    assert series.period == 900.0
    assert series.high is not None
    assert set(series.mean[~np.isnan(series.mean)]) == {100.0}
    assert gaps(found) == []
    asked = {(path, query.get("step")) for path, query in server.asked if path == "query_range"}
    assert asked == {("query_range", "900.000")}


class Moody:
    """Refuses some questions of a kind."""

    def __init__(self, refusal: Refusal, which: Mapping[str, range]) -> None:
        self.refusal, self.which, self.count = refusal, which, dict.fromkeys(which, 0)

    def __call__(self, path: str, query: Mapping[str, str]) -> Refusal | None:
        if path not in self.which:
            return None
        self.count[path] += 1
        return self.refusal if self.count[path] - 1 in self.which[path] else None


def test_it_is_asked_again_while_it_cannot_answer(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(61)), **N1)
    server.refuse = Moody((503, "overloaded"), {"series": range(3), "query": range(2)})
    found = read(server, "power")
    assert (found.warnings, only(found, "power").mean.tolist()) == ([], list(range(61)))
    assert len(server.asked) == 7


def test_an_outage_is_a_gap_and_a_warning_and_the_rest_is_there(server: PromStandIn) -> None:
    pairs = line(*range(12_001), step=0.5)
    for gpu in range(40):  # so many that it takes two questions, after one for how often they are scraped
        server.add("DCGM_FI_DEV_POWER_USAGE", pairs, **{**N1, "gpu": str(gpu), "UUID": f"GPU-{gpu}"})
    server.refuse = Moody((502, ""), {"query": range(1, 2)})
    found = source(server, patience=0.0).read(["power"], T0, T0 + 5000)
    assert len(found.series) == 40
    assert "cannot answer (502): nothing is known from " in found.warnings[0]
    power = found.series[0]
    assert (power.at[0], power.mean[-1]) == (T0 + 3750, 10_000)
    assert len(found.warnings) == 1


@pytest.mark.parametrize(
    ("refused", "drawn", "said"),
    [
        (range(9), [], ["nothing is known from "]),
        (
            range(1, 9),
            ["temperature"],
            ["nothing is known of power from ", "least and the most of temperature are not"],
        ),
        (range(4, 9), ["power", "temperature"], ["the least and the most of power are not known from "]),
    ],
)
def test_an_outage_between_two_questions_is_told_as_what_it_is(
    server: PromStandIn, refused: range, drawn: list[str], said: list[str]
) -> None:
    hole = [*line(*range(200)), *line(*range(400, 601), start=T0 + 400)]
    server.add("DCGM_FI_DEV_POWER_USAGE", hole, **N1)
    server.add("DCGM_FI_DEV_GPU_TEMP", hole, **N1)
    server.refuse = Moody((502, ""), {"query_range": refused})
    reading = source(server, patience=0.0)
    found = reading.read(["power", "temperature"], T0, T0 + 600, step=10.0)  # first asked for is the temperature
    assert sorted(one.metric for one in found.series) == drawn
    outage = [text for text in found.warnings if "Prometheus" in text]
    assert len(outage) == len(said), outage
    assert all(part in text for part, text in zip(said, outage, strict=True))
    gap = [text for text in found.warnings if text not in outage]
    assert [text.startswith("nothing is known from ") for text in gap] == [True] * bool(drawn)  # as there really is


def test_what_was_not_answered_is_not_said_to_be_missing(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(61)), **N1)
    server.add("gpuyard_gpu_memory_total_bytes", line(*[100] * 61), **OWN)
    server.add("gpuyard_gpu_memory_used_bytes", line(*range(61)), **OWN)
    server.refuse = Moody((502, ""), {"query": range(9)})
    found = source(server, patience=0.0).read(["power", "memory_free"], T0, T0 + 60)
    assert (found.series, len(found.warnings)) == ([], 1)
    assert "cannot answer (502): nothing is known from " in found.warnings[0]


def test_a_gap_beside_an_outage_is_told_as_well(server: PromStandIn) -> None:
    for gpu in range(40):  # so many that it takes two questions
        pairs = [pair for pair in line(*range(10_001), step=0.5) if not 4000 < pair[0] - T0 < 4500]
        server.add("DCGM_FI_DEV_POWER_USAGE", pairs, **{**N1, "gpu": str(gpu), "UUID": f"GPU-{gpu}"})
    server.refuse = Moody((502, ""), {"query": range(1, 2)})
    outage, gap = source(server, patience=0.0).read(["power"], T0, T0 + 5000).warnings
    assert "cannot answer (502): nothing is known from " in outage
    assert gap == f"nothing is known from {format_when(T0 + 4000, T0 + 5000)} to {format_when(T0 + 4500, T0 + 5000)}"


def test_one_that_is_not_there_is_a_warning_and_not_a_crash(server: PromStandIn) -> None:
    found = PrometheusSource("http://127.0.0.1:1", patience=0.3).read(["power"], T0, T0 + 60)
    assert found.series == []
    assert found.warnings[0].startswith("Prometheus at http://127.0.0.1:1 does not answer (")
    assert (found.start, found.end) == (T0, T0 + 60)
    nothing = read(server, "power")
    assert "knows no GPU from " in nothing.warnings[0]
    assert "is dcgm-exporter, or gpuyard's /metrics, among its targets?" in nothing.warnings[0]


def test_one_that_stays_away_is_not_waited_for_again_and_again(server: PromStandIn) -> None:
    for gpu in range(40):
        server.add("DCGM_FI_DEV_POWER_USAGE", line(*[1] * 60), **{**N1, "gpu": str(gpu), "UUID": f"GPU-{gpu}"})
    server.refuse = Moody((500, ""), {"query_range": range(10**6)})
    slept: list[float] = []
    reading = PrometheusSource(server.url, patience=1.0, sleep=slept.append)
    found = reading.read(["power"], T0, T0 + 100_000, step=2.0)
    assert 3 <= sum(path == "query_range" for path, _ in server.asked) <= 10
    assert 0.1 < sum(slept) <= 1.0
    assert len(found.warnings) <= 3


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "what is ("}, "refuses the question: what is"),
        (401, {}, r"does not let you in \(401\); put a token into GPUYARD_PROMETHEUS_TOKEN"),
        (403, {}, r"does not let you in \(403\)"),
        (404, "<html>", r"is no Prometheus \(404\); say where it is with --url"),
        (200, "<html>Welcome to Grafana", "is no Prometheus"),
        (200, "[" * 100_000, "is no Prometheus"),
        (200, {"status": "success"}, "is no Prometheus"),
        (200, {"status": "success", "data": "x"}, "is no Prometheus"),
        (200, {"status": "success", "data": [{"gpu": 1}]}, "is no Prometheus"),
        (302, "", "is elsewhere now"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_with_what_to_do(server: PromStandIn, status: int, body: object, said: str) -> None:
    server.refuse = Moody((status, body if isinstance(body, str) else json.dumps(body)), {"series": range(99)})
    with pytest.raises(UserError, match=said):
        read(server, "power")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "data", [[], {"result": 1}, {"result": [{"values": []}]}, {"result": [{"metric": {}, "values": [[1, "x"]]}]}]
)  # fmt: skip
def test_values_that_are_none_are_told(server: PromStandIn, data: object) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(61)), **N1)
    server.refuse = Moody((200, json.dumps({"status": "success", "data": data})), {"query": range(99)})
    with pytest.raises(UserError, match="is no Prometheus"):
        read(server, "power")


def test_series_that_nobody_asked_for_are_left_out(server: PromStandIn) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(61)), **N1)
    other = {"metric": {"__name__": "up", "gpu": "0"}, "values": [[T0, "1"]]}
    told = {"status": "success", "warnings": 7, "data": {"result": [other]}}
    server.refuse = Moody((200, json.dumps(told)), {"query": range(99)})
    assert read(server, "power").series == []


def test_one_that_has_moved_says_where_to() -> None:
    head = b"HTTP/1.1 301 Moved\r\nLocation: https://prom.lab/x/api/v1/series?match=1\r\nContent-Length: 0\r\n\r\n"
    with (
        answering(head) as server,
        pytest.raises(UserError, match=r"is elsewhere now: https://prom.lab/x; say so with --url"),
    ):
        PrometheusSource(f"http://127.0.0.1:{server.port}").read(["power"], T0, T0 + 60)


def test_who_asks(server: PromStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*range(61)), **N1)
    monkeypatch.setenv("GPUYARD_PROMETHEUS_TOKEN", "s3cret")
    read(server, "power")
    assert server.headers[-1]["Authorization"] == "Bearer s3cret"
    monkeypatch.delenv("GPUYARD_PROMETHEUS_TOKEN")
    named = PrometheusSource(server.url.replace("//", "//ann:pass@"))
    assert only(named.read(["power"], T0, T0 + 60), "power").mean.tolist() == list(range(61))
    assert server.headers[-1]["Authorization"].startswith("Basic ")
    assert "pass" not in named.name


def test_tls_wants_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = certificate(tmp_path / "tls")
    body = json.dumps({"status": "success", "data": []}).encode()
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with answering(head + body, tls=own) as server:
        reading = PrometheusSource(f"https://localhost:{server.port}", sleep=lambda _: None)
        with pytest.raises(
            UserError, match=r"shows a certificate that is not trusted .* name the one to trust in SSL_CERT"
        ):
            reading.read(["power"], T0, T0 + 60)
        monkeypatch.setenv("SSL_CERT_FILE", own.file)
        assert "knows no GPU" in reading.read(["power"], T0, T0 + 60).warnings[0]


class Silent(Listener):
    """Takes a question and never answers."""

    def answer(self, connection: socket.socket) -> None:
        connection.recv(65536)
        connection.recv(65536)  # until whoever asks has enough


class Dripping(Listener):
    """Answers, a letter at a time, and never ends."""

    def answer(self, connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(OSError):  # until whoever asks has enough
            while True:
                connection.sendall(b" ")
                time.sleep(0.02)


def test_one_that_never_comes_to_an_end_is_left_alone() -> None:
    dripping = Dripping()
    try:
        found = PrometheusSource(f"http://127.0.0.1:{dripping.port}", patience=0.2, timeout=0.1).read(
            ["power"], T0, T0 + 9
        )
    finally:
        dripping.close()
    assert "does not answer (it takes too long): nothing is known from it" in found.warnings[0]


def test_one_that_never_answers_is_left_alone() -> None:
    silent = Silent()
    try:
        found = PrometheusSource(f"http://127.0.0.1:{silent.port}", patience=0.2, timeout=0.1).read(
            ["power"], T0, T0 + 9
        )
    finally:
        silent.close()
    assert found.warnings == [
        f"Prometheus at http://127.0.0.1:{silent.port} does not answer (it takes too long): nothing is known from it"
    ]


def test_what_makes_no_sense_is_refused(server: PromStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no metric 'powr'; did you mean 'power'"):
        read(server, "powr")
    with pytest.raises(UserError, match="has to end after it begins"):
        source(server).read(["power"], T0, T0)
    with pytest.raises(
        UserError, match="'ftp://box' is no URL of a Prometheus; write for example http://localhost:9090"
    ):
        PrometheusSource("ftp://box").read(["power"], T0, T0 + 1)
    monkeypatch.setenv("GPUYARD_PROMETHEUS_PATIENCE", "long")
    with pytest.raises(UserError, match="GPUYARD_PROMETHEUS_PATIENCE is 'long'; it has to be a number of seconds"):
        PrometheusSource(server.url)


def test_a_time_that_is_not_over_has_no_gap_at_its_end(server: PromStandIn) -> None:
    now = time.time()
    server.add("DCGM_FI_DEV_POWER_USAGE", line(*[1] * 61, start=now - 60), **N1)
    assert source(server).read(["power"], now - 60, now + 500).warnings == []
