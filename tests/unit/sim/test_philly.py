"""Times as people write them, and the traces of Microsoft's Philly clusters that are full of them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.reading import problem

from gpuyard.errors import UserError
from gpuyard.sim.traces import read
from gpuyard.sim.traces.times import Calendar, format_time, parse_instant, parse_time

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"


# -- times


def test_times() -> None:
    assert parse_time("1970-01-02") == 86400
    assert parse_time("2017-10-09 07:01:55") == 1507532515
    assert parse_time("2017-10-09T07:01") == 1507532460
    assert parse_time("2017-10-09T07:01:55.5Z") == 1507532515.5
    assert parse_time("2017-10-09T09:01:55+02:00") == parse_time("2017-10-09 01:01:55-0600") == 1507532515
    assert parse_instant("90") == 90
    assert parse_instant("2017-10-09") == parse_time("2017-10-09")
    assert format_time(1507532515) == "2017-10-09T07:01:55Z"


@pytest.mark.parametrize(
    "text", ["", "soon", "2017-13-01", "2017-02-30", "2017-10-09 24:00:00", "2017-10-09 7:01", "9"]
)
def test_times_that_are_none(text: str) -> None:
    calendar = Calendar()
    calendar.seconds("2017-10-09 07:01:55")
    with pytest.raises(UserError, match="is not a time"):
        calendar.seconds(text)


def test_the_calendar_agrees() -> None:
    seconds = Calendar().seconds
    for text in ("2017-10-09 07:01:55", "2017-10-09 23:59:59", "2017-10-09T00:00:00", "2017-10-09 07:01:55.25"):
        assert seconds(text) == seconds(text) == parse_time(text)


# -- Philly


def test_philly(trace_file: Callable[..., str]) -> None:
    trace = read(trace_file(PHILLY + "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,51,8,1,6214e9\n\n"))
    assert (trace.format, trace.ids) == ("philly", ["1", "2"])
    assert trace.submit.tolist() == [1507532515, 1507529583]
    assert (trace.run.tolist(), trace.gpus.tolist()) == ([66, 51], [1, 8])
    assert (trace.labels, trace.users) == ({"vc": ["11cb48", "6214e9"]}, ["", ""])


def test_philly_drops_are_counted(trace_file: Callable[..., str]) -> None:
    rows = ["2017-10-09 07:01:55,0,1,0,a", "2017-10-09 07:01:55,5,0,0,a", "2017-10-09 07:01,5,1,0,a"]
    trace = read(trace_file(PHILLY + "\n".join(rows)))
    assert (trace.ids, trace.dropped) == (["3"], {"run time 0 or unknown": 1, "no GPU": 1})


def test_philly_longer_than_a_block(trace_file: Callable[..., str]) -> None:
    rows = [f"2017-10-09 07:{i // 60 % 60:02d}:{i % 60:02d},{i + 1},1,0,a" for i in range(20_000)]
    trace = read(trace_file(PHILLY + "\n".join(rows)))
    assert trace.ids == [str(i) for i in range(1, 20_001)]
    assert trace.submit[3601] == trace.submit[1]
    rows[19_000] = rows[19_000].replace(",1,0", ",1.5,0")
    assert problem(trace_file(PHILLY + "\n".join(rows))) == "a, line 19002: num_gpus must be a whole number, not 1.5"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("soon,5,1,5,a", "'soon' is not a time"),
        ("2017-02-30 00:00:00,5,1,5,a", "'2017-02-30 00:00:00' is not a time: there is no such day"),
        ("2017-10-09 07:01:55,nan,1,5,a", "duration must be a finite number, not 'nan'"),
        ("2017-10-09 07:01:55,inf,1,5,a", "duration must be a finite number, not 'inf'"),
        ("2017-10-09 07:01:55,1_0,1,5,a", "duration must be a finite number, not '1_0'"),
        ("2017-10-09 07:01:55,,1,5,a", "duration is missing"),
        ("2017-10-09 07:01:55,-5,1,5,a", "duration must be above 0, not -5"),
        ("2017-10-09 07:01:55,5,1", "the header has 5 columns, this line has 3"),
        ("2017-10-09 07:01:55,5,1,5,a\x1b", "the name 'a?' has a control character"),
        ("1950-10-09 07:01:55,5,1,5,a", "timestamp must be 0 or more"),
    ],
)
def test_philly_mistakes(trace_file: Callable[..., str], row: str, said: str) -> None:
    good = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    assert problem(trace_file(PHILLY + good + row + "\n")).startswith(f"a, line 3: {said}")
    assert (
        problem(trace_file(PHILLY.replace("duration", "length") + good))
        == "a, line 1: the column 'duration' is missing"
    )


def philly_job(**changes: Any) -> dict[str, Any]:
    first = {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 01:01:00", "detail": [{"gpus": ["gpu0"]}]}
    last = {
        "start_time": "2017-10-07 02:00:00",
        "end_time": "2017-10-07 02:02:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
    }
    job = {"status": "Pass", "vc": "ee9e8c", "jobid": "a_1", "attempts": [first, last], "user": "ce2f4c"}
    return {**job, "submitted_time": "2017-10-07 00:30:00", **changes}


@pytest.mark.parametrize("indent", [None, 4])
def test_philly_json(trace_file: Callable[..., str], indent: int | None) -> None:
    trace = read(trace_file(json.dumps([philly_job(), philly_job(jobid="a_2")], indent=indent)))
    assert (trace.format, trace.ids, trace.users) == ("philly-json", ["a_1", "a_2"], ["ce2f4c"] * 2)
    assert (trace.run.tolist(), trace.gpus.tolist()) == ([180, 180], [3, 3])
    assert trace.submit[0] == parse_time("2017-10-07 00:30:00")
    assert trace.labels == {"vc": ["ee9e8c"] * 2, "status": ["Pass"] * 2}


def test_philly_json_drops_are_counted(trace_file: Callable[..., str]) -> None:
    good = philly_job()
    running = [{**good["attempts"][0], "end_time": None}]
    bare = [{**good["attempts"][0], "detail": []}]
    flash = [{**good["attempts"][0], "end_time": "2017-10-07 01:00:00"}]
    jobs = [good] + [philly_job(jobid="x", attempts=attempts) for attempts in ([], running, bare, flash)]
    trace = read(trace_file(json.dumps(jobs)))
    assert trace.ids == ["a_1"]
    assert trace.dropped == {"never ran": 1, "end not known": 1, "no GPU": 1, "run time 0 or unknown": 1}


def test_philly_json_in_pieces(trace_file: Callable[..., str]) -> None:
    jobs = [philly_job(jobid=f"ä{i}") for i in range(5000)]  # more than one piece of text
    text = json.dumps(jobs, indent=1, ensure_ascii=False)
    assert read(trace_file(gzip.compress(text.encode()))).ids[-1] == "ä4999"
    jobs[4000]["submitted_time"] = None
    line = 1 + json.dumps(jobs, indent=1).split('"\\u00e44000"')[0].rindex("{")
    line = json.dumps(jobs, indent=1)[:line].count("\n") + 1
    assert problem(trace_file(json.dumps(jobs, indent=1))) == f"a, line {line}: submitted_time is missing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps([philly_job()])[:-1], "a, line 1: the list of jobs is cut off"),
        (json.dumps([philly_job()], indent=0)[:-40], "a, line 39: not valid JSON"),
        (json.dumps([philly_job(), 5]), "a, line 1: each entry of the list must be a JSON object"),
        (json.dumps([philly_job(attempts=5)]), "a, line 1: attempts must be a list of objects"),
        (json.dumps([philly_job(jobid=None)]), "a, line 1: jobid is missing"),
        (json.dumps([philly_job(submitted_time="now")]), "a, line 1: 'now' is not a time"),
        (json.dumps([philly_job(), philly_job()]), "a, line 1: job 'a_1' is already on line 1"),
        (json.dumps([philly_job(attempts=[{"detail": 3}])]), "a, line 1: detail must be a list of objects"),
    ],
)
def test_philly_json_mistakes(trace_file: Callable[..., str], text: str, said: str) -> None:
    assert problem(trace_file(text)).startswith(said)


def test_a_cut_off_philly(trace_file: Callable[..., str]) -> None:
    rows = "".join(f"2017-10-09 07:{i % 60:02d}:{i * 7 % 60:02d},{i + 1},1,{i * 31 % 977},a\n" for i in range(30_000))
    packed = gzip.compress((PHILLY + rows).encode())
    assert re.fullmatch(
        r"a, after line \d+: the compressed file is cut off; get it anew",
        problem(trace_file(packed[: len(packed) // 2])),
    )
