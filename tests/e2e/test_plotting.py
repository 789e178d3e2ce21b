"""`gpuyard plot` and `gpuyard report`: of jobs of a real daemon, of files, and what they say if there is nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.yard import Yard, opened, until

HOSTILE = "</script><img src=x onerror=alert(1)>"
CSV = """index, timestamp, name, utilization.gpu [%], utilization.memory [%], power.draw [W]
0, 2026/11/16 18:45:01.000, A100, 45 %, 12 %, 123.45 W
0, 2026/11/16 18:45:02.000, A100, 55 %, 13 %, 125.00 W
0, 2026/11/16 18:45:03.000, A100, [N/A], 13 %, 127.00 W
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A yard in which job 1 ran on two GPUs, and job 2 on one of them after it."""
    with opened(tmp_path_factory.mktemp("ran")) as yard:
        yard.environment["GPUYARD_RECORD_PERIOD"] = "0.1"
        yard.serve()
        go = "while [ ! -e {0} ]; do sleep 0.02; done".format
        use = ("--gpus", "2", "--simulate-use", "constant:4G")
        first = yard.submit("--name", HOSTILE, *use, "--", "sh", "-c", f"echo '<b>hello'; {go('go-1')}")
        until(lambda: _values(yard, first), "a recording")
        (yard.cwd / "go-1").touch()
        yard.wait(first)
        second = yard.submit("--gpus", "1", "--", "sh", "-c", f"{go('go-2')}; exit 3")
        until(lambda: _values(yard, second), "a recording")
        (yard.cwd / "go-2").touch()
        yard.wait(second)
        assert (first, second) == ("1", "2")
        yield yard


def _values(yard: Yard, job: str) -> bool:
    """Whether three values, and one of the memory that it takes, are known of each of a job's GPUs."""
    gpus = yard.client.recording(job, metrics=["memory_used"])["gpus"]
    values = [gpu["metrics"]["memory_used"]["mean"] for gpu in gpus]
    return bool(gpus) and all(sum(value is not None for value in one) > 2 and max(filter(None, one)) for one in values)


def told(page: str) -> dict[str, Any]:
    """What a page's script draws."""
    found = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_job_is_drawn_as_figures_and_a_page(ran: Yard) -> None:
    done = ran("plot", "1", "--metrics", "utilization,memory", "--out", "one")
    assert (done.code, done.err) == (0, "")
    paths = [f"one/{name}" for name in ("utilization.png", "utilization.svg", "memory_used.png", "memory_used.svg")]
    assert done.out.split() == [*paths, "one/plots.html"]
    assert (ran.cwd / "one/utilization.png").read_bytes().startswith(b"\x89PNG")
    page = (ran.cwd / "one/plots.html").read_text()
    assert "<img" not in page
    assert "These GPUs are simulated." in page
    data = told(page)
    assert [panel["title"] for panel in data["panels"]] == ["GPU utilization (%)", "Memory in use (GiB)"]
    assert [note["label"] for note in data["strips"][0]] == [f"job 1 ({HOSTILE})"]


def test_several_jobs_and_groups_are_compared_on_one_axis(ran: Yard) -> None:
    both = ran.json("plot", "1", "2", "--out", "both", "--metrics", "power", "--format", "html")
    assert both == ["both/plots.html"]
    data = told((ran.cwd / "both/plots.html").read_text())
    assert data["clock"] is False
    groups = ran("plot", "--group", "a=1", "--group", "b=1,2", "--metrics", "power", "--layout", "stacked", "-o", "g")
    assert (groups.code, groups.err) == (0, "")
    panels = told((ran.cwd / "g/plots.html").read_text())["panels"]
    assert [panel["title"] for panel in panels] == ["Power (W): a", "Power (W): b"]


def test_a_span_of_time_is_drawn_for_the_gpus_that_are_named(ran: Yard) -> None:
    done = ran("plot", "--since", "10m", "--gpus", "0,1", "--metrics", "power", "--format", "html", "--out", "span")
    assert (done.code, done.err) == (0, "")
    (panel,) = told((ran.cwd / "span/plots.html").read_text())["panels"]
    assert [line["name"] for line in panel["lines"]] == ["GPU 0", "GPU 1"]


def test_a_csv_of_nvidia_smi_is_drawn_without_a_daemon(own_yard: Yard) -> None:
    (own_yard.cwd / "gpu_usage.csv").write_text(CSV)
    done = own_yard("plot", "--source", "gpu_usage.csv", "--metrics", "utilization,power,sm_clock", "--format", "html")
    assert done.code == 0
    assert "nothing is known of sm_clock" in done.err
    assert done.out.split() == ["gpuyard-plots/plots.html"]
    panels = told((own_yard.cwd / "gpuyard-plots/plots.html").read_text())["panels"]
    assert [panel["lines"][0]["mean"] for panel in panels] == [[45, 55, None], [123.45, 125, 127]]
    done = own_yard("plot", "gpu_usage.csv")
    assert (done.code, "write gpuyard plot --source gpu_usage.csv" in done.err) == (2, True)


def test_a_recording_in_a_file_is_drawn(ran: Yard, tmp_path: Path) -> None:
    from gpuyard.monitor.sources.recorded import recording_of
    from gpuyard.recordings.textform import write_recording

    folder = tmp_path / "sjf"
    folder.mkdir()
    write_recording(folder / "recording.json", recording_of(ran.client.recording("1", metrics=["power"])))
    done = ran("plot", "--source", folder / "recording.json", "--metrics", "power", "--format", "html", "-o", "file")
    assert (done.code, done.err) == (0, "")
    assert "<title>sjf</title>" in (ran.cwd / "file/plots.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1", "--metrics", "utilisation"), "there is no 'utilisation'; did you mean 'utilization'?"),
        (("1", "--format", "pgn"), "--format: there is no 'pgn'; did you mean 'png'?"),
        (("1", "--layout", "piled"), "--layout: there is no 'piled'"),
        (("--group", "sjf"), "write a name and jobs, as in --group sjf=4,5,6"),
        (("--since", "1h", "--from", "1h"), "--since and --from say the same"),
        (("--from", "5m", "--to", "10m"), "--from has to be before --to"),
        (("--from", "soon"), "--from 'soon' is no time"),
        (("--source", "none.csv"), "none.csv"),
        (("--since", "3650d", "--to", "3649d"), "there is nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_said_and_nothing_is_written(ran: Yard, words: tuple[str, ...], said: str) -> None:
    done = ran("plot", *words, "--out", "never")
    assert done.code == 2
    assert said in done.err
    assert not (ran.cwd / "never").exists()


def test_a_job_that_never_was_is_told_of(ran: Yard) -> None:
    done = ran("plot", "99", "--out", "never")
    assert (done.code, "there is no job 99" in done.err, (ran.cwd / "never").exists()) == (1, True, False)


def test_a_job_that_waits_is_not_drawn_but_told_of(yard: Yard) -> None:
    job = yard.submit("--hold", "--", "true")
    done = yard("plot", job, "--out", "never")
    assert (done.code, "has not run yet" in done.err) == (2, True)
    assert not (yard.cwd / "never").exists()
    report = yard("report", job, "--out", "waits.html")
    assert report.out.split() == ["waits.html"]
    page = (yard.cwd / "waits.html").read_text()
    assert "is held" in page
    assert "Nothing was recorded of it." in page


def test_a_report_tells_what_a_job_was_how_it_went_and_what_it_wrote(ran: Yard) -> None:
    done = ran("report", "1")
    assert (done.code, done.out.split(), done.err) == (0, ["gpuyard-report-1.html"], "")
    page = (ran.cwd / "gpuyard-report-1.html").read_text()
    assert "<img" not in page
    assert "&lt;b&gt;hello" in page
    for text in ("succeeded", "ran ", "on GPU 0, 1", "peak of GPU memory", "4G per GPU", "energy", "policy"):
        assert text in page, text


def test_a_report_of_several_jobs_compares_them(ran: Yard) -> None:
    assert ran("report", "1", "2", "--out", "r/both.html", "--title", "Both").out.split() == ["r/both.html"]
    page = (ran.cwd / "r/both.html").read_text()
    assert "<title>Both</title>" in page
    assert '<tr><th scope="row">job 2 (sleep)</th><td>failed</td>' in page


def test_the_numbers_of_a_report_are_those_of_the_job(ran: Yard) -> None:
    first, second = ran.json("report", "1", "2")
    job = ran.client.job("1")
    assert (first["state"], first["gpus"], first["energy_wh"]) == ("succeeded", [0, 1], job["energy_wh"])
    assert (second["state"], second["exit_code"]) == ("failed", 3)
    assert first["run"] > 0
    memory = {one["gpu"]: one["most"] for one in first["series"] if one["metric"] == "memory_used"}
    assert memory == {0: 4 * 2**30, 1: 4 * 2**30}
    assert not (ran.cwd / "gpuyard-report-1-2.html").exists()
