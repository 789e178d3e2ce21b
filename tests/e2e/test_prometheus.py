"""What watches a daemon: its metrics as Prometheus reads them, its probes, the dashboard, and a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.fake_nvml import FakeNvml
from tests.prometheus import RealPrometheus, tool
from tests.sse import get
from tests.yard import Yard, until

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "gpuyard.json"
SCRAPE = REPOSITORY / "deploy" / "prometheus" / "prometheus.yml"
GIB = 2**30


def scraped(yard: Yard) -> str:
    status, headers, body = get(yard, "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    return body.decode()


def families(yard: Yard) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(scraped(yard))}


def value(yard: Yard, name: str, **labels: str) -> float | None:
    """One sample; None if there is no such series."""
    found = [
        sample.value
        for family in families(yard).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_complain_about(yard: Yard) -> None:
    promtool = tool("promtool")
    yard.wait(yard.submit("true"))
    yard.wait(yard.submit("false"))
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=scraped(yard), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_numbers_follow_what_happens(yard: Yard) -> None:
    def counted(name: str, **labels: str) -> float:
        return value(yard, name, **labels) or 0.0

    before = {name: counted("gpuyard_jobs_finished_total", outcome=name) for name in ("succeeded", "failed")}
    names = ("gpuyard_jobs_submitted_total", "gpuyard_job_wait_seconds_count", "gpuyard_plans_total")
    former = {name: counted(name) for name in names}
    cpu = counted("gpuyard_plan_cpu_seconds_total")
    runs = counted("gpuyard_job_run_seconds_count", outcome="failed")
    yard.wait(yard.submit("true"))
    yard.wait(yard.submit("false"))
    blocker = yard.submit("--gpus", "4", "sleep", "600")
    yard.client.job(blocker, wait=30, until="start")
    yard.submit("--gpus", "3", "true")
    yard.submit("--gpus", "2", "true")
    yard.submit("--hold", "true")
    assert counted("gpuyard_jobs_finished_total", outcome="succeeded") == before["succeeded"] + 1
    assert counted("gpuyard_jobs_finished_total", outcome="failed") == before["failed"] + 1
    assert counted("gpuyard_job_run_seconds_count", outcome="failed") == runs + 1
    assert counted("gpuyard_jobs_submitted_total") == former["gpuyard_jobs_submitted_total"] + 6
    assert counted("gpuyard_job_wait_seconds_count") == former["gpuyard_job_wait_seconds_count"] + 3
    assert counted("gpuyard_plans_total") > former["gpuyard_plans_total"]
    assert counted("gpuyard_plan_cpu_seconds_total") > cpu
    states = {state: value(yard, "gpuyard_jobs", state=state) for state in ("running", "queued", "held")}
    assert states == {"running": 1, "queued": 2, "held": 1}
    assert value(yard, "gpuyard_queue_gpus_wanted") == 5
    assert value(yard, "gpuyard_gpu_jobs", gpu="2") == 1
    assert value(yard, "gpuyard_gpu_state", gpu="2", state="ours") == 1
    assert value(yard, "gpuyard_gpu_state", gpu="2", state="free") == 0
    assert value(yard, "gpuyard_gpu_memory_used_bytes", gpu="2", uuid="SIMULATED-2") == 16 * GIB
    assert counted("gpuyard_events_total", kind="Submitted") == counted("gpuyard_jobs_submitted_total")
    assert counted("process_resident_memory_bytes") > 10_000_000


def test_simulated_gpus_tell_what_is_recorded_of_them(own_yard: Yard) -> None:
    own_yard.serve("--simulate-gpus", "1x16G")
    until(lambda: value(own_yard, "gpuyard_gpu_power_watts") == 25.0, "the power of an idle GPU")
    own_yard.submit("--simulate-use", "1G;util=60", "--", "sleep", "60")
    until(lambda: value(own_yard, "gpuyard_gpu_power_watts", uuid="SIMULATED-0") == 190.0, "the power of a busy one")
    assert value(own_yard, "gpuyard_gpu_memory_copy_ratio", gpu="0") == pytest.approx(0.24)
    assert value(own_yard, "gpuyard_gpu_sm_clock_hertz", gpu="0") == 1.35e9
    assert value(own_yard, "gpuyard_gpu_memory_clock_hertz", gpu="0") == 1.593e9
    assert value(own_yard, "gpuyard_gpu_throttle_reasons", gpu="0") == 0
    assert (value(own_yard, "gpuyard_gpu_temperature_celsius", gpu="0") or 0) >= 31
    assert value(own_yard, "gpuyard_gpu_info", gpu="0", simulated="true") == 1


def test_openmetrics_for_who_asks_for_it(yard: Yard) -> None:
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    _, headers, body = get(yard, "/metrics", accept)
    assert headers["content-type"].startswith("application/openmetrics-text")
    found = {family.name: family for family in openmetrics.text_string_to_metric_families(body.decode())}  # type: ignore[no-untyped-call]
    assert found["gpuyard_jobs_submitted"].type == "counter"
    assert found["gpuyard_job_wait_seconds"].type == "histogram"
    assert get(yard, "/metrics", {"Accept": "application/openmetrics-text; version=nonsense"})[0] == 200


def test_a_wait_begins_anew_with_a_retry_and_is_not_forgotten_by_a_restart(own_yard: Yard) -> None:
    own_yard.serve()
    id = own_yard.submit("--retries", "1", "--retry-delay", "1s", "sh", "-c", "test $GPUYARD_ATTEMPT = 2")
    until(lambda: value(own_yard, "gpuyard_events_total", kind="Requeued"), "a retry")
    own_yard.end()
    time.sleep(0.2)
    own_yard.serve()
    assert own_yard.wait(id)["state"] == "succeeded"
    at = {e["kind"]: datetime.fromisoformat(e["at"]) for e in own_yard.client.events(job=id)["events"]}
    waited = (at["Started"] - at["Requeued"]).total_seconds()
    assert waited > 0.9
    assert value(own_yard, "gpuyard_job_wait_seconds_sum") == pytest.approx(waited, abs=0.002)
    assert value(own_yard, "gpuyard_job_wait_seconds_count") == 1


def test_a_gpu_that_is_lost_has_no_readings(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    for number in range(2):
        fake_nvml.add(
            uuid=f"GPU-{number}", mem_total=16 * GIB, mem_used=number * 2**20, util=7, temp=50, power_mw=99500
        )
    (tmp_path / "data").mkdir()
    yard = Yard(tmp_path / "data", tmp_path)
    yard.use(fake_nvml)
    with _served(yard):
        assert value(yard, "gpuyard_gpu_utilization_ratio", uuid="GPU-0") == 0.07
        assert value(yard, "gpuyard_gpu_power_watts", uuid="GPU-1", gpu="1") == 99.5
        assert value(yard, "gpuyard_gpu_temperature_celsius", uuid="GPU-1") == 50
        assert get(yard, "/readyz")[0] == 200
        fake_nvml.set(1, lost=1)
        until(lambda: value(yard, "gpuyard_gpu_state", gpu="1", state="unknown") == 1, "the loss being seen")
        text = [line for line in scraped(yard).splitlines() if 'gpu="1"' in line]
        assert {line.partition("{")[0] for line in text} == {"gpuyard_gpu_state"}
        assert value(yard, "gpuyard_gpu_power_watts", uuid="GPU-0") == 99.5
        fake_nvml.set(0, lost=1)
        until(lambda: get(yard, "/readyz")[0] == 503, "nobody being ready")
        assert json.loads(get(yard, "/readyz")[2])["detail"] == "no GPU can be read; gpuyard gpus tells why"
        fake_nvml.set(0, lost=0)
        until(lambda: get(yard, "/readyz")[0] == 200, "being ready again")


@contextlib.contextmanager
def _served(yard: Yard) -> Iterator[None]:
    yard.serve()
    try:
        yield
    finally:
        yard.end()


def test_probes_ask_for_no_name_and_metrics_do(own_yard: Yard) -> None:
    own_yard.serve("--port", "0", "--token", "required")
    url = own_yard.client.status()["url"]
    for probe in ("/healthz", "/readyz"):
        with urllib.request.urlopen(url + probe) as answer:
            assert (answer.status, json.load(answer)) == (200, {"status": "ok"})
    for closed in ("/metrics", "/api/v1/stats", "/api/v1/events"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url + closed)
        assert refused.value.code == 401
        refused.value.close()


def test_statistics_of_a_day(own_yard: Yard) -> None:
    own_yard.serve()
    own_yard.wait(own_yard.submit("--gpus", "2", "sleep", "0.2"))
    own_yard.wait(own_yard.submit("false"))
    own_yard.submit("--hold", "true")
    long = own_yard.submit("--gpus", "4", "sleep", "600")
    until(lambda: own_yard.client.job(long)["started_at"], "the start of the long job")
    found = json.loads(get(own_yard, "/api/v1/stats")[2])
    assert found["outcomes"] == {"succeeded": 1, "failed": 1}
    assert (found["submitted"], found["ended"], found["gpus"]) == (4, 2, 4)
    assert 0.4 / 3600 <= found["gpu_hours"] < 0.1
    assert found["utilization"] == pytest.approx(found["gpu_hours"] / 96)
    assert found["wait_seconds"]["count"] == found["run_seconds"]["count"] == 2
    assert found["queue"] == {"queued": 0, "held": 1, "running": 1, "gpus_wanted": 0}
    [user] = found["users"]
    assert (user["submitted"], user["ended"]) == (4, 2)
    assert user["gpu_hours"] == pytest.approx(found["gpu_hours"])
    earlier = json.loads(get(own_yard, "/api/v1/stats?since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z")[2])
    assert (earlier["submitted"], earlier["ended"], earlier["gpu_hours"]) == (0, 0, 0)
    for query in ("since=2030-01-01", "since=2020-01-02&until=2020-01-01", "since=0001-01-01"):
        status, _, body = get(own_yard, f"/api/v1/stats?{query}")
        assert status == 422, body


def _named(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:gpuyard|process)_\w+", expression))


def test_the_dashboard_shows_what_there_is(yard: Yard) -> None:
    yard.wait(yard.submit("true"))
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    there = {sample.name for family in families(yard).values() for sample in family.samples}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [v["definition"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert len(expressions) > 20
    for expression in expressions:
        assert _named(expression), expression
        assert _named(expression) <= there, expression
    sources = {json.dumps(place["datasource"]) for panel in dashboard["panels"] for place in (panel, *panel["targets"])}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.prometheus
def test_the_scrape_example_is_valid(tmp_path: Path) -> None:
    promtool = tool("promtool")
    (tmp_path / "token").write_text("x")
    config = tmp_path / "prometheus.yml"
    config.write_text(SCRAPE.read_text().replace("/etc/prometheus/gpuyard.token", str(tmp_path / "token")))
    checked = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.prometheus
def test_a_real_prometheus_scrapes_it(own_yard: Yard, tmp_path: Path) -> None:
    own_yard.serve("--port", "0")
    own_yard.submit("--gpus", "4", "sleep", "600")
    own_yard.submit("--gpus", "3", "true")
    target = own_yard.client.status()["url"].removeprefix("http://")
    prometheus = RealPrometheus(tmp_path / "prometheus", [target], "200ms")
    prometheus.start()
    try:
        found = until(lambda: prometheus.query("gpuyard_queue_gpus_wanted"), "a series in Prometheus")
        assert [(one["metric"]["instance"], one["value"][1]) for one in found] == [(target, "3")]
        [up] = prometheus.query('sum by (state) (gpuyard_gpu_state{state="ours"})')
        assert up["value"][1] == "4"
        for expression in _expressions():
            prometheus.query(expression)
    finally:
        prometheus.stop()


def _expressions() -> list[str]:
    """Those of the dashboard, with a value for each of Grafana's variables: Prometheus refuses what it cannot parse."""
    values = {"$instance": ".*", "$__rate_interval": "1m"}
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, stands_for in values.items():
                expression = expression.replace(name, stands_for)
            found.append(expression)
    return found
