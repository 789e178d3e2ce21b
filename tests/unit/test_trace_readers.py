"""The formats of other people's traces: what is read, what is left out, and what is said about mistakes."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.sim.traces import read
from gpuyard.sim.traces.times import Calendar, format_time, parse_instant, parse_time

GIB = 2**30
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
HELIOS = "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
PAI = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
SACCT = "JobID|User|Account|Partition|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES|State|Priority\n"
GAVEL = "ResNet-18 (batch size 16)\tpython3 main.py\tcifar10\t--num_steps\t1\t{}\t{}\t1\t{}\t{}\n"
SPEEDS = {
    "k80": {"('ResNet-18 (batch size 16)', 1)": {"null": 0.0}, "('ResNet-18 (batch size 16)', 2)": {"null": 5.0}},
    "v100": {"('ResNet-18 (batch size 16)', 1)": {"null": 10.0}, "('ResNet-18 (batch size 16)', 2)": {"null": 20.0}},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a file into a fresh working directory, so that messages show its bare name."""
    monkeypatch.chdir(tmp_path)

    def make(content: str | bytes, name: str = "a") -> str:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    return make


def problem(path: str, format: str | None = None) -> str:
    """The one sentence a user gets for this file."""
    with pytest.raises(UserError) as caught:
        read(path, format)
    message = str(caught.value)
    assert message.isprintable()
    return message


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


def test_philly(file: Callable[..., str]) -> None:
    trace = read(file(PHILLY + "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,51,8,1,6214e9\n\n"))
    assert (trace.format, trace.ids) == ("philly", ["1", "2"])
    assert trace.submit.tolist() == [1507532515, 1507529583]
    assert (trace.run.tolist(), trace.gpus.tolist()) == ([66, 51], [1, 8])
    assert (trace.labels, trace.users) == ({"vc": ["11cb48", "6214e9"]}, ["", ""])


def test_philly_drops_are_counted(file: Callable[..., str]) -> None:
    rows = ["2017-10-09 07:01:55,0,1,0,a", "2017-10-09 07:01:55,5,0,0,a", "2017-10-09 07:01,5,1,0,a"]
    trace = read(file(PHILLY + "\n".join(rows)))
    assert (trace.ids, trace.dropped) == (["3"], {"run time 0 or unknown": 1, "no GPU": 1})


def test_philly_longer_than_a_block(file: Callable[..., str]) -> None:
    rows = [f"2017-10-09 07:{i // 60 % 60:02d}:{i % 60:02d},{i + 1},1,0,a" for i in range(20_000)]
    trace = read(file(PHILLY + "\n".join(rows)))
    assert trace.ids == [str(i) for i in range(1, 20_001)]
    assert trace.submit[3601] == trace.submit[1]
    rows[19_000] = rows[19_000].replace(",1,0", ",1.5,0")
    assert problem(file(PHILLY + "\n".join(rows))) == "a, line 19002: num_gpus must be a whole number, not 1.5"


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
def test_philly_mistakes(file: Callable[..., str], row: str, said: str) -> None:
    good = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    assert problem(file(PHILLY + good + row + "\n")).startswith(f"a, line 3: {said}")
    assert problem(file(PHILLY.replace("duration", "length") + good)) == "a, line 1: the column 'duration' is missing"


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
def test_philly_json(file: Callable[..., str], indent: int | None) -> None:
    trace = read(file(json.dumps([philly_job(), philly_job(jobid="a_2")], indent=indent)))
    assert (trace.format, trace.ids, trace.users) == ("philly-json", ["a_1", "a_2"], ["ce2f4c"] * 2)
    assert (trace.run.tolist(), trace.gpus.tolist()) == ([180, 180], [3, 3])
    assert trace.submit[0] == parse_time("2017-10-07 00:30:00")
    assert trace.labels == {"vc": ["ee9e8c"] * 2, "status": ["Pass"] * 2}


def test_philly_json_drops_are_counted(file: Callable[..., str]) -> None:
    good = philly_job()
    running = [{**good["attempts"][0], "end_time": None}]
    bare = [{**good["attempts"][0], "detail": []}]
    flash = [{**good["attempts"][0], "end_time": "2017-10-07 01:00:00"}]
    jobs = [good] + [philly_job(jobid="x", attempts=attempts) for attempts in ([], running, bare, flash)]
    trace = read(file(json.dumps(jobs)))
    assert trace.ids == ["a_1"]
    assert trace.dropped == {"never ran": 1, "end not known": 1, "no GPU": 1, "run time 0 or unknown": 1}


def test_philly_json_in_pieces(file: Callable[..., str]) -> None:
    jobs = [philly_job(jobid=f"ä{i}") for i in range(5000)]  # more than one piece of text
    text = json.dumps(jobs, indent=1, ensure_ascii=False)
    assert read(file(gzip.compress(text.encode()))).ids[-1] == "ä4999"
    jobs[4000]["submitted_time"] = None
    line = 1 + json.dumps(jobs, indent=1).split('"\\u00e44000"')[0].rindex("{")
    line = json.dumps(jobs, indent=1)[:line].count("\n") + 1
    assert problem(file(json.dumps(jobs, indent=1))) == f"a, line {line}: submitted_time is missing"


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
def test_philly_json_mistakes(file: Callable[..., str], text: str, said: str) -> None:
    assert problem(file(text)).startswith(said)


# -- Helios


def test_helios(file: Callable[..., str]) -> None:
    rows = [
        "7,uA,vcX,train,4,16,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60",
        "8,uB,vcY,cpu,0,16,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60",
        "9,uB,vcY,x,1,,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:42:01,0,60",
        "10,uB,vcY,x,1,2,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:42:09,,60",
        "11,uB,vcY,x,1,2,1,CANCELLED,2020-06-09 18:41:01,None,None,,",
    ]
    trace = read(file(HELIOS + "\n".join(rows)))
    assert (trace.format, trace.ids, trace.users) == ("helios", ["7", "10"], ["uA", "uB"])
    assert (trace.run.tolist(), trace.gpus.tolist(), trace.cpus.tolist()) == ([600, 8], [4, 1], [16, 2])
    assert trace.submit[0] == parse_time("2020-06-09 18:41:01")
    assert trace.dropped == {"no GPU": 1, "run time 0 or unknown": 2}
    assert trace.labels["vc"] == ["vcX", "vcY"]
    assert list(trace.labels) == ["vc", "state", "jobname", "node_num"]


def test_helios_with_fewer_columns(file: Callable[..., str]) -> None:
    trace = read(file("job_id,gpu_num,submit_time,duration\n1,2,2020-06-09 18:41:01,5\n"))
    assert (trace.format, trace.labels, trace.users) == ("helios", {}, [""])
    assert problem(file("job_id,gpu_num,submit_time\n1,2,2020-06-09 18:41:01\n")) == (
        "a: the column 'duration' is missing, and so are start_time and end_time"
    )
    bad = "job_id,gpu_num,submit_time,duration\n1,2,2020-06-09,5\n1,nan,2020-06-09,5\n"
    assert problem(file(bad)) == "a, line 3: gpu_num must be a finite number, not 'nan'"


# -- openb


def test_openb(file: Callable[..., str]) -> None:
    rows = [
        "p0,12000,16384,1,1000,,LS,Running,5,105,10",
        "p1,6500,12288,1,460,T4|A10,BE,Pending,7,107,",
        "p2,8000,1024,4,1000,,BE,Succeeded,0,9,1",
        "p3,8000,1024,0,0,,BE,Succeeded,0,9,1",
        "p4,8000,1024,1,70,,BE,Pending,3,3,",
        "p5,8000,1024,1,70,,BE,Pending,3,,",
    ]
    trace = read(file(OPENB + "\n".join(rows)))
    assert (trace.format, trace.ids) == ("openb", ["p0", "p1", "p2", "p3", "p4"])
    assert trace.gpus.tolist() == [1, 1, 4, 0, 1]
    assert trace.compute.tolist() == [100, 46, 100, 100, 7]
    assert (trace.submit.tolist(), trace.run.tolist()) == ([5, 7, 0, 0, 3], [95, 100, 8, 8, 1])
    assert trace.cpus[:2].tolist() == [12, 6.5]
    assert trace.host_memory[0] == 16 * GIB
    assert trace.gpu_types == ["", "T4|A10", "", "", ""]
    assert trace.labels["qos"] == ["LS", "BE", "BE", "BE", "BE"]
    assert trace.dropped == {"run time 0 or unknown": 1}
    with pytest.raises(UserError, match="job p3: gpus must be at least 1, not 0"):
        trace.check()


def test_openb_without_times(file: Callable[..., str]) -> None:
    trace = read(file("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,12000,16384,1,500\n"))
    assert (trace.submit.tolist(), trace.run.tolist(), trace.compute.tolist()) == ([0], [1], [50])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("p,1000,1,1,1001,,LS,Running,0,9,0", "gpu_milli must be above 0 and at most 1000, not 1001"),
        ("p,1000,1,1,0,,LS,Running,0,9,0", "gpu_milli must be above 0 and at most 1000, not 0"),
        ("p,1000,1,-1,0,,LS,Running,0,9,0", "num_gpu must be 0 or more, not -1"),
        ("p,1000,1,1.5,500,,LS,Running,0,9,0", "num_gpu must be a whole number, not 1.5"),
        ("p,1000,1,1,500,,LS,Running,0,9,12", "deletion_time - scheduled_time must be above 0, not -3"),
        ("p,x,1,1,500,,LS,Running,0,9,1", "cpu_milli must be a finite number, not 'x'"),
        (",1,1,1,500,,LS,Running,0,9,1", "name is missing"),
    ],
)
def test_openb_mistakes(file: Callable[..., str], row: str, said: str) -> None:
    assert problem(file(OPENB + row)) == f"a, line 2: {said}"


def test_a_list_of_nodes_is_no_trace(file: Callable[..., str]) -> None:
    assert "the column 'name' is missing" in problem(file("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,2,T4\n"))


# -- PAI


@pytest.mark.parametrize("header", ["", PAI])
def test_pai(file: Callable[..., str], header: str) -> None:
    rows = [
        "j1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC",
        "j2,ps,2.0,Terminated,10.0,20.0,400.0,10.0,,CPU",
        "j2,worker,3.0,Failed,10.0,20.0,400.0,10.0,25.0,T4",
        "j2,chief,1.0,Failed,10.0,20.0,,,200.0,V100",
        "j3,worker,1.0,Running,10.0,,,,100.0,P100",
        "j4,worker,1.0,Waiting,,,,,100.0,P100",
        "j5,worker,2.0,Terminated,5,5,,,100.0,P100",
    ]
    trace = read(file(header + "\n".join(rows)))
    assert (trace.format, trace.ids) == ("pai", ["j1", "j2/worker", "j2/chief"])
    assert (trace.gpus.tolist(), trace.compute.tolist()) == ([1, 3, 2], [50, 25, 100])
    assert (trace.submit.tolist(), trace.run.tolist()) == ([1739162, 10, 10], [38, 10, 10])
    assert (trace.cpus.tolist(), trace.host_memory.tolist()) == ([6, 12, 0], [29.296875 * GIB, 30 * GIB, 0])
    assert trace.gpu_types == ["", "T4", "V100"]
    assert trace.labels == {"task": ["tensorflow", "worker", "chief"], "status": ["Terminated", "Failed", "Failed"]}
    assert trace.dropped == {"no GPU": 1, "run time 0 or unknown": 2, "never ran": 1}


def test_pai_mistakes(file: Callable[..., str]) -> None:
    good = "j1,t,1.0,Terminated,5.0,9.0,600.0,1,50.0,MISC\n"
    assert problem(file(good + good)) == "a, line 2: job 'j1/t' is already on line 1"
    assert problem(file(good + "j2,t,1.0,Failed,9.0,5.0,,,50,T4")) == (
        "a, line 2: end_time - start_time must be above 0, not -4"
    )
    assert problem(file(good + "j2,t,1.0")) == "a, line 2: the header has 10 columns, this line has 3"
    assert problem(file("j1,t\n"), "pai") == "a, line 1: a line of pai_task_table has 10 cells, this one has 2"
    assert "the column 'start_time' is missing" in problem(file(PAI.replace("start_time", "begin") + good))


# -- Slurm


@pytest.mark.parametrize("bar", ["", "|"])
def test_sacct(file: Callable[..., str], bar: str) -> None:
    times = "2024-01-01T10:00:00|2024-01-01T10:01:00|2024-01-01T10:11:00"
    rows = [
        SACCT.strip(),
        f"12|ann|phys|gpu|{times}|600|1-00:00:00|cpu=8,gres/gpu=4,gres/gpu:a100=4,mem=60G,node=1|COMPLETED|90",
        f"12.batch|ann|phys|gpu|{times}|600||cpu=8,gres/gpu=4|COMPLETED|90",
        f"12.0||phys||{times}|600||cpu=8,gres/gpu=4|COMPLETED|",
        f"13_4|bob|phys|gpu|{times}|600|UNLIMITED|gres/gpu:a100=1,gres/gpu:v100=2|CANCELLED by 1000|",
        f"14+0|bob|bio|gpu|{times}|600|Partition_Limit|gres/gpu=1|TIMEOUT|0",
        f"15|bob|bio|cpu|{times}|600|10:00|cpu=8|COMPLETED|0",
        "16|bob|bio|gpu|2024-01-01T10:00:00|Unknown|Unknown|0|10:00|gres/gpu=1|PENDING|0",
        "17|bob|bio|gpu|2024-01-01T10:00:00|2024-01-01T10:00:00|Unknown|90|10:00|gres/gpu=1|RUNNING|0",
        "18|bob|bio|gpu|2024-01-01T10:00:00|None|2024-01-01T10:00:00|0|10:00|gres/gpu=1|CANCELLED|0",
        f"19|bob|bio|gpu|{times}|0|10:00|gres/gpu=1|FAILED|0",
    ]
    trace = read(file((bar + "\n").join(rows) + bar + "\n"))
    assert (trace.format, trace.ids, trace.users) == ("sacct", ["12", "13_4", "14+0"], ["ann", "bob", "bob"])
    assert (trace.gpus.tolist(), trace.run.tolist()) == ([4, 3, 1], [600] * 3)
    assert trace.submit[0] == parse_time("2024-01-01 10:00:00")
    assert np.array_equal(trace.requested, [86400, np.nan, np.nan], equal_nan=True)
    assert (trace.priority.tolist(), trace.cpus.tolist()) == ([90, 0, 0], [8, 0, 0])
    assert trace.host_memory[0] == 60 * GIB
    assert trace.gpu_types == ["a100", "a100|v100", ""]
    assert trace.labels["state"] == ["COMPLETED", "CANCELLED", "TIMEOUT"]
    assert trace.labels["partition"] == ["gpu"] * 3
    assert trace.dropped == {"no GPU": 1, "never ran": 2, "not ended": 1, "run time 0 or unknown": 1}


def test_sacct_other_columns(file: Callable[..., str]) -> None:
    head = "JobIDRaw|Submit|Elapsed|TimelimitRaw|ReqTRES|AllocTRES|NCPUS\n"
    trace = read(file(head + "5|2024-01-01T10:00:00|1-00:00:10|30|gres/gpu=2|billing=2,gres/gpu:h100=2|16\n"))
    assert (trace.ids, trace.run.tolist(), trace.requested.tolist()) == (["5"], [86410], [1800])
    assert (trace.gpus.tolist(), trace.cpus.tolist(), trace.gpu_types) == ([2], [16], [""])
    head = "JobID|Submit|Start|End|ReqGRES|NNodes\n"
    row = "5|2024-01-01T10:00:00|2024-01-01T10:00:00|2024-01-01T10:00:07|gpu:v100:2,lustre:1|3\n"
    trace = read(file(head + row))
    assert (trace.run.tolist(), trace.gpus.tolist(), trace.gpu_types) == ([7], [6], ["v100"])


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        ("JobID|Submit|Elapsed", "", "line 1: a column is missing: AllocTRES"),
        ("JobID|Elapsed|AllocTRES", "", "line 1: a column is missing: Submit"),
        ("JobID|Submit|AllocTRES", "", "line 1: a column is missing: ElapsedRaw"),
        ("JobID|Submit|End|AllocTRES", "", "line 1: a column is missing: Start, to go with End"),
        ("JobID|Submit|Elapsed|Submit", "", "line 1: the column 'submit' is there twice"),
        ("JobID|Submit|Elapsed|AllocTRES", "5|soon|10|gres/gpu=1", "line 2: 'soon' is not a time"),
        ("JobID|Submit|Elapsed|AllocTRES", "5|2024-01-01|x|gres/gpu=1", "line 2: Elapsed: 'x' is not a duration"),
        ("JobID|Submit|Elapsed|AllocTRES", "5|2024-01-01|10|gres/gpu=x", "line 2: gres/gpu must be a finite number"),
        ("JobID|Submit|Elapsed|AllocTRES", "5|2024-01-01|10|a|b", "line 2: the header has 4 columns, this line has 5"),
    ],
)
def test_sacct_mistakes(file: Callable[..., str], head: str, row: str, said: str) -> None:
    assert problem(file(f"{head}\n{row}\n")).startswith(f"a, {said}")


# -- Gavel


def test_gavel(file: Callable[..., str]) -> None:
    file(json.dumps(SPEEDS), "speeds.json")
    file("{}", "other.json")
    path = file(GAVEL.format(1000, 1, "-1.000000", 0) + GAVEL.format(1000, 2, 1.5, 30))
    trace = read(path)
    assert (trace.format, trace.ids) == ("gavel", ["1", "2"])
    assert (trace.run.tolist(), trace.gpus.tolist(), trace.submit.tolist()) == ([100, 50], [1, 2], [0, 30])
    assert trace.deadline.tolist() == [np.inf, 30 + 75]
    assert trace.labels["job_type"] == ["ResNet-18 (batch size 16)"] * 2
    slow = read(path, "gavel:k80")
    assert (slow.ids, slow.run.tolist(), slow.dropped) == (["2"], [200], {"no throughput on k80": 1})


def test_gavel_of_shockwave(file: Callable[..., str]) -> None:
    file(json.dumps(SPEEDS), "speeds.json")
    path = file(GAVEL.format(1000, "1\taccordion", -1, 7))
    assert read(path).labels["mode"] == ["accordion"]


def test_gavel_mistakes(file: Callable[..., str]) -> None:
    line = GAVEL.format(1000, 1, -1, 0)
    path = file(line)
    assert problem(path).startswith("a counts training steps; put Gavel's throughputs beside it")
    file(json.dumps(SPEEDS), "speeds.json")
    assert problem(path, "gavel:v10").startswith("speeds.json has no GPU type 'v10'; did you mean 'v100'?")
    assert problem(path, "gavel:").startswith("the format gavel takes the GPU type after the colon")
    assert problem(path, "swf:x") == "the format swf takes nothing after the colon, not 'x'"
    assert problem(file(line + "a\tb\n")) == "a, line 2: a line has 10 or 11 columns parted by tabs, this one has 2"
    assert problem(file(line + line.replace("ResNet-18", "VGG"))) == (
        "a, line 2: no throughput is known of 'VGG (batch size 16)' on v100"
    )
    assert problem(file(line + line.replace("1000", "inf"))) == (
        "a, line 2: total_steps must be a finite number, not 'inf'"
    )
    file(json.dumps(SPEEDS), "more.json")
    assert problem(file(line)).endswith("keep one there: more.json, speeds.json")
    Path("more.json").unlink()
    file(json.dumps(SPEEDS)[:-1], "speeds.json")
    assert problem(file(line)).endswith("speeds.json cannot be read as JSON")


# -- Pollux


def test_pollux(file: Callable[..., str]) -> None:
    text = "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\n"
    assert "does not say how long its jobs run" in problem(file(text))
    lines = text.split("\n")
    trace = read(file(f"{lines[0]},duration\n{lines[1]},60\n"))
    assert (trace.format, trace.ids, trace.submit.tolist()) == ("pollux", ["cifar10-0"], [107])
    assert (trace.run.tolist(), trace.gpus.tolist()) == ([60], [6])
    assert trace.labels == {"application": ["cifar10"], "batch_size": ["2048"]}


# -- compression


def test_zstd_asks_for_a_module(file: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    assert problem(file(b"\x28\xb5\x2f\xfd" + bytes(20))) == (
        "a is compressed with zstd, which this Python cannot read: "
        "unpack it first (zstd -d), or install the package zstandard"
    )


def test_a_cut_off_philly(file: Callable[..., str]) -> None:
    rows = "".join(f"2017-10-09 07:{i % 60:02d}:{i * 7 % 60:02d},{i + 1},1,{i * 31 % 977},a\n" for i in range(30_000))
    packed = gzip.compress((PHILLY + rows).encode())
    assert problem(file(packed[: len(packed) // 2])) == "a: the compressed file is cut off"
