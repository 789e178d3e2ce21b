"""What became of pods, by what an API server tells of them; and what GPUs did, put together bit by bit."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.errors import GpuyardError, UserError
from gpuyard.experiments.design import Arrival, JobResult, Workload
from gpuyard.kubernetes.api_client import Object
from gpuyard.kubernetes.experiment.gpu_recorder import Recorder, joined, wanted, write_metrics
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, JOB
from gpuyard.kubernetes.experiment.pod_follower import PodHistory, job_result, ran_out
from gpuyard.kubernetes.experiment.single_workload import labelled, read_manifest
from gpuyard.monitor.tracks import gap_texts
from gpuyard.recordings.series import Recording, Series, Subject

OOM = {"exitCode": 1, "reason": "Error", "message": "CUDA out of memory", "finishedAt": "2026-11-17T10:00:20Z"}
DONE = {"exitCode": 0, "reason": "Completed", "startedAt": "2026-11-17T10:00:21Z", "finishedAt": "2026-11-17T10:00:40Z"}
BEGIN = 1794909600.0
"""2026-11-17T10:00:00Z"""


def pod(
    phase: str = "Pending",
    *,
    node: str = "",
    state: Object | None = None,
    restarts: int = 0,
    last: Object | None = None,
    message: str = "",
) -> Object:
    containers = [{"name": "c", "restartCount": restarts, "state": state, "lastState": {"terminated": last}}]
    waits = {"type": "PodScheduled", "status": "False", "message": message}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-17T10:00:05Z"}
    return {
        "metadata": {"name": "a", "uid": "u", "annotations": {
            "gpuyard.dev/gpu-indices": "0,2", "gpuyard.dev/admitted-by": "history"} if node else {}},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "conditions": [bound if node else waits],
                   **({"containerStatuses": containers} if state is not None else {})},
    }  # fmt: skip


RUNNING = {"running": {"startedAt": "2026-11-17T10:00:06Z"}}


def story(*steps: tuple[float, Object], live: bool = True) -> PodHistory:
    found = PodHistory("a", "u")
    for at, one in steps:
        found.see(one, BEGIN + at, live=live)
    return found


def result(*pods: PodHistory, failed: bool = False) -> JobResult:
    return job_result(Arrival(0.0, "a-1", Workload("a")), BEGIN, pods, BEGIN, failed=failed)


def test_a_pod_that_goes_well() -> None:
    found = result(
        story(
            (0.1, pod()), (1.25, pod(node="n1")), (2.5, pod("Running", node="n1", state=RUNNING)),
            (9.75, pod("Succeeded", node="n1", state={"terminated": DONE})),
        )
    )  # fmt: skip
    assert (found.bound, found.started, found.ended, found.ran) == (1.25, 2.5, 9.75, 7.25)
    assert (found.restarts, found.ooms, found.state) == (0, 0, "succeeded")
    assert (found.admitted_by, found.where) == ("history", "n1:0,2")


def test_what_nobody_watched_is_told_by_the_clusters_clock() -> None:
    found = result(story((100.0, pod("Succeeded", node="n1", state={"terminated": DONE})), live=False))
    assert (found.bound, found.started, found.ended) == (5.0, 21.0, 40.0)


WAITING: Object = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    "between",
    [
        [(20.0, pod("Running", node="n1", state=WAITING, restarts=1, last=OOM))],
        [(20.0, pod("Running", node="n1", state={"terminated": OOM}))],
        [(20.0, pod("Running", node="n1", state={"terminated": OOM})),
         (20.5, pod("Running", node="n1", state=WAITING, last=OOM))],
        [],
    ],
)  # fmt: skip
def test_a_restart_for_want_of_memory_counts_once_however_it_is_told(between: list[tuple[float, Object]]) -> None:
    found = result(
        story(
            (1.0, pod(node="n1")), (2.0, pod("Running", node="n1", state=RUNNING)), *between,
            (21.0, pod("Running", node="n1", state=RUNNING, restarts=1, last=OOM)),
            (40.0, pod("Succeeded", node="n1", state={"terminated": DONE}, restarts=1, last=OOM)),
        )
    )  # fmt: skip
    assert (found.restarts, found.ooms, found.state) == (1, 1, "succeeded")
    assert (found.started, found.ran) == (2.0, 19.0)


def test_several_restarts_between_two_looks() -> None:
    found = story(
        (2.0, pod("Running", node="n1", state=RUNNING)),
        (30.0, pod("Running", node="n1", state=RUNNING, restarts=3, last=OOM)),
    )
    assert (found.restarts, found.ooms) == (3, 3)


def test_a_job_whose_pods_are_made_anew() -> None:
    first = story(
        (1.0, pod(node="n1")), (2.0, pod("Running", node="n1", state=RUNNING)),
        (8.0, pod("Failed", node="n1", state={"terminated": OOM})),
    )  # fmt: skip
    second = story(
        (9.0, pod(node="n2")), (10.0, pod("Running", node="n2", state=RUNNING)),
        (15.0, pod("Succeeded", node="n2", state={"terminated": DONE})),
    )  # fmt: skip
    found = result(second, first)
    assert (found.restarts, found.ooms, found.state, found.where) == (1, 1, "succeeded", "n2:0,2")
    assert (found.bound, found.started, found.ended, found.ran) == (1.0, 2.0, 15.0, 5.0)


def test_how_jobs_end_otherwise() -> None:
    running = story((1.0, pod("Running", node="n1", state=RUNNING)))
    assert result(running).state == "interrupted"
    running.leave(BEGIN + 5.0)
    assert (result(running).state, result(running).ended) == ("cancelled", 5.0)
    failed = {"exitCode": 3, "reason": "Error", "message": "no such file"}
    dead = story((1.0, pod("Failed", node="n1", state={"terminated": failed})))
    assert (result(dead).state, dead.message) == ("failed", "no such file")
    assert result(story((1.0, pod("Failed", node="n1", state={"terminated": OOM})))).state == "oom"
    assert result().state == "cancelled"
    evicted = pod("Failed", node="n1")
    evicted["status"]["reason"] = "Evicted"
    assert story((1.0, evicted)).message == "Evicted"


def test_why_a_pod_waits() -> None:
    found = story((1.0, pod(message="0/3 nodes are available")))
    assert found.waits == "0/3 nodes are available"
    found.see(pod(node="n1"), BEGIN + 2.0)
    assert found.waits == ""


@pytest.mark.parametrize(
    ("terminated", "says"),
    [
        ({"reason": "OOMKilled", "exitCode": 137}, True),
        ({"exitCode": 1, "message": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"}, True),
        ({"exitCode": 0, "message": "CUDA out of memory"}, False),
        ({"exitCode": 1, "message": "file not found"}, False),
        ({}, False),
    ],
)
def test_who_ran_out_of_memory(terminated: Object, says: bool) -> None:
    assert ran_out(terminated) == says


# -- what GPUs did


def series(metric: str, at: Sequence[float], values: Sequence[float], gpu: int = 0, host: str = "") -> Series:
    return Series(
        Subject(gpu, f"GPU-{gpu}", "V100", host=host), metric, np.array(at, float), np.array(values, float), period=1.0
    )


def test_parts_are_joined_with_a_gap_where_nothing_is_known() -> None:
    first = Recording(0, 2, [series("power", [0, 1, 2], [1, 2, 3])], warnings=["x"])
    second = Recording(3, 9, [series("power", [7, 8], [8, 9])])
    second.warnings = ["x", *gap_texts(second.series, 3, 9)]
    found = joined([first, second], 0.0, 9.0)
    (one,) = found.series
    assert one.at.tolist() == [0, 1, 2, 3, 7, 8]
    assert np.isnan(one.mean[3])
    assert one.mean[[0, 2, 4, 5]].tolist() == [1, 3, 8, 9]
    assert second.warnings[1].startswith("nothing is known before")
    assert (found.warnings[0], len(found.warnings)) == ("x", 2)
    assert found.warnings[1].startswith("nothing is known from")  # the whole knows what was before


def test_a_moment_without_a_sample_is_not_worth_a_word() -> None:
    quick = series("power", [0.0, 0.1, 0.2, 0.9, 1.0], [1, 1, 1, 1, 1])
    part = Recording(0, 1, [replace(quick, period=0.1)])
    assert joined([part], 0.0, 1.0).warnings == []


class Moody:
    """A source that does not always answer."""

    name = "Prometheus at x"

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[tuple[float, float]]()

    def read(self, metrics: Sequence[str], start: float, end: float, **_: Any) -> Recording:
        self.asked.append((start, end))
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            return Recording(start, end, warnings=["it does not answer"])
        at = np.arange(np.ceil(start), end)
        one = Series(Subject(0, "GPU-0"), "power", at, np.full(len(at), float(len(self.asked))), period=1.0)
        return Recording(start, end, [one])


def recorder(source: Moody, warnings: list[str]) -> Recorder:
    found = Recorder(source, ["power"], warnings.append, every=1000.0)
    found._until -= 60  # what is long past need not be waited for
    return found


def test_a_recorder_asks_again_for_what_it_was_not_told() -> None:
    warnings: list[str] = []
    source = Moody("yes", "", GpuyardError("away"), "yes")
    found = recorder(source, warnings)
    begin = found._until
    assert found._go_on(begin + 10)
    assert not found._go_on(begin + 20)
    assert not found._go_on(begin + 30)
    assert found._go_on(begin + 40)
    assert [start - begin for start, _ in source.asked] == [0, 10, 10, 10]
    assert warnings == ["it does not answer; it is asked again while this goes on", "Prometheus at x answers again"]


def test_what_was_read_is_kept_if_nobody_answers_in_the_end() -> None:
    warnings: list[str] = []
    found = recorder(Moody("yes"), warnings)
    begin = found._until + 2
    found._go_on(begin + 8)
    with found:
        kept = found.recording(begin, begin + 20)
    (one,) = kept.series
    assert one.at[0] == begin  # what it was like before stands at the beginning
    assert begin + 7 <= one.at[-1] <= begin + 8
    assert kept.warnings[-1] == "it does not answer"


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_csv_for_each_metric_keeps_the_first_sample(tmp_path: Path) -> None:
    some = Recording(100.0, 110.0, [
        series("memory_used", [100.5, 101.5], [2.0**20, 3 * 2.0**20]), series("power", [100.5, 101.5], [50.25, np.nan]),
    ])  # fmt: skip
    write_metrics(tmp_path, some, ["dcgm_fb_used", "power", "temperature"])
    assert (tmp_path / "dcgm_fb_used.csv").read_text() == "second,value\n0.5,1\n1.5,3\n"
    assert (tmp_path / "power.csv").read_text() == "second,value\n0.5,50.25\n"
    assert not (tmp_path / "temperature.csv").exists()
    rows = read_csv(tmp_path / "combined.csv")
    assert list(rows[0]) == ["second", "gpu", "dcgm_fb_used [MiB]", "power [W]", "temperature [°C]"]
    assert [list(row.values()) for row in rows] == [["0.5", "0", "1", "50.25", ""], ["1.5", "0", "3", "", ""]]


def test_several_gpus_have_files_of_their_own(tmp_path: Path) -> None:
    some = Recording(0.0, 2.0, [series("power", [1.0], [5.0], gpu, "n1") for gpu in (0, 1)])
    paths = write_metrics(tmp_path, some, ["power"])
    assert [path.name for path in paths] == ["power-n1-0.csv", "power-n1-1.csv", "combined.csv"]
    assert [row["gpu"] for row in read_csv(tmp_path / "combined.csv")] == ["n1-0", "n1-1"]
    assert write_metrics(tmp_path / "none", Recording(0.0, 2.0), ["power"]) == []


def test_metrics_by_the_names_of_dcgm() -> None:
    names = ["dcgm_gpu_utilization", "DCGM_FI_DEV_FB_FREE", "power"]
    assert [(one.metric, one.unit) for one in wanted(names)] == [
        ("utilization", "%"), ("memory_free", "MiB"), ("power", "W"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="there is no metric 'dcgm_gpu_tmep'; did you mean 'dcgm_gpu_temp'"):
        wanted(["dcgm_gpu_tmep"])


# -- manifests that somebody else wrote

JOB_TEXT = """
apiVersion: batch/v1
kind: Job
metadata: {name: lstm, namespace: team}
spec: {template: {metadata: {labels: {a: b}}, spec: {containers: []}}}
"""


def test_a_manifest_gets_our_labels(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"{JOB_TEXT}---\napiVersion: v1\nkind: Pod\nmetadata: {{generateName: p-}}\nspec: {{}}\n---\n")
    found = read_manifest(path)
    assert (len(found.objects), found.namespace) == (2, "team")
    one = labelled(found.objects[0], "run", "lstm")
    assert one["metadata"]["labels"] == {EXPERIMENT: "run", JOB: "lstm"}
    assert one["spec"]["template"]["metadata"]["labels"] == {"a": "b", EXPERIMENT: "run", JOB: "lstm"}
    assert "labels" not in found.objects[0]["metadata"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a: [", "is no YAML"),
        ("[]", "is no manifest of Kubernetes"),
        ("kind: Deployment\napiVersion: apps/v1\n", "Deployment (apps/v1) cannot be monitored"),
        ("kind: Job\napiVersion: batch/v1beta1\n", "Job (batch/v1beta1) cannot be monitored"),
        ("kind: Pod\napiVersion: v1\nspec: {}\n", "metadata.name is missing"),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: x}\n", "spec is missing"),
        (f"{JOB_TEXT}---{JOB_TEXT.replace('team', 'other')}", "in several namespaces (other, team)"),
    ],
)
def test_manifests_that_cannot_be_monitored(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    assert said in str(caught.value)
