"""Traces written to files, and described."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import FORMATS, WRITERS, describe, read, write

CSV = "job,submit,run,gpus\n"


def test_only_columns_that_say_something_are_written(tmp_path: Path) -> None:
    trace = Trace.of([0, 1], [1.5, 2], [1, 2], ids=["#1", 'b"'], priority=[0, 3], users=["", "x, y"])
    write(trace, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == (
        'job,submit,run,gpus,priority,user\n"#1",0,1.5,1,,\n"b""",1,2,2,3,"x, y"\n'
    )
    assert read(tmp_path / "a.csv").users == ["", "x, y"]


def test_resources_models_and_labels(tmp_path: Path) -> None:
    trace = Trace.of(
        [0, 1], [1, 2], [1, 2], ids=["a", "b"], cpus=[4, 0], host_memory=[2**30, 0],
        gpu_types=["T4|A10", ""], labels={"vc": ["x,1", ""], "state": ["", ""]},
    )  # fmt: skip
    write(trace, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == (
        'job,submit,run,gpus,cpus,host_memory,gpu_type,label_vc\na,0,1,1,4,1073741824,T4|A10,"x,1"\nb,1,2,2,,,,\n'
    )
    write(trace, tmp_path / "a.jsonl")
    for name in ("a.csv", "a.jsonl"):
        again = read(tmp_path / name)
        assert (again.cpus.tolist(), again.host_memory.tolist()) == ([4, 0], [2**30, 0])
        assert (again.gpu_types, again.labels) == (["T4|A10", ""], {"vc": ["x,1", ""]})
    write(trace, tmp_path / "a.swf")
    assert "left out: cpus, host_memory, gpu_type, label_vc" in (tmp_path / "a.swf").read_text()


def test_a_label_may_come_late_in_json_lines(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"job": "a"}, {"job": "b", "label_vc": 7}]
    text = "\n".join(json.dumps({"submit": 0, "run": 1, "gpus": 1, **row}) for row in rows)
    (tmp_path / "a").write_text(text)
    assert read(tmp_path / "a").labels == {"vc": ["", "7"]}
    (tmp_path / "a").write_text(text.replace("label_vc", "label_"))
    with pytest.raises(UserError, match="unknown key 'label_'"):
        read(tmp_path / "a")


def test_jobs_without_gpus_are_not_written(tmp_path: Path) -> None:
    for name in ("a.csv", "a.swf"):
        with pytest.raises(UserError, match=r"job '1' asks for no GPU, which cannot be written.*--where 'gpus>0'"):
            write(Trace.of([0, 1], [1, 2], [1, 0]), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_swf_numbers_what_has_no_number(tmp_path: Path) -> None:
    trace = Trace.of([0, 1], [1, 2], [1, 2], ids=["a", "b"], users=["ann", ""], priority=[1, 2], capacity=8)
    write(trace, tmp_path / "a.swf")
    again = read(tmp_path / "a.swf")
    assert (again.ids, again.users, again.capacity, again.format) == (["1", "2"], ["1", ""], 8, "swf")
    assert again.requested.tolist() == [1, 2]
    assert "left out: priority" in (tmp_path / "a.swf").read_text()


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.xz", "a.swf.bz2", "a.txt"])
def test_the_ending_decides(tmp_path: Path, name: str) -> None:
    trace = Trace.of([0], [1], [1], ids=["1"])
    write(trace, tmp_path / name)
    again = read(tmp_path / name)
    assert again.ids == ["1"]
    assert again.format == {"a.csv.gz": "gpuyard", "a.jsonl.xz": "jsonl", "a.swf.bz2": "swf"}.get(name, "gpuyard")
    first = (tmp_path / name).read_bytes()
    write(trace, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("precious")
    bad = Trace.of([0], [1], [1], ids=[" blank "])
    for format in ("gpuyard", "jsonl"):
        with pytest.raises(UserError, match="the job name ' blank ' cannot be written"):
            write(bad, path, format)
    assert path.read_text() == "precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.csv"]


def test_write_refuses(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV + "a,0,1,1\n")
    trace = read(path)
    (tmp_path / "link.csv").symlink_to(path)
    for target in (path, tmp_path / "link.csv"):
        with pytest.raises(UserError, match="is the trace that is being read"):
            write(trace, target)
    with pytest.raises(UserError, match="cannot write the format 'batsim', only gpuyard, jsonl, swf"):
        write(trace, tmp_path / "b", "batsim")
    with pytest.raises(UserError, match="cannot write the format 'json'; did you mean 'jsonl'"):
        write(trace, io.StringIO(), "json")
    with pytest.raises(UserError, match=r"cannot be written \(No such file"):
        write(trace, tmp_path / "absent" / "b.csv")
    with pytest.raises(UserError, match=r"cannot be written \(Is a directory"):
        write(trace, tmp_path)
    assert path.read_text() == CSV + "a,0,1,1\n"


def test_write_keeps_links_and_modes(tmp_path: Path) -> None:
    path, link = tmp_path / "a.csv", tmp_path / "link.csv"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write(Trace.of([0], [1], [1]), link)
    assert link.is_symlink()
    assert path.read_text() == CSV + "0,0,1,1\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_that_a_shell_has_open_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "redirected"
    with path.open("w") as stream:
        write(Trace.of([0], [1], [1]), f"/proc/self/fd/{stream.fileno()}")
        assert path.stat().st_ino == os.fstat(stream.fileno()).st_ino
    assert path.read_text() == CSV + "0,0,1,1\n"


def test_write_to_streams(capsys: pytest.CaptureFixture[str]) -> None:
    trace, stream = Trace.of([0], [1], [1]), io.StringIO()
    write(trace, stream, "jsonl")
    assert stream.getvalue() == '{"job": "0", "submit": 0, "run": 1, "gpus": 1}\n'
    write(trace, "-")
    assert capsys.readouterr().out == CSV + "0,0,1,1\n"


def test_every_format_has_one_line_of_help() -> None:
    assert set(WRITERS) <= set(FORMATS)
    assert all(kind.about and "\n" not in kind.about for kind in FORMATS.values())


# -- describe


def test_describe() -> None:
    trace = Trace.of(
        [10, 20, 1810], [10, 20, 200], [1, 1, 4],
        users=["a", "", "a"], requested=[20, np.nan, 200], compute=[50, 100, 100], capacity=8,
    )  # fmt: skip
    facts = describe(trace)
    assert facts["span_seconds"] == 2000
    assert facts["gpu_seconds"] == 5 + 20 + 800
    assert facts["load"] == pytest.approx(825 / 16000)
    assert facts["mean_gpus"] == pytest.approx(825 / 2000)
    assert facts["arrivals_per_hour"] == pytest.approx(4)
    assert facts["run"] == pytest.approx({"mean": 230 / 3, "median": 20, "p95": 182, "max": 200})
    assert facts["requested_accuracy"] == 0.75
    assert (facts["gpu_sizes"], facts["max_gpus"], facts["users"], facts["jobs"]) == ({1: 2, 4: 1}, 4, 1, 3)
    assert json.loads(json.dumps(facts))["gpu_sizes"] == {"1": 2, "4": 1}


def test_describe_what_is_not_known() -> None:
    facts = describe(Trace.of([5, 5], [1, 1], [1, 1]))
    assert facts["arrivals_per_hour"] is None
    assert "load" not in facts
    assert "requested_accuracy" not in facts
    assert describe(Trace.of([], [], []))["jobs"] == 0
