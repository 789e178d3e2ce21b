"""The formats of other people's traces: what is read, what is left out, and what is said about mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.reading import problem

from gpuyard.errors import UserError
from gpuyard.sim.traces import read
from gpuyard.sim.traces.times import parse_time

GIB = 2**30
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


# -- Helios


def test_helios(trace_file: Callable[..., str]) -> None:
    rows = [
        "7,uA,vcX,train,4,16,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60",
        "8,uB,vcY,cpu,0,16,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60",
        "9,uB,vcY,x,1,,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:42:01,0,60",
        "10,uB,vcY,x,1,2,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:42:09,,60",
        "11,uB,vcY,x,1,2,1,CANCELLED,2020-06-09 18:41:01,None,None,,",
    ]
    trace = read(trace_file(HELIOS + "\n".join(rows)))
    assert (trace.format, trace.ids, trace.users) == ("helios", ["7", "10"], ["uA", "uB"])
    assert (trace.run.tolist(), trace.gpus.tolist(), trace.cpus.tolist()) == ([600, 8], [4, 1], [16, 2])
    assert trace.submit[0] == parse_time("2020-06-09 18:41:01")
    assert trace.dropped == {"no GPU": 1, "run time 0 or unknown": 2}
    assert trace.labels["vc"] == ["vcX", "vcY"]
    assert list(trace.labels) == ["vc", "state", "jobname", "node_num"]


def test_helios_with_fewer_columns(trace_file: Callable[..., str]) -> None:
    trace = read(trace_file("job_id,gpu_num,submit_time,duration\n1,2,2020-06-09 18:41:01,5\n"))
    assert (trace.format, trace.labels, trace.users) == ("helios", {}, [""])
    assert problem(trace_file("job_id,gpu_num,submit_time\n1,2,2020-06-09 18:41:01\n")) == (
        "a: the column 'duration' is missing, and so are start_time and end_time"
    )
    bad = "job_id,gpu_num,submit_time,duration\n1,2,2020-06-09,5\n1,nan,2020-06-09,5\n"
    assert problem(trace_file(bad)) == "a, line 3: gpu_num must be a finite number, not 'nan'"


# -- openb


def test_openb(trace_file: Callable[..., str]) -> None:
    rows = [
        "p0,12000,16384,1,1000,,LS,Running,5,105,10",
        "p1,6500,12288,1,460,T4|A10,BE,Pending,7,107,",
        "p2,8000,1024,4,1000,,BE,Succeeded,0,9,1",
        "p3,8000,1024,0,0,,BE,Succeeded,0,9,1",
        "p4,8000,1024,1,70,,BE,Pending,3,3,",
        "p5,8000,1024,1,70,,BE,Pending,3,,",
    ]
    trace = read(trace_file(OPENB + "\n".join(rows)))
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


def test_openb_without_times(trace_file: Callable[..., str]) -> None:
    trace = read(trace_file("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,12000,16384,1,500\n"))
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
def test_openb_mistakes(trace_file: Callable[..., str], row: str, said: str) -> None:
    assert problem(trace_file(OPENB + row)) == f"a, line 2: {said}"


def test_a_list_of_nodes_is_no_trace(trace_file: Callable[..., str]) -> None:
    assert "the column 'name' is missing" in problem(trace_file("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,2,T4\n"))


# -- PAI


@pytest.mark.parametrize("header", ["", PAI])
def test_pai(trace_file: Callable[..., str], header: str) -> None:
    rows = [
        "j1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC",
        "j2,ps,2.0,Terminated,10.0,20.0,400.0,10.0,,CPU",
        "j2,worker,3.0,Failed,10.0,20.0,400.0,10.0,25.0,T4",
        "j2,chief,1.0,Failed,10.0,20.0,,,200.0,V100",
        "j3,worker,1.0,Running,10.0,,,,100.0,P100",
        "j4,worker,1.0,Waiting,,,,,100.0,P100",
        "j5,worker,2.0,Terminated,5,5,,,100.0,P100",
    ]
    trace = read(trace_file(header + "\n".join(rows)))
    assert (trace.format, trace.ids) == ("pai", ["j1", "j2/worker", "j2/chief"])
    assert (trace.gpus.tolist(), trace.compute.tolist()) == ([1, 3, 2], [50, 25, 100])
    assert (trace.submit.tolist(), trace.run.tolist()) == ([1739162, 10, 10], [38, 10, 10])
    assert (trace.cpus.tolist(), trace.host_memory.tolist()) == ([6, 12, 0], [29.296875 * GIB, 30 * GIB, 0])
    assert trace.gpu_types == ["", "T4", "V100"]
    assert trace.labels == {"task": ["tensorflow", "worker", "chief"], "status": ["Terminated", "Failed", "Failed"]}
    assert trace.dropped == {"no GPU": 1, "run time 0 or unknown": 2, "never ran": 1}


def test_pai_mistakes(trace_file: Callable[..., str]) -> None:
    good = "j1,t,1.0,Terminated,5.0,9.0,600.0,1,50.0,MISC\n"
    assert problem(trace_file(good + good)) == "a, line 2: job 'j1/t' is already on line 1"
    assert problem(trace_file(good + "j2,t,1.0,Failed,9.0,5.0,,,50,T4")) == (
        "a, line 2: end_time - start_time must be above 0, not -4"
    )
    assert problem(trace_file(good + "j2,t,1.0")) == "a, line 2: the header has 10 columns, this line has 3"
    assert problem(trace_file("j1,t\n"), "pai") == "a, line 1: a line of pai_task_table has 10 cells, this one has 2"
    assert "the column 'start_time' is missing" in problem(trace_file(PAI.replace("start_time", "begin") + good))


# -- Slurm


@pytest.mark.parametrize("bar", ["", "|"])
def test_sacct(trace_file: Callable[..., str], bar: str) -> None:
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
    trace = read(trace_file((bar + "\n").join(rows) + bar + "\n"))
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


def test_sacct_rows_that_never_started_need_no_gpus(trace_file: Callable[..., str]) -> None:
    """Slurm allocates nothing to a job that waits, and says of it what it asked for only in another column."""
    at = "2024-01-01T10:00:00"
    rows = [
        SACCT.strip(),
        f"12|ann|phys|gpu|{at}|{at}|2024-01-01T10:00:05|5|10:00|gres/gpu=1|COMPLETED|0",
        f"13|bob|bio|gpu|{at}|Unknown|Unknown|0|10:00||PENDING|0",
        f"14|bob|bio|gpu|{at}|None|{at}|0|10:00||CANCELLED by 7|0",
        f"15|bob|bio|gpu|{at}|{at}|{at}|0|10:00||CANCELLED by 7|0",
        f"16|bob|bio|cpu|{at}|{at}|2024-01-01T10:00:05|5|10:00|cpu=4|COMPLETED|0",
    ]
    trace = read(trace_file("\n".join(rows) + "\n"))
    assert (trace.ids, trace.dropped) == (["12"], {"never ran": 3, "no GPU": 1})
    bare = f"JobID|Submit|ElapsedRaw|AllocTRES|State\n1|{at}|0||CANCELLED\n2|{at}|9|gres/gpu=1|COMPLETED\n"
    assert read(trace_file(bare)).dropped == {"never ran": 1}


def test_sacct_other_columns(trace_file: Callable[..., str]) -> None:
    head = "JobIDRaw|Submit|Elapsed|TimelimitRaw|ReqTRES|AllocTRES|NCPUS\n"
    trace = read(trace_file(head + "5|2024-01-01T10:00:00|1-00:00:10|30|gres/gpu=2|billing=2,gres/gpu:h100=2|16\n"))
    assert (trace.ids, trace.run.tolist(), trace.requested.tolist()) == (["5"], [86410], [1800])
    assert (trace.gpus.tolist(), trace.cpus.tolist(), trace.gpu_types) == ([2], [16], [""])
    head = "JobID|Submit|Start|End|ReqGRES|NNodes\n"
    row = "5|2024-01-01T10:00:00|2024-01-01T10:00:00|2024-01-01T10:00:07|gpu:v100:2,lustre:1|3\n"
    trace = read(trace_file(head + row))
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
def test_sacct_mistakes(trace_file: Callable[..., str], head: str, row: str, said: str) -> None:
    assert problem(trace_file(f"{head}\n{row}\n")).startswith(f"a, {said}")


# -- Gavel


def test_gavel(trace_file: Callable[..., str]) -> None:
    trace_file(json.dumps(SPEEDS), "speeds.json")
    trace_file("{}", "other.json")
    path = trace_file(GAVEL.format(1000, 1, "-1.000000", 0) + GAVEL.format(1000, 2, 1.5, 30))
    trace = read(path)
    assert (trace.format, trace.ids) == ("gavel", ["1", "2"])
    assert (trace.run.tolist(), trace.gpus.tolist(), trace.submit.tolist()) == ([100, 50], [1, 2], [0, 30])
    assert trace.deadline.tolist() == [np.inf, 30 + 75]
    assert trace.labels["job_type"] == ["ResNet-18 (batch size 16)"] * 2
    slow = read(path, "gavel:k80")
    assert (slow.ids, slow.run.tolist(), slow.dropped) == (["2"], [200], {"no throughput on k80": 1})


def test_gavel_of_shockwave(trace_file: Callable[..., str]) -> None:
    trace_file(json.dumps(SPEEDS), "speeds.json")
    path = trace_file(GAVEL.format(1000, "1\taccordion", -1, 7))
    assert read(path).labels["mode"] == ["accordion"]


def test_gavel_mistakes(trace_file: Callable[..., str]) -> None:
    line = GAVEL.format(1000, 1, -1, 0)
    path = trace_file(line)
    assert problem(path).startswith("a counts training steps; put Gavel's throughputs beside it")
    trace_file(json.dumps(SPEEDS), "speeds.json")
    assert problem(path, "gavel:v10").startswith("speeds.json has no GPU type 'v10'; did you mean 'v100'?")
    assert problem(path, "gavel:").startswith("the format gavel takes the GPU type after the colon")
    assert problem(path, "swf:x") == "the format swf takes nothing after the colon, not 'x'"
    assert (
        problem(trace_file(line + "a\tb\n")) == "a, line 2: a line has 10 or 11 columns parted by tabs, this one has 2"
    )
    assert problem(trace_file(line + line.replace("ResNet-18", "VGG"))) == (
        "a, line 2: no throughput is known of 'VGG (batch size 16)' on v100"
    )
    assert problem(trace_file(line + line.replace("1000", "inf"))) == (
        "a, line 2: total_steps must be a finite number, not 'inf'"
    )
    trace_file(json.dumps(SPEEDS), "more.json")
    assert problem(trace_file(line)).endswith("keep one there: more.json, speeds.json")
    Path("more.json").unlink()
    trace_file(json.dumps(SPEEDS)[:-1], "speeds.json")
    assert problem(trace_file(line)).endswith("speeds.json cannot be read as JSON")


# -- Pollux


def test_pollux(trace_file: Callable[..., str]) -> None:
    text = "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\n"
    assert "does not say how long its jobs run" in problem(trace_file(text))
    lines = text.split("\n")
    trace = read(trace_file(f"{lines[0]},duration\n{lines[1]},60\n"))
    assert (trace.format, trace.ids, trace.submit.tolist()) == ("pollux", ["cifar10-0"], [107])
    assert (trace.run.tolist(), trace.gpus.tolist()) == ([60], [6])
    assert trace.labels == {"application": ["cifar10"], "batch_size": ["2048"]}


# -- compression


def test_zstd_asks_for_a_module(trace_file: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    assert problem(trace_file(b"\x28\xb5\x2f\xfd" + bytes(20))) == (
        "a is compressed with zstd, which this Python cannot read: "
        "unpack it first (zstd -d), or install the package zstandard"
    )
