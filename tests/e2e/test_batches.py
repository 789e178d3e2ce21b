"""Batches: many jobs out of one file, wave by wave, several on a GPU."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.users import Desk
from tests.yard import Done, Yard, finish, until

from gpuyard.client.client import Client
from gpuyard.client.transport import Refused

HEAD = "Directory,Executable,Filename,Epochs,Priority\n"
SCRIPT = """#GPUYARD --gpu-memory 2G
id=${2#--id=}
echo "epochs ${1#--epochs=} id $id" >>ran.txt
sleep ${NAP:-0.1}
"""


def write(yard: Yard, rows: str, name: str = "commands.csv", script: str = SCRIPT) -> str:
    """A file of commands, and the script that its rows run."""
    folder = yard.cwd / "models"
    folder.mkdir(exist_ok=True)
    (folder / "ran.txt").unlink(missing_ok=True)
    (folder / "train.sh").write_text(script)
    (yard.cwd / name).write_text(HEAD + rows)
    return name


def rows_of(priorities: list[int], epochs: int = 5) -> str:
    return "".join(f"models,sh,train.sh,{epochs},{priority}\n" for priority in priorities)


def ran(yard: Yard) -> list[tuple[str, str]]:
    """Epochs and id of everything that ran, in order."""
    lines = (yard.cwd / "models" / "ran.txt").read_text().splitlines()
    return [(line.split()[1], line.split()[3]) for line in lines]


def jobs_of(yard: Yard, batch: str) -> list[Any]:
    """The jobs of a batch by their rows."""
    found = [job for job in yard.client.jobs(all=True) if job["batch"] == batch]
    return sorted(found, key=lambda job: job["row"]["number"])


def started(yard: Yard, *arguments: str) -> str:
    done = yard("batch", *arguments, "--detach")
    assert done.code == 0, done
    return done.out.strip()


def test_fifty_rows_in_waves_of_twenty(own_yard: Yard) -> None:
    yard = own_yard
    yard.environment["NAP"] = "0"
    yard.serve("--policy", "sjf@skip")  # which has no eye for any priority
    priorities = [(5, 1, 2, 4)[n % 4] for n in range(50)]
    path = write(yard, rows_of(priorities))
    before = (yard.cwd / path).read_bytes()
    done = yard("batch", path, "--json", "--estimate", "10")
    assert done.code == 0, done
    assert (yard.cwd / path).read_bytes() == before
    report = json.loads(done.out)
    jobs = jobs_of(yard, report["batch"])
    assert [(wave["wave"], wave["rows"]) for wave in report["waves"]] == [(1, 20), (2, 20), (3, 10)]
    assert [job["row"]["wave"] for job in jobs] == [1] * 20 + [2] * 20 + [3] * 10
    by_start = sorted(jobs, key=lambda job: (job["started_at"], int(job["id"])))
    wanted = sorted(jobs, key=lambda job: (job["row"]["wave"], job["row"]["priority"], job["row"]["number"]))
    assert [job["id"] for job in by_start] == [job["id"] for job in wanted]
    for earlier, later in ((1, 2), (2, 3)):
        ended = max(job["ended_at"] for job in jobs if job["row"]["wave"] == earlier)
        assert min(job["started_at"] for job in jobs if job["row"]["wave"] == later) >= ended
    assert sorted(ran(yard)) == sorted(("5", job["id"]) for job in jobs)
    assert (report["rows"], report["succeeded"], report["failed"], report["refused"]) == (50, 50, 0, 0)
    assert len(report["outcomes"]) == 50


def test_without_waves_priorities_decide(yard: Yard) -> None:
    yard("drain")
    batch = started(yard, write(yard, rows_of([5, 1, 2])), "--num", "0", "--gpu-memory", "16G", "--from", "0")
    jobs = jobs_of(yard, batch)
    assert [job["dependency"] for job in jobs] == [None] * 3
    assert [job["priority"] for job in jobs] == [-4, 0, -1]
    yard("resume")
    for job in jobs:
        yard.wait(job["id"])
    ids = [id for _, id in ran(yard)]
    assert ids == [jobs[1]["id"], jobs[2]["id"], jobs[0]["id"]]


def test_a_row_that_drops_out_stops_nobody_and_lets_nobody_pass(yard: Yard) -> None:
    yard("drain")
    batch = started(yard, write(yard, rows_of([1] * 6)), "--num", "3")
    ids = [job["id"] for job in jobs_of(yard, batch)]
    yard("cancel", ids[1], ids[3])
    assert yard.client.job(ids[2])["reason"] == f"waits for job {ids[0]} to begin"
    assert f"waits for job {ids[0]} to end" in str(yard.client.job(ids[4])["reason"])
    yard("resume")
    done = yard("batch", "follow", batch)
    assert done.code == 1
    assert f"row 2 (job {ids[1]}, train.sh): cancelled" in done.err
    started_at = {job["id"]: job["started_at"] for job in jobs_of(yard, batch)}
    assert sorted(id for _, id in ran(yard)) == sorted(set(ids) - {ids[1], ids[3]})
    assert started_at[ids[0]] <= started_at[ids[2]] <= started_at[ids[4]] <= started_at[ids[5]]


def test_what_can_never_run_is_refused_and_the_others_go_on(yard: Yard) -> None:
    path = write(yard, rows_of([1]) + "models,sh,huge.sh,5,0\n" + rows_of([1]))
    (yard.cwd / "models" / "huge.sh").write_text("#GPUYARD --gpu-memory 20G\n")
    done = yard("batch", path)
    assert done.code == 1
    why = "this job can never run here: it wants 20G on each GPU, a GPU has 16G"
    assert f"row 2: refused: {why}" in done.err
    assert [line.split()[3] for line in done.out.splitlines()[1:4]] == ["succeeded", "refused", "succeeded"]
    assert why in done.out
    report = yard.json("batch", "report")
    assert (report["rows"], report["succeeded"], report["refused"]) == (3, 2, 1)


def test_if_nothing_can_run_there_is_no_batch(yard: Yard) -> None:
    done = yard("batch", write(yard, rows_of([1])), "--gpu-memory", "20G", "--json")
    assert (done.code, json.loads(done.out)["batch"]) == (1, None)
    assert "no row can run here" in done.err


def test_one_reason_for_many_rows_is_told_once(yard: Yard) -> None:
    done = yard("batch", write(yard, rows_of([1, 2, 3])), "--gpu-memory", "20G")
    assert done.err.splitlines()[0].startswith("rows 1-3: refused: this job can never run here")
    assert yard.client.jobs() == []


def test_the_same_file_is_followed_while_its_batch_is_open(yard: Yard) -> None:
    yard("drain")
    path = write(yard, rows_of([1, 2]))
    batch = started(yard, path)
    again = yard("batch", path, "--detach")
    assert again.out.strip() == batch
    assert f"batch {batch} of this file is open, and is followed; --again starts another one" in again.err
    other = started(yard, path, "--again")
    assert other != batch
    assert [one["batch"] for one in yard.json("batch", "list")[:2]] == [other, batch]
    done = yard("batch", "cancel", other)
    assert (done.code, done.err) == (0, f"batch {other} is given up\n")
    assert yard("batch", "cancel", other).code == 1
    yard("resume")
    assert yard("batch", "follow").code == 0
    assert yard("batch", path, "--json").code == 0  # what is over is started anew
    assert len({id for _, id in ran(yard)}) == 4


def test_one_script_may_run_in_several_directories(yard: Yard) -> None:
    write(yard, "")
    script, places = yard.cwd / "models" / "train.sh", [yard.cwd / "first", yard.cwd / "second"]
    for place in places:
        place.mkdir()
    rows = "".join(f"{place.name},sh,{script},5,1\n" for place in places)
    batch = started(yard, write(yard, rows, "apart.csv"))
    assert [job["directory"] for job in jobs_of(yard, batch)] == list(map(str, places))
    assert yard("batch", "follow", batch).code == 0
    assert [len((place / "ran.txt").read_text().splitlines()) for place in places] == [1, 1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--array 0-3", "train.sh asks for --array, but a row is one job"),
        ("--gpu-memory much", "train.sh:1: --gpu-memory: 'much' is not a size"),
    ],
)
def test_what_is_wrong_in_a_script_is_told_of_it(yard: Yard, line: str, told: str) -> None:
    done = yard("batch", write(yard, rows_of([1]), script=f"#GPUYARD {line}\n"), "--time", "1h")
    assert done.code == 2
    assert told in done.err


def test_waves_that_never_begin_are_not_waited_for(yard: Yard) -> None:
    yard("drain")
    batch = started(yard, write(yard, rows_of([1, 2])), "--num", "1")
    assert yard("batch", "report", batch).out.splitlines()[1:] == [
        "wave 1: 1 row, not begun",
        "wave 2: 1 row, not begun",
    ]
    yard("batch", "cancel", batch)
    told = yard("batch", "report", batch).out.splitlines()[1:]
    assert told == ["wave 1: 1 row, never begun", "wave 2: 1 row, never begun"]
    yard("resume")


def test_nothing_is_lost_and_nothing_runs_twice_if_the_daemon_is_killed(own_yard: Yard) -> None:
    yard = own_yard
    yard.environment["NAP"] = "0.2"
    yard.serve()
    command = yard.popen("batch", write(yard, rows_of([2, 1] * 8)), "--num", "6", "--json")
    until(lambda: (yard.cwd / "models" / "ran.txt").exists() and len(ran(yard)) >= 3, "three rows that run")
    yard.end(signal.SIGKILL)
    yard.serve()
    until(lambda: len(ran(yard)) >= 9, "the second wave")
    yard.end(signal.SIGKILL)
    yard.serve()
    done = finish(command)
    assert done.code == 0, done
    ids = [id for _, id in ran(yard)]
    assert len(ids) == len(set(ids)) == 16
    report = json.loads(done.out)
    assert (report["succeeded"], report["retries"], [wave["rows"] for wave in report["waves"]]) == (16, 0, [6, 6, 4])


def test_a_batch_goes_on_without_its_command(yard: Yard) -> None:
    path = write(yard, rows_of([1, 1]), script="#GPUYARD --gpu-memory 2G\nuntil test -e ../go; do sleep 0.02; done\n")
    (yard.cwd / "go").unlink(missing_ok=True)
    left = yard.popen("batch", path)
    killed = None
    try:
        batch = str(until(lambda: next((job["batch"] for job in yard.client.jobs(state="running")), None), "a row"))
        killed = yard.popen("batch", path)  # the same file: this one follows
        assert killed.stderr is not None
        assert "is followed" in killed.stderr.readline()
        killed.kill()
        left.send_signal(signal.SIGINT)
        done = finish(left)
    finally:
        left.kill()
        if killed is not None:
            killed.kill()
            killed.communicate()
    assert done.code == 130
    assert f"batch {batch} goes on: gpuyard batch follow {batch} follows it again" in done.err
    (yard.cwd / "go").touch()
    assert yard("batch", "follow", batch).code == 0


def test_much_output_and_failures(yard: Yard) -> None:
    script = "#GPUYARD --gpu-memory 2G\nhead -c 10000000 /dev/zero | tr '\\0' x\nexit $((${2#--id=} % 2 * 3))\n"
    done = yard("batch", write(yard, rows_of([1, 1]), script=script), "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["succeeded"], found["failed"]) == (1, 1)
    assert sorted(row["exit_code"] for row in found["outcomes"]) == [0, 3]
    failed = next(row for row in found["outcomes"] if row["exit_code"])
    assert len(yard("logs", failed["id"]).out) == 10_000_000


def test_the_report_compares_with_one_after_another(yard: Yard) -> None:
    script = "#GPUYARD --gpu-memory 2G\nsleep 0.5  # nothing is known of its like\n"
    batch = started(yard, write(yard, rows_of([1] * 6), script=script), "--from", "0")
    yard("batch", "follow", batch)
    found = yard.json("batch", "report", batch)
    jobs = jobs_of(yard, batch)
    at = {job["id"]: [_seconds(job["started_at"]), _seconds(job["ended_at"])] for job in jobs}
    makespan = max(end for _, end in at.values()) - min(begin for begin, _ in at.values())
    alone = sum(end - begin for begin, end in at.values())
    assert found["makespan"] == pytest.approx(makespan, abs=0.01)
    assert found["sequential"] == pytest.approx(alone, abs=0.02)
    assert found["speedup"] == pytest.approx(found["sequential"] / found["makespan"])
    assert found["gpu_hours_sequential"] == pytest.approx(found["sequential"] / 3600)
    assert found["gpu_hours"] <= found["makespan"] / 3600 + 1e-9
    assert found["gpu_hours_saved"] == pytest.approx(found["gpu_hours_sequential"] - found["gpu_hours"])
    assert 2 <= found["most_at_once"] <= 6
    told = yard("batch", "report").out
    assert f"batch {batch} (commands.csv): 6 succeeded of 6" in told
    assert "one after another its rows take" in told


def _seconds(text: str) -> float:
    from gpuyard.cli.terminal.text_table import instant

    return instant(text).timestamp()


def test_a_grid_and_a_file_of_parameters(yard: Yard) -> None:
    (yard.cwd / "g.toml").write_text(
        'grid = {lr = [0.1, 1e-3], seed = [1, 2]}\n[[jobs]]\nname = "{lr}-{seed}"\ncommand = ["echo", "{lr}", "{id}"]\n'
    )
    found = json.loads(yard("batch", "g.toml", "--gpu-memory", "1G", "--json").out)
    assert [row["name"] for row in found["outcomes"]] == ["0.1-1", "0.1-2", "1e-3-1", "1e-3-2"]
    first = found["outcomes"][0]
    assert yard("logs", first["id"]).out == f"0.1 {first['id']}\n"
    (yard.cwd / "sweep.csv").write_text('lr,note\n0.1,"a, b"\n0.2,c\n')
    done = yard(
        "batch", "--param-file", "sweep.csv", "--env", "NOTE={note}", "--json", "--", "sh", "-c", "echo {lr} $NOTE"
    )
    assert done.code == 0, done
    ids = [row["id"] for row in json.loads(done.out)["outcomes"]]
    assert [yard("logs", id).out for id in ids] == ["0.1 a, b\n", "0.2 c\n"]


def test_what_is_not_known_is_tried_out_once_and_packed_by_what_it_uses(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve("--simulate-gpus", "1x8G")
    write(yard, "".join(f"models,sh,{name}.sh,5,{p}\n" for p in (2, 1) for name in ("train", "other", "other")))
    for name, use in (("train", "1819M"), ("other", "2005M")):
        lines = f"#GPUYARD --simulate-use constant:{use}\n" + SCRIPT.partition("\n")[2]
        (yard.cwd / "models" / f"{name}.sh").write_text(lines)
    first, second = (json.loads(yard("batch", "commands.csv", "--env", "NAP=0.5", "--json").out) for _ in range(2))
    assert (first["succeeded"], first["profiles"], second["succeeded"], second["profiles"]) == (6, 2, 6, 0)
    assert [epochs for epochs, _ in ran(yard)] == ["5"] * 12  # what was tried out left nothing behind
    for report in (first, second):
        rows = report["outcomes"]
        assert {(row["name"], row["peak"]) for row in rows} == {("train.sh", 1819 * 2**20), ("other.sh", 2005 * 2**20)}
        assert (report["ooms"], report["retries"]) == (0, 0)
        assert report["most_at_once"] >= 3
        for row in rows:  # whenever one starts, all that are there fit beside the buffer
            there = [o for o in rows if o["started_at"] <= row["started_at"] < o["ended_at"]]
            assert sum(o["gpu_memory"] for o in there) + 2**29 <= 8 * 2**30
            assert all(o["gpu_memory"] >= o["peak"] for o in there)
    tried = [job for job in yard.client.jobs(all=True) if job["batch"] == first["batch"] and not job["row"]]
    assert max(job["ended_at"] or "" for job in tried) <= min(row["started_at"] for row in first["outcomes"])


def test_minus_one_is_this_python_and_lines_of_the_script_count(yard: Yard) -> None:
    (yard.cwd / "t.py").write_text("#!/usr/bin/env python\n#GPUYARD --tag mine --gpu-memory 3G\nprint()\n")
    (yard.cwd / "c.csv").write_text(".,-1,t.py,7,1\n")
    batch = started(yard, "c.csv")
    job = yard.wait(batch)
    assert job["command"] == [sys.executable, "t.py", "--epochs=7", f"--id={batch}"]
    assert (job["tags"], job["gpu_memory"], job["directory"]) == (["mine"], 3 * 2**30, str(yard.cwd))
    assert job["row"] == {"number": 1, "wave": 1, "epochs": 7, "priority": 1}
    assert yard.client.job(started(yard, "c.csv", "--gpu-memory", "1G"))["gpu_memory"] == 2**30
    asked = yard.client.job(started(yard, write(yard, rows_of([1]), script="true\n")))
    assert (asked["gpu_memory_asked"], asked["profile"]) == ("auto", "--epochs=2")
    plain = yard.client.job(started(yard, write(yard, rows_of([1]), "other.csv", "true\n"), "--no-profile"))
    assert (plain["gpu_memory_asked"], plain["profile"]) == ("auto", None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Usage: gpuyard batch"),
        (["nosuch.csv"], "nosuch.csv: No such file"),
        (["a.csv", "b.csv"], "more than one file is given"),
        (["--num", "3"], "no file is given; write gpuyard batch commands.csv"),
        (["--param-file", "p.csv"], "there is no command to fill; put it after --"),
        (["--param-file", "p.csv", "--gpu-memory", "{lr}", "--", "echo"], "p.csv:2: --gpu-memory: 1 bytes"),
        (["--param-file", "p.csv", "--time", "soon", "--", "echo", "{lr}"], "gpuyard: error: --time: 'soon' is not"),
        (["--param-file", "p.csv", "--", "echo", "{lrr}"], "nothing has the parameter lr in it, but there is {lrr}"),
        (["d.csv"], "d.csv:1, column 1 (Directory): there is no directory"),
        (["f.csv"], "f.csv:1, column 3 (Filename): there is no file tran.sh in"),
        (["e.csv"], "e.csv:1, column 2 (Executable): there is no program nosuchprogram"),
        (["y.yaml", "--num", "2"], "jobs that follow each other cannot be put into waves; leave out --num"),
        (["p.csv", "--array", "0-3"], "leave out --array"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told_before_anything_is_queued(yard: Yard, arguments: list[str], told: str) -> None:
    write(yard, rows_of([1]))
    for name, text in {
        "d.csv": "nowhere,sh,train.sh,1,1\n", "f.csv": "models,sh,tran.sh,1,1\n",
        "e.csv": "models,nosuchprogram,train.sh,1,1\n", "p.csv": "lr\n1\n",
        "y.yaml": "- {command: 'true', name: a}\n- {command: 'true', after: a}\n",
    }.items():  # fmt: skip
        (yard.cwd / name).write_text(text)
    done: Done = yard("batch", *arguments)
    assert done.code == 2
    assert told in done.err + done.out
    assert yard.client.jobs() == []


def test_each_mistake_has_a_line(yard: Yard) -> None:
    (yard.cwd / "m.csv").write_text("nowhere,sh,a.sh,1,1\nneither,sh,b.sh,1,1\n")
    done = yard("batch", "m.csv")
    assert done.code == 2
    assert [line.partition(")")[0] for line in done.err.splitlines()] == [
        "gpuyard: error: m.csv:1, column 1 (Directory", "m.csv:2, column 1 (Directory",
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["follow", "report", "cancel"])
def test_a_batch_that_there_is_not(yard: Yard, what: str) -> None:
    done = yard("batch", what, "999999")
    assert (done.code, done.err) == (1, "gpuyard: error: there is no batch 999999 (gpuyard batch list lists them)\n")


def test_a_batch_without_a_name_and_all_or_none(yard: Yard) -> None:
    """Over the API: rows get numbers, and without `skip_refused` one bad row spoils all."""
    here = str(Path(yard.cwd))
    good = {"command": ["true", "{id}"], "directory": here, "own_id": True}
    bad = {"command": ["true"], "directory": here, "gpus": 9}
    body = {"jobs": [good, bad], "batch": {"name": "mine"}}
    with pytest.raises(Exception, match="job 2 of 2"):
        yard.client._ask("POST", "/jobs/batch", body)
    taken = yard.client._ask("POST", "/jobs/batch", {**body, "skip_refused": True})
    assert (taken["batch"], [one["row"] for one in taken["refused"]]) == (taken["ids"][0], [2])
    job = yard.wait(taken["batch"])
    assert (job["command"], job["row"]) == (
        ["true", job["id"]], {"number": 1, "wave": 1, "epochs": 0, "priority": 0},
    )  # fmt: skip


def test_a_batch_is_its_owners(a: Desk, b: Desk) -> None:
    body = {"command": ["sleep", "1000"], "directory": "/", "environment": a.user.environment()}

    def submit(client: Client) -> Any:
        return client.submit_batch([body, body], "mine", same="file")

    batch = a.ask(submit)["batch"]
    other = b.ask(submit)  # the same file in other hands is another batch
    assert (other["open"], other["batch"] != batch) == (False, True)
    assert a.ask(submit) == {"ids": [batch, str(int(batch) + 1)], "batch": batch, "refused": [], "open": True}
    with pytest.raises(Refused, match="cancel batch"):
        b.ask(lambda client: client.cancel_batch(batch))
    assert b.ask(lambda client: client.batch(batch))["state"] == "open"
    a.ask(lambda client: client.cancel_batch(batch, grace=0))
    until(lambda: a.ask(lambda client: client.batch(batch))["state"] == "over", "the end of the batch")
    mine = [one["batch"] for one in a.ask(lambda client: client.batches(user=a.user.name))]
    assert (mine[0], other["batch"] in mine) == (batch, False)
