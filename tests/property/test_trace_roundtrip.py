"""What is written reads back as the same trace."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import FORMATS, read, write

COLUMNS = (
    "submit", "run", "gpus", "requested", "priority", "weight", "tickets", "memory", "compute", "deadline",
    "preemptible", "cpus", "host_memory",
)  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).map(str.strip)
POSITIVE = st.floats(min_value=0, max_value=1e12, exclude_min=True)
TIMES = st.floats(min_value=0, max_value=1e12)


@st.composite
def traces(draw: st.DrawFn, whole_ids: bool = False) -> Trace:
    ids = st.integers(0, 10**20).map(str) if whole_ids else NAMES.filter(bool)
    names = draw(st.lists(ids, min_size=1, max_size=6, unique=True))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=len(names), max_size=len(names)))

    def maybe(values: st.SearchStrategy[Any], neutral: Any) -> list[Any]:
        return column(st.one_of(st.just(neutral), values))

    memory = maybe(st.floats(min_value=0, max_value=1e308), 0.0)
    return Trace.of(
        column(TIMES),
        column(POSITIVE),
        column(st.integers(1, 10**9)),
        ids=names,
        users=maybe(st.integers(0, 99).map(str) if whole_ids else NAMES, ""),
        requested=maybe(POSITIVE, np.nan),
        priority=maybe(st.floats(allow_nan=False, allow_infinity=False), 0.0),
        weight=maybe(st.floats(min_value=0, exclude_min=True, allow_infinity=False), 1.0),
        tickets=maybe(st.integers(1, 100), 1.0),
        memory=memory,
        compute=maybe(st.floats(min_value=0, max_value=100, exclude_min=True), np.nan),
        deadline=maybe(TIMES, np.inf),
        preemptible=column(st.booleans()),
        cpus=maybe(st.floats(min_value=0, max_value=1e308), 0.0),
        host_memory=maybe(st.floats(min_value=0, max_value=1e308), 0.0),
        gpu_types=maybe(NAMES, ""),
        labels={name: maybe(NAMES, "") for name in draw(st.lists(NAMES.filter(bool), max_size=2, unique=True))},
    )


def through(trace: Trace, name: str, format: str | None = None) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(trace, path)
        return read(path, format)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.csv.gz"])
@given(trace=traces())
def test_tables_round_trip(name: str, trace: Trace) -> None:
    again = through(trace, name)
    assert (again.ids, again.users, again.gpu_types) == (trace.ids, trace.users, trace.gpu_types)
    assert again.labels == {label: texts for label, texts in trace.labels.items() if any(texts)}
    for column in COLUMNS:
        assert np.array_equal(getattr(again, column), getattr(trace, column), equal_nan=True), column


@given(trace=traces(whole_ids=True))
def test_swf_round_trip(trace: Trace) -> None:
    again = through(trace, "a.swf")
    assert (again.ids, again.users) == (trace.ids, trace.users)
    for column in ("submit", "run", "gpus"):
        assert np.array_equal(getattr(again, column), getattr(trace, column)), column
    wanted = np.where(np.isnan(trace.requested), trace.run, trace.requested)
    assert np.array_equal(again.requested, wanted)


@pytest.mark.parametrize("format", [None, *FORMATS])
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_give_a_trace_or_one_sentence(format: str | None, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            assert not len(read(path, format)), "random bytes were taken for jobs"
        assert "\n" not in str(caught.value)


def outcome(path: Path) -> tuple[Trace | None, str]:
    """The trace, or what was said instead."""
    try:
        return read(path), ""
    except UserError as error:
        return None, str(error)


LINES = st.lists(st.text('0123456789-.,e;#"{}: jobsubmitrungpus|=/\t\n', max_size=60), max_size=6).map("\n".join)
HEADS = (
    "job,submit,run,gpus\n", "; MaxProcs: 4\n", '{"job": "a", ', "job_id,num_gpu\n",
    "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,", "job_id,gpu_num,submit_time,duration\n",
    "job_name,task_name,inst_num,start_time,end_time,plan_gpu\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n",
    "JobID|Submit|Elapsed|AllocTRES\n5|2024-01-01|", '[{"jobid": "a", "attempts": [',
    "name,time,application,num_replicas,duration\n",
)  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
@given(rest=LINES)
def test_near_traces_give_a_trace_or_one_sentence(head: str, rest: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_text(head + rest)
        trace, message = outcome(path)
    assert "\n" not in message
    if trace is not None:
        assert np.all(trace.run > 0)
        assert np.all(trace.gpus > 0) or trace.format == "openb"
        assert len(set(trace.ids)) == len(trace) > 0
