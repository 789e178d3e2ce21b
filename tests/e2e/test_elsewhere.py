"""The command line and the client against a daemon that is reached over HTTP: nothing of this machine is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import certificate
from tests.yard import PATIENCE, Done, Yard, finish, opened, until

from gpuyard.client.client import Client
from gpuyard.client.transport import Invalid, Refused


class Far:
    """A daemon, and commands that reach it by its URL alone."""

    def __init__(self, yard: Yard, home: Path) -> None:
        self.yard, self.home = yard, home
        self.url = str(yard.client.status()["url"])
        self.client = Client(host=self.url)
        self.environment = {"XDG_CONFIG_HOME": str(home / "config"), "GPUYARD_HOST": "", "GPUYARD_DATA_DIR": ""}

    def __call__(self, *arguments: str | Path) -> Done:
        return self.yard("--host", self.url, *arguments, more=self.environment)


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with opened(tmp_path_factory.mktemp("far")) as yard:
        yard.environment["GPUYARD_SECRET"] = "of the daemon"
        yard.serve("--port", "0")
        yield yard


@pytest.fixture
def far(_served: Yard, tmp_path: Path) -> Iterator[Far]:
    yield Far(_served, tmp_path)
    _served.clear()


def home() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_dir


def test_a_job_runs_at_home_there_with_the_environment_of_a_login(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    done = far("submit", "--env", "COLOUR=red", "--export", "ALL,SHAPE=round", "--", "sh", "-c", "pwd; env")
    id = done.out.strip()
    assert done.err == (
        f"job {id}: is to run in your home directory on the machine at {far.url}; no file of this machine is sent\n"
    )
    assert far("wait", id).code == 0
    where, *lines = far("logs", id).out.splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    assert where == environment["HOME"] == home()
    assert (environment["COLOUR"], environment["SHAPE"]) == ("red", "round")
    assert {"USER", "LOGNAME", "SHELL", "PATH", "LANG"} <= environment.keys()
    assert not {"GPUYARD_SECRET", "GPUYARD_HOST", "PYTEST_CURRENT_TEST"} & environment.keys()
    assert "umask" not in far.client.job(id)


def test_a_script_is_sent_and_other_files_are_not(far: Far) -> None:
    here = far.yard.cwd
    (here / "train.sh").write_text('#!/bin/sh\n#SBATCH --job-name deep\necho "$1 in $PWD, from $SLURM_SUBMIT_DIR"\n')
    (here / "data.py").write_text("print(1)")
    done = far("run", "--chdir", "/tmp", "train.sh", "trained")
    assert (done.code, done.out) == (0, "trained in /tmp, from /tmp\n")
    assert "is to run in /tmp" in done.err
    assert "no file of this machine is sent but the script" in done.err
    done = far("submit", "--hold", "--chdir", "~/..", "data.py")
    assert "warning: the file data.py of this machine is not sent" in done.err
    assert far.client.job(done.out.strip())["directory"] == os.path.join(home(), "..")
    done = far("submit", "--chdir", "below", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert "--chdir below: where that is on another machine nobody knows; write a path from its root" in done.err
    assert "or '~/below' for one in your home directory there" in done.err
    done = far("submit", "--hold", "trian.sh")
    assert done.code == 0
    assert "warning: trian.sh is taken for a program of the machine that it is to run on, since there is no" in done.err
    assert "such file here; did you mean 'train.sh'?\n" in done.err
    for words in (("true",), ("--", "./trian.sh")):  # what stands after -- is taken at its word
        assert "warning" not in far("submit", "--hold", *words).err


def test_a_job_file_is_read_here_and_runs_there(far: Far) -> None:
    (far.yard.cwd / "jobs.yaml").write_text("- {name: a, command: pwd}\n- {command: pwd, after: a, env: {X: 1}}")
    done = far("submit", "--file", "jobs.yaml")
    assert done.code == 0, done.err
    assert done.err == (
        f"2 jobs: are to run in your home directory on the machine at {far.url}; no file of this machine is sent\n"
    )
    for id in done.out.split():
        assert far.client.wait(id, PATIENCE)["state"] == "succeeded"
        assert b"".join(far.client.follow(id)).decode() == f"{home()}\n"


def test_commands_work_from_afar(far: Far) -> None:
    id = far("submit", "--name", "long", "--", "sleep", "1000").out.strip()
    until(lambda: far.client.job(id)["started_at"], "its start")
    assert json.loads(far("ps", "--json").out)[0]["id"] == id
    assert json.loads(far("gpus", "--json").out)[0]["jobs"] == [id]
    assert json.loads(far("status", "--json").out)["url"] == far.url
    assert "Name:         long" in far("show", id).out
    assert far("explain", id).code == 0
    other = far("submit", "--hold", "--name", "other", "--", "true").out.strip()
    assert far("edit", other, "--priority", "3").code == 0
    assert far("release", other).code == 0
    assert far("wait", other).code == 0
    copy = far("clone", other, "--chdir", "/", "--", "pwd").out.strip()
    assert far("logs", "-f", copy).out == "/\n"
    assert far("cancel", "--grace", "0", id).code == 0
    assert far("wait", id).code == 130
    assert [job["id"] for job in json.loads(far("history", "--json", "--limit", "2").out)] == [id, copy]
    assert far("policy", "set", "fcfs").code == 0
    assert far("policy").out.startswith("fcfs@")


def test_output_in_a_file_there_is_not_looked_for_here(far: Far) -> None:
    id = far("submit", "--output", "/tmp/gpuyard-%j.txt", "--chdir", "/tmp", "--", "true").out.strip()
    path = Path(far.client.wait(id, PATIENCE)["output"] or "")
    path.unlink()
    for words in (("logs", id), ("logs", "-f", id)):
        done = far(*words)
        assert done.code == 0 or f"went to {path} on that machine" in done.err
    path.touch()
    done = far("logs", id)
    path.unlink()
    assert (done.code, done.err) == (
        2, f"gpuyard: error: the output of job {id} went to {path} on that machine; read it there\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "up", "serve", "down", "acquire", "doctor", "config show", "config path", "backup F", "restore F",
        "service install", "service status", "service uninstall",
    ],
)  # fmt: skip
def test_what_is_for_the_machine_itself_refuses_a_host(far: Far, command: str) -> None:
    words = command.removesuffix(" F")
    told = f"gpuyard: error: gpuyard {words} is for the machine that it runs on; run it there, without --host\n"
    assert far(*command.split()) == Done(2, "", told)
    after = far.yard(*command.split(), "--host", far.url)
    if words in ("up", "serve", "service install"):  # which listen there
        assert (after.code, after.out) == (2, "")
        assert f"--host is here the address to listen at, as in 127.0.0.1, and {far.url} is none" in after.err
    else:
        assert after == Done(2, "", told)


def test_where_is_said_once(far: Far) -> None:
    for option in ("--data-dir", "--socket"):
        done = far("ps", option, "x")
        assert (done.code, done.out) == (2, "")
        assert "--host is for a daemon elsewhere, --data-dir and --socket for one here" in done.err
    assert far.yard("ps", "--host", far.url).code == 0
    assert far.yard("ps", more={"GPUYARD_HOST": far.url, "GPUYARD_DATA_DIR": "/nowhere"}).code == 0
    done = far.yard("ps", "--data-dir", "/nowhere", more={"GPUYARD_HOST": far.url})
    assert "no daemon answers at /nowhere" in done.err


def test_progress_can_be_told_from_afar(far: Far) -> None:
    id = far.client.submit(["sleep", "1000"])
    with pytest.raises(Refused, match="there is no job 999"):
        far.client.report_progress("999", 1, 4)
    until(lambda: far.client.job(id)["started_at"], "its start")
    far.client.report_progress(id, 1, 4)
    progress = far.client.job(id)["progress"]
    assert progress is not None
    assert progress["fraction"] == 0.25
    with pytest.raises(Invalid):
        far.client.report_progress(id, 1, 0)
    far.client.cancel(id, 0)
    far.client.wait(id, PATIENCE)
    with pytest.raises(Refused, match=f"job {id} is over: it was cancelled"):
        far.client.report_progress(id, 2, 4)


def test_a_daemon_with_tls_is_reached_by_its_certificate(own_yard: Yard, tmp_path: Path) -> None:
    own = certificate(tmp_path / "tls")
    own_yard.serve("--port", "0", "--tls-cert", own.file, "--tls-key", own.key)
    url = str(own_yard.client.status()["url"])
    assert url.startswith("https://")
    done = own_yard("ps", "--host", url)
    assert done.code == 1
    assert f"gpuyard login {url} --ca-file FILE" in done.err
    assert own_yard("ps", "--host", url, "--ca-file", own.file).code == 0
    assert own_yard("ps", "--host", url, more={"GPUYARD_CA": own.file}).code == 0


def test_a_token_is_stored_checked_and_forgotten(own_yard: Yard, tmp_path: Path) -> None:
    own_yard.serve("--port", "0", "--token", "required")
    url = str(own_yard.client.status()["url"])
    token = str(own_yard.client.make_token()["token"])
    own_yard.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")

    def login(text: str) -> Done:
        running = subprocess.Popen(
            [sys.executable, "-m", "gpuyard", "login", url], cwd=own_yard.cwd, env=own_yard.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = running.communicate(text, PATIENCE)
        return Done(running.returncode, out, err)

    done = own_yard("ps", "--host", url)
    assert done.code == 1
    assert f"gpuyard login {url} stores a token" in done.err
    done = login(token[:-1] + ("a" if token[-1] != "a" else "b") + "\n")
    assert done.code == 1
    assert f"{url} does not take this token" in done.err
    assert login("\n").code == 2
    assert not (tmp_path / "config").exists()
    done = login(token + "\n")
    assert (done.code, done.out) == (0, "")
    assert f"you are {own_yard.client.who_am_i()['user']} at {url}" in done.err
    assert own_yard("ps", "--host", url).code == 0
    assert own_yard("cancel", "--all", "--host", url).err == "no job fits\n"
    assert own_yard("ps", "--host", url, more={"GPUYARD_TOKEN": "gy_wrong"}).code == 1
    assert own_yard("ps", more={"GPUYARD_TOKEN": token}).code == 0  # which is for hosts
    assert own_yard("logout", url).code == 0
    assert own_yard("ps", "--host", url).code == 1
    assert own_yard("ps", "--host", url, more={"GPUYARD_TOKEN": token}).code == 0
    assert own_yard("logout", url).code == 2
    assert token not in (own_yard.data_dir / "daemon.log").read_text() + done.err


PREAMBLE = """
import sys, os, socket, signal
import gpuyard.cli.app, json, subprocess, shutil, tempfile, getpass, urllib.parse, contextlib, datetime
MISSING = ("pwd", "grp", "fcntl", "resource", "termios", "tty", "pty", "curses", "_curses", "syslog", "posix_ipc")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ImportError(f"there is no {name} here")
sys.meta_path.insert(0, Missing())
for name in MISSING:
    sys.modules.pop(name, None)
for name in ("geteuid", "getuid", "getgid", "getegid", "fork", "setsid", "getpgid", "killpg", "O_PATH", "O_CLOEXEC",
             "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "getgrouplist", "initgroups", "setuid", "wait4", "uname"):
    if hasattr(os, name):
        delattr(os, name)
del socket.AF_UNIX
for name in ("SIGKILL", "SIGHUP", "SIGWINCH", "SIGCHLD"):
    delattr(signal, name)
sys.platform = "win32"
from gpuyard.cli import main
sys.argv = ["gpuyard", *sys.argv[1:]]
main()
"""
"""Makes Python as poor as it is on Windows, and runs a command."""


def test_it_works_without_posix(far: Far) -> None:
    script = far.yard.cwd / "job.sh"
    script.write_text("#!/bin/sh\necho from Windows\n")
    outside = {k: v for k, v in far.yard.environment.items() if not k.startswith(("GPUYARD_", "XDG_", "HOME"))}
    environment = outside | {"APPDATA": str(far.home), "USERPROFILE": str(far.home), "HOME": str(far.home)}

    def poor(*words: str) -> Done:
        command = [sys.executable, "-c", PREAMBLE, *words]
        running = subprocess.Popen(
            command, cwd=far.yard.cwd, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return finish(running)

    done = poor("ps")
    assert (done.code, done.out) == (2, "")
    assert "gpuyard's daemon runs on Linux; say where" in done.err
    environment["GPUYARD_HOST"] = far.url
    assert "From elsewhere" in poor("--help").out
    done = poor("submit", "job.sh")
    assert done.code == 0, done.err
    id = done.out.strip()
    assert poor("wait", id).code == 0
    assert poor("logs", "-f", id).out == "from Windows\n"
    long = poor("submit", "--", "sleep", "1000").out.strip()
    for words in (("ps", "--json"), ("show", long), ("status",), ("gpus",), ("cancel", long, "--grace", "0")):
        done = poor(*words)
        assert done.code == 0, (words, done)
    done = poor("run", "--", "sh", "-c", "echo out; exit 3")
    assert (done.code, done.out) == (3, "out\n"), done.err
    assert id in poor("history").out


def test_the_client_imports_little_over_a_socket_or_http(far: Far) -> None:
    code = (
        "import sys; before = set(sys.modules); import gpuyard; gpuyard.Client(host=sys.argv[1]).status();"
        "new = set(sys.modules) - before; print({m.split('.')[0] for m in new} - set(sys.stdlib_module_names));"
        "print(sorted(new & {'ssl', 'http.client', 'email', 'tomllib', 'asyncio', 'threading', 'dataclasses',"
        "'inspect', 'logging', 'subprocess', 'numpy', 'ctypes', 'decimal', 'random', 'hashlib'}))"
    )
    environment = {**far.yard.environment, **far.environment}
    done = subprocess.run(
        [sys.executable, "-c", code, far.url], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "{'gpuyard'}\n[]\n"
