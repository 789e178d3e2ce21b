"""`gpuyard monitor`: real commands, on simulated GPUs and on those of a made-up driver."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.terminal import Terminal
from tests.yard import Yard, finish, opened, until

GIB = 2**30
SCRIPT = """
import os, sys, time

state = os.environ["FAKE_NVML_STATE"]
if len(sys.argv) > 1:  # leave the work to a process that nobody is the parent of
    if os.fork():
        os.wait()
        while not os.path.exists("done"):
            time.sleep(0.01)
        sys.exit(int(sys.argv[1]))
    if os.fork():
        os._exit(0)
    os.setsid()

def put(util, memory, watts, degrees):
    with open(state + ".mine", "w") as file:
        file.write("driver=550.54.15\\nname=NVIDIA A100;mem_total=85899345920;")
        file.write(f"mem_used={memory + 2**28};util={util};mem_util={util // 2};temp={degrees};")
        file.write(f"power_mw={watts * 1000};procs={os.getpid()}:{memory}\\nname=NVIDIA A100;power_mw=50000\\n")
    os.replace(state + ".mine", state)

joules, before, began = 0.0, None, time.time()
for util, memory, watts, degrees, seconds in (
    (10, 1, 100, 40, 0.7), (90, 8, 320, 55, 1.3), (70, 12, 250, 60, 0.3), (100, 9, 400, 66, 1.45), (5, 1, 80, 50, 0.9)
):
    put(util, memory * 2**30, watts, degrees)
    now = time.time()
    joules += before[0] * (now - before[1]) if before else 0.0
    before = watts, now
    time.sleep(seconds)
joules += before[0] * (time.time() - before[1])
open("done.new", "w").write(f"{joules / 3600} {time.time() - began}")
os.replace("done.new", "done")
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Yard]:
    """Commands in a directory of their own, without a daemon."""
    with opened(tmp_path) as found:
        yield found


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), skipinitialspace=True))


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


def env(fake: FakeNvml) -> Mapping[str, str]:
    return {name: fake.env[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}


def simulated(here: Yard, *arguments: str, command: tuple[str, ...]) -> subprocess.Popen[str]:
    return here.popen("monitor", "--simulate-gpus", "1x16G", "--no-plots", "--out", "out", *arguments, "--", *command)


def test_without_a_gpu_it_says_so_and_nothing_is_simulated(here: Yard, fake_nvml: FakeNvml) -> None:
    fake_nvml.driver(loaded=0)
    done = finish(here.popen("monitor", "--", "touch", "ran", more=env(fake_nvml)))
    assert done.code == 2
    assert done.err == (
        "gpuyard: error: there is no GPU to look at here: the NVIDIA driver is not loaded; see what nvidia-smi says; "
        "or try it with a simulated one: --simulate-gpus 1x16G\n"
    )
    assert list(here.cwd.iterdir()) == []


@pytest.mark.parametrize("orphan", [(), ("5",)])
def test_energy_and_peaks_are_what_the_driver_said(here: Yard, fake_nvml: FakeNvml, orphan: tuple[str, ...]) -> None:
    """Also those of a process that left its parent, and its session; and what lasted less than a second."""
    fake_nvml.add(name="NVIDIA A100", power_mw=100_000)
    fake_nvml.add(name="NVIDIA A100", power_mw=50_000)
    (here.cwd / "train.py").write_text(SCRIPT)
    command = ("monitor", "--out", "out", "--no-plots", "--", sys.executable, "train.py", *orphan)
    done = finish(here.popen(*command, more=env(fake_nvml)))
    assert (done.code, done.out) == (5 if orphan else 0, "")
    found, out = summary(here.cwd / "out"), here.cwd / "out"
    used, idle = found["gpus"]
    truth, seconds = map(float, (here.cwd / "done").read_text().split())
    began_with = 100 * (found["seconds"] - seconds) / 3600  # before the script said anything, and after
    assert used["energy_wh"] == pytest.approx(truth + began_with, rel=0.02)
    assert idle["energy_wh"] == pytest.approx(50 * found["seconds"] / 3600, rel=0.02)
    assert (found["energy_wh"], found["energy_of"]) == (used["energy_wh"], [0])
    assert (used["peak_process_memory"], used["peak_memory"]) == (12 * GIB, 12 * GIB + 2**28)
    assert (used["utilization_max"], used["temperature_max"], used["power_max"]) == (100, 66, 400)
    assert (idle["used"], idle["peak_process_memory"], found["simulated"]) == (False, None, False)
    found_rows = rows(out / "gpu_usage.csv")
    assert [row["index"] for row in found_rows] == ["0", "1"] * (len(found_rows) // 2)
    assert len(found_rows) // 2 == pytest.approx(int(found["seconds"]) + 2, abs=1)  # at once, each second, in the end
    assert {row["power.draw [W]"] for row in found_rows[1::2]} == {"50.00 W"}
    assert f"* GPU 0: used by it; energy {found['energy_wh']:.4g} Wh" in done.err


def test_a_command_runs_as_if_nobody_looked_on(here: Yard) -> None:
    process = here.popen(
        "monitor", "--simulate-gpus", "2x16G", "--simulate-use", "3G;util=40", "--out", "out", "--json",
        "--metrics", "utilization,power", "--", "sh", "-c", "echo out; echo err >&2; exit 3",
    )  # fmt: skip
    done = finish(process)
    assert done.code == 3
    assert done.out.startswith("out\n")
    assert "err\n" in done.err
    told = json.loads(done.out.partition("\n")[2])
    assert (told["exit_code"], told["signal"], told["simulated"]) == (3, None, True)
    assert told["command"] == ["sh", "-c", "echo out; echo err >&2; exit 3"]
    assert [gpu["peak_process_memory"] for gpu in told["gpus"]] == [3 * GIB] * 2
    assert {Path(file).name for file in told["files"]} >= {
        "gpu_usage.csv", "recording.json", "summary.json", "utilization.png", "power.svg", "plots.html",
    }  # fmt: skip
    for file in told["files"]:
        assert (here.cwd / file).stat().st_size > 0
    first = (here.cwd / "out" / "gpu_usage.csv").read_text().splitlines()
    assert first[0] == "index, timestamp, name, utilization.gpu [%], utilization.memory [%], power.draw [W]"
    assert first[1].startswith("0, 20")
    assert ", Simulated GPU 16G, 40 %, " in first[1]
    assert "2 simulated GPUs: no real GPU is looked at" in done.err


def test_input_goes_to_the_command(here: Yard) -> None:
    command = [sys.executable, "-m", "gpuyard", "monitor", "--simulate-gpus", "1", "--no-plots", "--", "cat"]
    done = subprocess.run(
        command, cwd=here.cwd, env=here.environment, input=b"a\0b\n", capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"a\0b\n")
    [folder] = here.cwd.iterdir()
    assert folder.name.startswith("gpuyard-monitor-20")


@pytest.mark.parametrize(
    ("number", "command", "code", "by"),
    [
        (signal.SIGTERM, "trap 'exit 7' TERM; touch ready; while :; do sleep 0.02; done", 7, None),
        (signal.SIGINT, "trap 'exit 8' INT; touch ready; while :; do sleep 0.02; done", 8, None),
        (signal.SIGUSR1, "trap 'exit 9' USR1; touch ready; while :; do sleep 0.02; done", 9, None),
        (signal.SIGTERM, "touch ready; exec sleep 1000", 143, "SIGTERM"),
    ],
)
def test_signals_go_to_the_command(here: Yard, number: int, command: str, code: int, by: str | None) -> None:
    process = simulated(here, command=("sh", "-c", command))
    until((here.cwd / "ready").exists, "the command")
    process.send_signal(number)
    done = finish(process)
    assert done.code == code
    found = summary(here.cwd / "out")
    assert (found["exit_code"], found["signal"]) == (code, by)
    assert len(rows(here.cwd / "out" / "gpu_usage.csv")) >= 2


def test_what_kills_the_command_is_told(here: Yard) -> None:
    done = finish(simulated(here, command=("sh", "-c", "kill -9 $$")))
    assert done.code == 137
    assert "sh: ended by SIGKILL, " in done.err


def test_if_it_is_killed_itself_the_rows_so_far_are_there(here: Yard) -> None:
    process = simulated(here, "--period", "0.1s", command=("sh", "-c", "echo $$ > pid; exec sleep 1000"))
    usage, child = here.cwd / "out" / "gpu_usage.csv", here.cwd / "pid"
    until(lambda: usage.exists() and len(usage.read_text().splitlines()) > 3, "some rows")
    process.kill()
    process.wait()
    os.kill(int(child.read_text()), signal.SIGKILL)  # it goes on without anybody who looks
    process.communicate()
    assert all(row["power.draw [W]"].endswith(" W") for row in rows(usage))
    assert not (here.cwd / "out" / "summary.json").exists()


def test_what_an_earlier_run_left_is_not_overwritten(here: Yard) -> None:
    (here.cwd / "out").mkdir()
    (here.cwd / "out" / "gpu_usage.csv").write_text("mine")
    done = here("monitor", "--simulate-gpus", "1", "--for", "0.1s", "--out", "out")
    assert done.code == 2
    assert "out has gpu_usage.csv in it, from an earlier run; name another folder by --out" in done.err
    assert [path.name for path in (here.cwd / "out").iterdir()] == ["gpu_usage.csv"]


def test_what_cannot_be_run_leaves_nothing(here: Yard) -> None:
    (here.cwd / "odd").write_bytes(b"\0\0")
    (here.cwd / "odd").chmod(0o755)
    (here.cwd / "plain").write_text("#!/bin/sh\n")
    for command, why in (
        ("./odd", "Exec format error"),
        ("nosuch", "there is no program 'nosuch' to run"),
        ("./plain", "'./plain' may not be executed; chmod +x ./plain"),
        ("./", "'./' is a folder"),
    ):
        done = finish(simulated(here, command=(command,)))
        assert done.code == 2
        assert why in done.err
        assert sorted(path.name for path in here.cwd.iterdir()) == ["odd", "plain"]


def test_a_process_and_what_it_starts_until_it_ends(here: Yard, fake_nvml: FakeNvml) -> None:
    target = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert target.stdout is not None
    child = int(target.stdout.readline())
    fake_nvml.add(name="NVIDIA A100", procs={child: 3 * GIB, os.getpid(): GIB}, mem_used=5 * GIB)
    try:
        process = here.popen("monitor", "--pid", str(target.pid), "--no-plots", "--out", "out", more=env(fake_nvml))
        usage = here.cwd / "out" / "gpu_usage.csv"
        until(lambda: usage.exists() and len(usage.read_text().splitlines()) > 1, "a row")
    finally:
        os.kill(child, signal.SIGKILL)
        target.communicate()
    done = finish(process)
    assert done.code == 0
    found = summary(here.cwd / "out")
    assert (found["pid"], found["interrupted"]) == (target.pid, False)
    assert [gpu["peak_process_memory"] for gpu in found["gpus"]] == [3 * GIB]
    assert [gpu["peak_memory"] for gpu in found["gpus"]] == [5 * GIB]


def test_some_gpus_for_a_while(here: Yard) -> None:
    done = here("monitor", "--gpu", "0,2", "--for", "0.3s", "--period", "0.1s", "--simulate-gpus", "3x16G", "--json",
                "--no-plots", "--out", "out")  # fmt: skip
    assert done.code == 0
    found = json.loads(done.out)
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 2]
    assert found["seconds"] == pytest.approx(0.3, abs=0.2)
    assert {row["index"] for row in rows(here.cwd / "out" / "gpu_usage.csv")} == {"0", "2"}


def test_interrupted_it_writes_what_there_is(here: Yard) -> None:
    process = here.popen("monitor", "--gpu", "0", "--simulate-gpus", "1", "--no-plots", "--out", "out")
    usage = here.cwd / "out" / "gpu_usage.csv"
    until(lambda: usage.exists() and len(usage.read_text().splitlines()) > 1, "a row")
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 0
    assert summary(here.cwd / "out")["interrupted"] is True


def test_a_job_of_the_daemon_is_followed_and_told_of(yard: Yard) -> None:
    id = yard.submit("--simulate-use", "ramp/0.5:1G,3G;util=40", "--name", "train", "--", "sleep", "1.5")
    done = yard("monitor", "--job", id, "--out", f"job{id}", "--metrics", "utilization,process_memory", "--json")
    assert done.code == 0, done
    found, job = json.loads(done.out), yard.client.job(id)
    assert (found["job"], found["state"], found["exit_code"], found["simulated"]) == (id, "succeeded", 0, True)
    assert found["seconds"] == pytest.approx(1.5, abs=0.5)
    [gpu] = found["gpus"]
    assert (gpu["index"], gpu["used"], gpu["utilization_max"]) == (job["gpus"][0], True, 40)
    assert gpu["peak_process_memory"] in (GIB, 3 * GIB)
    assert found["energy_wh"] == job["energy_wh"]
    usage = rows(yard.cwd / f"job{id}" / "gpu_usage.csv")
    assert {row["utilization.gpu [%]"] for row in usage} == {"40 %"}
    assert {Path(file).name for file in found["files"]} >= {"utilization.png", "process_memory.svg", "plots.html"}
    again = yard("monitor", "--job", id, "--out", f"job{id}")
    assert (again.code, "from an earlier run" in again.err) == (2, True)


def test_what_gpus_did_lately(yard: Yard, tmp_path: Path) -> None:
    yard.wait(yard.submit("--simulate-use", "2G;util=40", "--from", "1", "--", "sleep", "1.2"))
    done = yard("monitor", "--since", "1m", "--gpu", "1,2", "--out", tmp_path / "lately", "--no-plots", "--json")
    assert done.code == 0, done
    found = json.loads(done.out)
    assert [gpu["index"] for gpu in found["gpus"]] == [1, 2]
    assert found["gpus"][0]["peak_memory"] >= 2 * GIB
    assert found["source"] == "the daemon's recordings"


def test_a_job_that_did_not_run_and_one_that_there_is_not(yard: Yard) -> None:
    id = yard.submit("--hold", "--", "true")
    yard("cancel", id)
    done = yard("monitor", "--job", id, "--out", "none")
    assert (done.code, done.err) == (
        2, f"gpuyard: error: job {id} has not run (cancelled), so there is nothing to tell of it\n",
    )  # fmt: skip
    assert yard("monitor", "--job", "999999", "--out", "none").code == 1
    assert not (yard.cwd / "none").exists()


@pytest.mark.program
def test_on_a_terminal_ctrl_c_reaches_the_command_once(here: Yard) -> None:
    count = "n=0; trap 'n=$((n+1)); echo heard $n' INT; echo ready; until test -e go; do sleep 0.05; done; echo $n >n"
    (here.cwd / "count.sh").write_text(count)
    line = f"cd {here.cwd} && {sys.executable} -m gpuyard monitor --simulate-gpus 1 --no-plots --out out -- sh count.sh"
    with Terminal(here.cwd, line, here.environment, 100, 30) as terminal:
        terminal.shows("ready")
        terminal.type("C-c")
        terminal.shows("heard 1")
        (here.cwd / "go").touch()
        terminal.shows("sh count.sh: exit code 0", "written to out")
    assert (here.cwd / "n").read_text() == "1\n"


@pytest.mark.program
def test_a_live_view_of_gpus(here: Yard) -> None:
    line = f"cd {here.cwd} && {sys.executable} -m gpuyard monitor --gpu 0 --simulate-gpus 2x16G --no-plots --out out"
    with Terminal(here.cwd, line, here.environment, 100, 30) as terminal:
        terminal.shows("Ctrl-C ends it", "TEMPERATURE", "0 of 16G")
        terminal.type("C-c")
        terminal.shows("written to out")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "there is nothing to watch; put a command after --"),
        (["--pid", "1", "--job", "2"], "--pid and --job are two things to watch; give one of them"),
        (["--since", "1h", "--", "true"], "a command and --since are two things to watch"),
        (["--for", "3s", "--", "true"], "with a command the end is known"),
        (["--job", "1", "--gpu", "0"], "--job knows its GPUs; leave out --gpu"),
        (["--source", "prometheus", "--", "true"], "--source tells of the past"),
        (["--url", "http://x", "--gpu", "0"], "--url tells of the past"),
        (["--since", "1h", "--simulate-gpus", "1"], "--simulate-gpus is for what is watched now"),
        (["--simulate-use", "1G", "--", "true"], "--simulate-use is for simulated GPUs; name some"),
        (["--simulate-use", "1G", "--gpu", "0"], "--simulate-use says what a command uses"),
        (["--simulate-gpus", "1", "--gpu", "1", "--for", "1s"], "--gpu 1: there is no GPU 1 here, but 0 only"),
        (["--simulate-gpus", "1", "--period", "0", "--", "true"], "--period is at least 0.05 s, not 0"),
        (["--simulate-gpus", "1", "--for", "soon"], "--for: 'soon' is not a duration"),
        (["--simulate-gpus", "1", "--for", "1s", "--metrics", "utilisation"], "did you mean 'utilization'?"),
        (["--simulate-gpus", "1", "--pid", "4194303"], "there is no process 4194303"),
        (["--simulate-gpus", "1", "--pid", "99999999999"], "there is no process 99999999999"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told(here: Yard, arguments: list[str], told: str) -> None:
    done = here("monitor", *arguments)
    assert done.code == 2
    assert told in done.err
    assert list(here.cwd.iterdir()) == []
