"""Choosing jobs of a trace by conditions and by time."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.sim.select import matching, select
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.times import parse_time

DAY = parse_time("2017-10-01")
TRACE = Trace.of(
    [DAY, DAY + 3600, DAY + 7200, DAY + 86400],
    [10, 60, 600, 7200],
    [1, 2, 8, 16],
    ids=["a", "b", "c", "d"],
    users=["ann", "bob", "ann", ""],
    requested=[np.nan, 60, 900, np.nan],
    memory=[0, 2**30, 2**31, 0],
    preemptible=[True, False, True, True],
    gpu_types=["T4", "", "T4|A10", ""],
    labels={"vc": ["x", "y", "y", "z z"]},
)


def chosen(*where: str, since: str | float | None = None, until: str | float | None = None) -> str:
    """The ids of the jobs that are left."""
    return "".join(select(TRACE, where, since, until).ids)


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("vc=y", "bc"), ("vc==y", "bc"), ("vc!=y", "ad"), ("vc = z z", "d"), ("label_vc=x", "a"), ("user=", "d"),
        ("user!=ann", "bd"), ("id=c", "c"), ("job=c", "c"), ("gpu_type=T4|A10", "c"), ("gpus<=2", "ab"),
        ("gpus<2", "a"), ("gpus>2", "cd"), ("gpus>=2", "bcd"), ("gpus=8", "c"), ("gpus != 8", "abd"), ("run>1m", "cd"),
        ("run>=60", "bcd"), ("requested>1", "bc"), ("memory>=1G", "bc"), ("preemptible=no", "b"), ("compute<100", "bc"),
        ("submit<2017-10-01T02:00", "ab"), ("submit>=2017-10-02", "d"),
    ],
)  # fmt: skip
def test_conditions(condition: str, left: str) -> None:
    assert chosen(condition) == left
    assert matching(TRACE, condition).sum() == len(left)


def test_conditions_add_up() -> None:
    assert chosen("vc=y", "gpus>2") == "c"
    assert chosen() == "abcd"
    assert select(TRACE) is TRACE
    kept = select(TRACE, ["vc=y"])
    assert (kept.labels, kept.gpu_types) == ({"vc": ["y", "y"]}, ["", "T4|A10"])


def test_time_includes_its_beginning_and_not_its_end() -> None:
    assert chosen(since="2017-10-01 01:00") == "bcd"
    assert chosen(until="2017-10-02") == "abc"
    assert chosen(since="2017-10-01T01:00:00Z", until="2017-10-01T02:00:00") == "b"
    assert chosen(since=str(DAY + 3600)) == chosen(since=DAY + 3600) == "bcd"
    assert chosen("vc=y", until="2017-10-01 02:00") == "b"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("vc", "'vc' is not a condition; write for example vc=103959"),
        ("=x", "'=x' is not a condition"),
        ("vcc=x", "the trace has no column 'vcc', only vc, id, user, gpu_type, submit, run"),
        ("vcc=x", "did you mean 'vc'?"),
        ("vc<x", "vc is text, which < cannot compare; use = or !="),
        ("vc=q", "no job has vc=q; vc is 'y' (2), 'x' (1), 'z z' (1)"),
        ("gpus>16", "no job has gpus>16; gpus is 1 to 16"),
        ("gpus=many", "--where: gpus: 'many' is not a number"),
        ("run<1 fortnight", "--where: run: '1 fortnight' is not a duration"),
        ("run<", "--where: a value for run is missing"),
        ("preemptible=maybe", "--where: preemptible: write true or false, not 'maybe'"),
        ("submit>soon", "'soon' is not a time"),
    ],
)
def test_mistakes(condition: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        chosen(condition)
    assert said in str(caught.value)


def test_nothing_left() -> None:
    with pytest.raises(UserError, match="no job is left: gpus>2 fits 2 jobs, but none that meets the rest"):
        chosen("vc=x", "gpus>2")
    with pytest.raises(UserError, match=r"since 2018-01-01: .* from 2017-10-01T00:00:00Z to 2017-10-02T00:00:00Z"):
        chosen(since="2018-01-01")
    with pytest.raises(UserError, match="until 5: the jobs were submitted from 7 to 7"):
        select(Trace.of([7], [1], [1]), until=5)
    with pytest.raises(UserError, match="--since: 'soon' is not a time"):
        chosen(since="soon")
