"""A root daemon and real users: jobs are theirs, and nobody can do to others what they should not."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.users import PATH, Desk, User, group, made, reachable_folder, require_root
from tests.yard import PATIENCE, Yard, opened, until

from gpuyard.client import Client, Refused
from gpuyard.engines.processes import MARK, look, read_proc
from gpuyard.errors import GpuyardError
from gpuyard.unixhttp import request

ENDLESS = ("sleep", "1000")
SECRET = "s3cret-that-nobody-else-may-see"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    require_root()
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def groups(place: Path) -> Iterator[tuple[str, str]]:
    """A group that a user is in, and the one of the admins."""
    with group(f"gyteam{os.getpid()}") as team, group(f"gyadm{os.getpid()}") as admins:
        yield team, admins


@pytest.fixture(scope="module")
def ann(place: Path, groups: tuple[str, str]) -> Iterator[User]:
    with made(place, f"gyann{os.getpid()}", groups[0]) as user:
        yield user


@pytest.fixture(scope="module")
def bob(place: Path, groups: tuple[str, str]) -> Iterator[User]:
    with made(place, f"gybob{os.getpid()}") as user:
        yield user


@pytest.fixture(scope="module")
def system(place: Path, groups: tuple[str, str]) -> Iterator[Yard]:
    """The daemon of root that everybody shares."""
    with opened(place) as yard:
        yard.environment["GPUYARD_ADMIN_GROUP"] = groups[1]
        yard.environment["GPUYARD_MAX_PRIORITY"] = "5"
        yard.serve()
        yield yard


@pytest.fixture
def yard(system: Yard) -> Iterator[Yard]:
    yield system
    system.clear()


@pytest.fixture
def a(yard: Yard, ann: User) -> Desk:
    return Desk(yard, ann)


@pytest.fixture
def b(yard: Yard, bob: User) -> Desk:
    return Desk(yard, bob)


# Who a job is


WHO = """
id -u; id -g; id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '; echo; umask; pwd
echo "$HOME $USER $LOGNAME $SHELL"
grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status | tr -s '\\n\\t' ' '; echo
touch made; stat -c '%u %g %a' made
"""


def test_each_job_runs_as_its_user(a: Desk, b: Desk) -> None:
    for desk in (a, b):
        user = desk.user
        uid, gid, groups, umask, where, login, powers, made = desk.run("sh", "-c", WHO).splitlines()
        assert (int(uid), int(gid), umask, where) == (user.uid, user.gid, "0027", str(user.home))
        assert {int(number) for number in groups.split()} == user.groups
        assert login == f"{user.home} {user.name} {user.name} /bin/sh"
        assert set(re.findall(r"Cap\w+: (\w+)", powers)) == {"0" * 16}
        assert "NoNewPrivs: 0" in powers
        assert made == f"{user.uid} {user.gid} 640"
    assert a.user.groups != b.user.groups
    users = {job["user"] for job in a.yard.client.history()}
    assert {a.user.name, b.user.name} <= users


def test_a_job_of_root_keeps_what_root_submitted(yard: Yard) -> None:
    given = {"PATH": PATH, "HOME": "/elsewhere"}
    job = yard.client.submit(["sh", "-c", "id -u; echo $HOME; umask"], environment=given, directory="/")
    assert yard.wait(job)["state"] == "succeeded"
    assert yard.client.log(job).data.decode().split() == ["0", "/elsewhere", f"{_umask():04o}"]


def _umask() -> int:
    former = os.umask(0o077)
    os.umask(former)
    return former


def test_a_user_without_a_name(yard: Yard, ann: User) -> None:
    nameless = User("54321", 54321, 54321, frozenset(), Path("/"))
    desk = Desk(yard, nameless)
    assert desk.run("sh", "-c", "id -u; id -g; id -G; echo $HOME").split() == ["54321", "65534", "65534", "/elsewhere"]
    assert desk.ask(lambda client: client.history(limit=1))[0]["user"] == "54321"


def test_limits_are_those_of_the_submitter(a: Desk) -> None:
    limits = {
        resource.RLIMIT_NOFILE: (200, 300),
        resource.RLIMIT_CORE: (0, 4096),
        resource.RLIMIT_STACK: (2**22, 2**23),
    }
    shown = a.run("sh", "-c", "cat /proc/self/limits", limits=limits)
    found = {line[:26].strip(): line[26:].split()[:2] for line in shown.splitlines()}
    assert found["Max open files"] == ["200", "300"]
    assert found["Max core file size"] == ["0", "4096"]
    assert found["Max stack size"] == [str(2**22), str(2**23)]
    assert found["Max processes"] == [_limit(value) for value in resource.getrlimit(resource.RLIMIT_NPROC)]


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def test_the_environment_arrives_whole(a: Desk) -> None:
    given = {
        **a.user.environment(),
        "BYTES": os.fsdecode(bytes(range(1, 256))),
        "LARGE": "x" * 120_000,
        **{f"MANY_{n}": "y" * 10_000 for n in range(100)},
        "EMPTY": "",
        "QUOTES": "'\"`$(id)\\",
        "with.dot": "2",
        "BASH_FUNC_module%%": "() { eval `modulecmd bash $*`; }",
        "ENV": "/no/such",
        "IFS": "x",
        "UID": "7",
        "OLDPWD": "/before",
        "LD_LIBRARY_PATH": "/no/such",
        "gpuyard_look": "1",
        "gpuyard_e0": "PATH=/nowhere",
        MARK: "/wrong",
        "CUDA_VISIBLE_DEVICES": "all",
    }
    id = a.submit("env", "-0", environment=given)
    assert a.yard.wait(id)["state"] == "succeeded"
    text = b""
    while (part := a.yard.client.log(id, len(text), size=2**22)).data:
        text += part.data
    found = dict(os.fsdecode(entry).split("=", 1) for entry in text.split(b"\0")[:-1])
    told = {name: found.pop(name) for name in list(found) if name.startswith(("GPUYARD_", "CUDA_"))}
    wanted = {name: text for name, text in given.items() if not name.startswith(("GPUYARD_", "CUDA_"))}
    login = {"HOME": str(a.user.home), "USER": a.user.name, "LOGNAME": a.user.name, "SHELL": "/bin/sh"}
    assert found == wanted | login | {"PWD": str(a.user.home)}
    work = a.yard.data_dir.resolve() / "work" / id
    assert told == {
        "CUDA_VISIBLE_DEVICES": told["GPUYARD_GPUS"], "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPUYARD_JOB_ID": id,
        "GPUYARD_ATTEMPT": "1", "GPUYARD_RESTART_COUNT": "0", "GPUYARD_GPUS": told["GPUYARD_GPUS"],
        "GPUYARD_CHECKPOINT_DIR": f"{work}/checkpoint", MARK: f"{a.yard.data_dir.resolve()}/jobs/{id}/1",
    }  # fmt: skip


def test_an_environment_that_is_too_large_is_refused_with_a_sentence(a: Desk) -> None:
    large = a.submit("true", environment={"LARGE": "x" * 2**20})
    job = a.yard.wait(large)
    assert (job["state"], job["reason"]) == (
        "failed", "the command and its environment are longer than this system allows",
    )  # fmt: skip
    with pytest.raises(Refused, match="bytes at most"):
        a.submit("true", environment={f"LARGE{n}": "x" * 2**20 for n in range(20)})


def test_commands_and_directories_are_looked_for_as_the_user(a: Desk, b: Desk) -> None:
    tool = a.user.home / "my-tool"
    tool.write_text("#!/bin/sh\necho mine\n")
    tool.chmod(0o700)
    os.chown(tool, a.user.uid, a.user.gid)
    path = {"PATH": f"{a.user.home}:{PATH}"}
    assert a.run("my-tool", environment=path) == "mine\n"
    assert a.run("./my-tool") == "mine\n"
    for command, problem in (("my-tool", "command not found"), (str(tool), "cannot be executed")):
        failed = a.yard.wait(b.submit(command))
        assert (failed["state"], failed["reason"]) == ("failed", f"{problem}: {command}")
    failed = a.yard.wait(b.submit("touch", "ran", directory=str(a.user.home)))
    assert (failed["exit_code"], failed["reason"]) == (125, f"cannot enter its directory: {a.user.home}")
    assert not (a.user.home / "ran").exists()
    assert a.run("sh", "-c", "exit 0", directory="/") == ""
    own = a.yard.wait(a.submit("sh", "-c", "exit 127"))
    assert (own["exit_code"], own["reason"]) == (127, "exit code 127")


def test_a_command_tells_nothing_of_what_only_root_can_see(b: Desk, place: Path) -> None:
    hidden = place / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "there").write_text("#!/bin/sh\n")
    (hidden / "there").chmod(0o755)
    for name in ("there", "not-there"):
        command = str(hidden / name)
        assert b.yard.wait(b.submit(command))["reason"] == f"cannot be executed: {command}"


def test_a_commands_words_are_no_options_of_ours(a: Desk) -> None:
    words = ["--reuid=0", "--groups=0", "--nofile=9:9", "--pid=1", "--", "-n"]
    limits = {resource.RLIMIT_NOFILE: (200, 300)}
    said = a.run("sh", "-c", 'id -u; ulimit -n; echo "$@"', "sh", *words, limits=limits)
    assert said.splitlines() == [str(a.user.uid), "200", " ".join(words)]


def test_output_may_be_written_to_by_name(a: Desk) -> None:
    assert a.run("sh", "-c", "echo one; echo two >>/dev/stderr; echo three | tee -a /dev/stdout") == (
        "one\ntwo\nthree\nthree\n"
    )


def test_a_user_who_is_gone(yard: Yard, place: Path) -> None:
    with made(place, f"gycarl{os.getpid()}") as carl:
        id = Desk(yard, carl).submit("true", hold=True)
        subprocess.run(["userdel", carl.name], check=True)
        yard.client.release(id)
        job = yard.wait(id)
    assert (job["state"], job["reason"]) == ("failed", f"there is no user {carl.name} on this machine any more")


def test_scripts_and_output_are_the_users_own(a: Desk, b: Desk) -> None:
    text = '#!/bin/bash -l\nid -u; echo "$@"; srun echo step; stat -c \'%u %a\' "$0"\n'
    job = a.submit("mine.sh", "an argument", script=text, slurm=True, output="%j.out")
    assert a.yard.wait(job)["state"] == "succeeded"
    path = a.user.home / f"{job}.out"
    assert path.read_text().splitlines() == [str(a.user.uid), "an argument", "step", f"{a.user.uid} 700"]
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (a.user.uid, 0o640)
    elsewhere = a.yard.wait(b.submit("echo", "mine now", output=str(path)))
    assert (elsewhere["state"], elsewhere["exit_code"]) == ("failed", 73)
    assert b"cannot be written" in a.yard.client.log(elsewhere["id"]).data
    missing = a.yard.wait(a.submit("no-such-command", output="%j.out"))
    assert missing["reason"] == "command not found: no-such-command"
    assert not (a.yard.data_dir / "work" / job).exists()


def test_an_array_of_somebody_else_is_out_of_reach(a: Desk, b: Desk) -> None:
    id = a.submit("true", array="0-2", hold=True)
    for what in (id, f"{id}_1", f"{id}_[0-1]"):
        with pytest.raises(Refused, match=f"only {a.user.name} may cancel job"):
            b.ask(lambda client: client.cancel(what))  # noqa: B023
    assert a.yard.client.job(id)["tasks"] == {"held": 3}
    assert a.ask(lambda client: client.cancel(id))["tasks"] == {"cancelled": 3}


# What is whose


REFUSED: dict[str, Callable[[Client, str], Any]] = {
    "cancel job": lambda client, id: client.cancel(id),
    "hold job": lambda client, id: client.hold(id),
    "release job": lambda client, id: client.release(id),
    "read the output of job": lambda client, id: client.log(id),
    "read the environment of job": lambda client, id: client.environment(id),
    "change job": lambda client, id: client.edit(id, priority=1),
    "copy job": lambda client, id: client.clone(id, hold=True),
}


@pytest.mark.parametrize("what", REFUSED)
def test_jobs_of_others_are_out_of_reach(a: Desk, b: Desk, what: str) -> None:
    id = a.submit("sh", "-c", "echo out; sleep 1000", hold=what == "release job")
    with pytest.raises(Refused) as refusal:
        b.ask(lambda client: REFUSED[what](client, id))
    assert refusal.value.status == 403
    assert str(refusal.value).startswith(f"only {a.user.name} may {what} {id}, since the job is {a.user.name}'s; ask ")
    assert a.yard.client.job(id)["state"] == ("held" if what == "release job" else "running")
    if what not in ("hold job", "release job"):
        a.ask(lambda client: len(REFUSED[what](client, id)))


@pytest.mark.parametrize(
    "action",
    [lambda client: client.set_policy("sjf"), lambda client: client.shutdown()],
    ids=["set the policy", "end the daemon"],
)
def test_what_concerns_everybody_is_for_admins(b: Desk, action: Callable[[Client], Any]) -> None:
    with pytest.raises(Refused, match="only an admin may") as refusal:
        b.ask(action)
    assert refusal.value.status == 403
    assert b.yard.is_up()


def test_everybody_sees_the_queue_and_nobody_sees_secrets(a: Desk, b: Desk) -> None:
    given = {**a.user.environment(), "TOKEN": SECRET, "token.odd": SECRET}
    script = 'printf "%s\\n" "$TOKEN" on; sleep 1000'
    id = a.submit("sh", "-c", script, environment=given, name="shown")
    a.yard.await_output(id, b"on\n")
    assert a.ask(lambda client: client.environment(id))["TOKEN"] == SECRET
    assert SECRET in a.ask(lambda client: client.log(id).data.decode())
    routes = [f"/jobs/{id}", f"/jobs/{id}/explain", "/jobs?all=true", "/jobs?columns=true", "/events?limit=10000"]
    routes += ["/history", "/gpus", "/status", "/policy"]

    def read() -> list[tuple[int, str]]:
        answers = [request(b.yard.client.socket, "GET", f"/api/v1{route}") for route in routes]
        return [(answer.status, answer.body.decode()) for answer in answers]

    for route, (status, body) in zip(routes, b.user.do(read), strict=True):
        assert status == 200, route
        assert SECRET not in body, route
        assert not re.search(r'"environment"', body), route
    assert "shown" in b.cli("ps").out
    lines = [read_proc(int(name), "cmdline") or b"" for name in os.listdir("/proc") if name.isdigit()]
    assert not any(SECRET.encode() in line for line in lines)


def test_the_command_line_says_who_may(a: Desk, b: Desk) -> None:
    a.yard("cancel", "999")  # loads what a user could not load
    a.yard("logs", "999")
    id = a.submit(*ENDLESS)
    for command in ("cancel", "logs"):
        done = b.cli(command, id)
        assert (done.code, done.out) == (1, "")
        assert f"gpuyard: error: only {a.user.name} may " in done.err
    assert a.cli("cancel", id, "--grace", "0").code == 0
    assert a.yard.wait(id)["state"] == "cancelled"


def test_members_of_the_admin_group_may(a: Desk, b: Desk, groups: tuple[str, str], place: Path) -> None:
    id = a.submit(*ENDLESS, priority=5)
    before = a.yard.client.policy()["policy"]
    subprocess.run(["usermod", "-aG", groups[1], b.user.name], check=True)
    try:
        until(lambda: _may(b, lambda client: client.set_policy("sjf")), "bob becoming an admin")
        b.ask(lambda client: client.set_policy(before))
        assert b.ask(lambda client: client.cancel(id, grace=0))["id"] == id
        assert b.submit("true", priority=6)
        code = place / "code.py"
        code.write_text(f"open({str(place / 'loaded')!r}, 'w')\ndef mine(submit): return submit\n")
        with pytest.raises(Refused, match="only root may set a policy from a file"):
            b.ask(lambda client: client.set_policy(f"{code}:mine"))
        assert not (place / "loaded").exists()
    finally:
        subprocess.run(["gpasswd", "-d", b.user.name, groups[1]], check=True, capture_output=True)
    until(lambda: not _may(b, lambda client: client.set_policy(before)), "bob being an admin no longer")


def _may(desk: Desk, action: Callable[[Client], Any]) -> bool:
    try:
        desk.ask(action)
    except Refused:
        return False
    return True


def test_the_highest_priority_is_for_admins(a: Desk) -> None:
    with pytest.raises(Refused, match="priority 6 is more than you may ask for; 5 is the highest") as refusal:
        a.submit("true", priority=6)
    assert refusal.value.status == 422
    assert a.yard.client.submit(["true"], priority=6)


# What an attacker might try


def test_files_are_for_whom_they_should_be(a: Desk, b: Desk) -> None:
    id = a.submit("sh", "-c", "echo on; sleep 1000")
    a.yard.await_output(id, b"on\n")
    data = a.yard.data_dir
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in data.iterdir()}
    assert stat.S_IMODE(data.stat().st_mode) == 0o711
    assert (modes.pop("gpuyard.sock"), modes.pop("work"), modes.pop("jobs")) == (0o666, 0o711, 0o700)
    assert modes.pop("daemon.log") & 0o022 == 0  # made by the test, not by gpuyard up
    assert set(modes.values()) == {0o600}, modes
    ours = (data, *data.iterdir(), *data.glob("jobs/*"), *data.glob("jobs/*/*"), *data.glob("jobs/*/*/*"))
    assert all(path.lstat().st_uid == 0 for path in ours)
    work = data / "work" / id
    for path in (work, work / "checkpoint"):
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (a.user.uid, a.user.gid, 0o700)
    tries = f"cat {data}/gpuyard.db {data}/jobs/{id}/1/*; ls {data}; ls {data}/jobs; ls {data}/work; ls {work}"
    assert a.run("sh", "-c", f"({tries}) 2>/dev/null") == "checkpoint\n"
    assert b.run("sh", "-c", f"({tries}) 2>/dev/null; true") == ""


def test_a_users_variables_never_steer_what_runs_as_root(a: Desk, place: Path) -> None:
    traces = place / "traces"
    traces.mkdir()
    traces.chmod(0o777)  # without the sticky bit the kernel does not protect files in it
    script = a.user.home / "rc"
    script.write_text(f"id -u >>{traces}/sourced\n")
    script.chmod(0o644)
    given = {
        **a.user.environment(), "LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": f"{traces}/ld", "ENV": str(script),
        "BASH_ENV": str(script), "LD_PRELOAD": f"{a.user.home}/none.so", "PS4": f"$(id -u >>{traces}/sourced)",
        "SHELLOPTS": "xtrace", "PATH": f"{a.user.home}:{PATH}", "HOME": "/nowhere",
    }  # fmt: skip
    (a.user.home / "printf").write_text(f"#!/bin/sh\nid -u >>{traces}/sourced\n")
    (a.user.home / "printf").chmod(0o755)
    id = a.submit("sh", "-c", "echo on; exec sleep 1000", environment=given)
    a.yard.await_output(id, b"on\n")
    job = _session(a.yard, id)
    wrapper = min(job)
    names = {entry.partition(b"=")[0] for entry in (read_proc(wrapper, "environ") or b"").split(b"\0") if entry}
    assert names
    assert all(re.fullmatch(rb"GPUYARD_RUN|gpuyard_[eo]\d+", name) for name in names), names
    assert os.readlink(f"/proc/{wrapper}/cwd") == "/"
    a.ask(lambda client: client.cancel(id, grace=0))
    a.yard.wait(id)
    left = list(traces.iterdir())
    assert {path.stat().st_uid for path in left} == {a.user.uid}
    assert any(path.name.startswith("ld.") for path in left), "the job itself did obey them"


def _session(yard: Yard, id: str) -> list[int]:
    """The processes of a running job, wrapper included."""
    pid = int((yard.data_dir / "jobs" / id / "1" / "pid").read_text().split()[0])
    found = [look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [process.pid for process in found if process and process.session == pid]


def test_a_job_cannot_end_its_wrapper(a: Desk) -> None:
    script = "kill -9 $PPID; for p in $(ps -o pid= -s $PPID 2>/dev/null); do [ $p = $$ ] || kill -9 $p; done; exit 3"
    job = a.yard.wait(a.submit("sh", "-c", script))
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 3, "exit code 3")


def test_a_borrowed_mark_gets_nobody_killed(a: Desk, b: Desk) -> None:
    """Bob's process says that it is of Ann's job, which is cancelled."""
    id = a.submit("sh", "-c", "echo on; exec sleep 1000")
    a.yard.await_output(id, b"on\n")
    mark = {MARK: f"{a.yard.data_dir.resolve()}/jobs/{id}/1"}
    borrower = subprocess.Popen(["sleep", "999"], env=mark, user=b.user.uid, group=b.user.gid)
    try:
        a.ask(lambda client: client.cancel(id, grace=0))
        assert a.yard.wait(id)["state"] == "cancelled"
        assert borrower.poll() is None
    finally:
        borrower.kill()
        borrower.wait()


def test_a_borrowed_mark_keeps_nobody_from_ending(a: Desk, b: Desk) -> None:
    """The same, where Bob's process is the daemon's child, and Ann's job ends by itself."""
    id = a.submit("sh", "-c", "echo on; while [ ! -e go ]; do sleep 0.02; done")
    a.yard.await_output(id, b"on\n")
    mark = f"{MARK}={a.yard.data_dir.resolve()}/jobs/{id}/1"
    borrower = int(b.run("sh", "-c", BORROW.format(mark)))
    try:
        a.user.do(lambda: Path("go").touch())
        job = a.yard.wait(id)
        assert (job["state"], job["message"]) == ("succeeded", None)
        assert (found := look(borrower)) is not None
        assert not found.dead
    finally:
        (a.user.home / "go").unlink()
        with contextlib.suppress(ProcessLookupError):
            os.kill(borrower, signal.SIGKILL)


BORROW = """
env {} setsid sh -c 'echo $$; touch begun; exec sleep 999' &
while [ ! -e begun ]; do sleep 0.02; done
rm begun
"""


def test_who_is_gone_before_the_answer_gets_no_limits_of_ours(a: Desk) -> None:
    """The limits of a job are read from the process that connected; another may hold its connection."""
    body = json.dumps({"command": ["true"], "directory": "/"}).encode()
    head = f"POST /api/v1/jobs HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.socket(socket.AF_UNIX) as connection:
        # the fork connects, and ends; this process goes on with the connection
        a.user.do(lambda: connection.connect(a.yard.client.socket))
        connection.sendall(head + body)
        answer = connection.makefile("rb").read()
    assert b"422" in answer.splitlines()[0]
    assert b"must live until it is answered" in answer


def test_a_request_that_never_ends_is_hung_up_on(a: Desk) -> None:
    def send() -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(a.yard.client.socket)
            connection.settimeout(PATIENCE)
            connection.sendall(b"GET /api/v1/status HTTP/1.1\r\nX: ")
            for sent in range(10_000):
                try:
                    connection.sendall(b"x" * 1000)
                except (BrokenPipeError, ConnectionResetError):
                    return sent
        return -1

    assert 100 < a.user.do(send) < 5000


def test_nobody_can_take_all_connections(a: Desk, b: Desk) -> None:
    files = Path("/proc", str(a.yard.client.status()["pid"]), "fd")
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(400)]

        def take() -> None:
            for connection in mine:
                connection.connect(a.yard.client.socket)

        a.user.do(take)
        mine[-1].settimeout(PATIENCE)
        assert mine[-1].recv(1) == b""  # hung up on
        assert b.run("echo", "on") == "on\n"
        assert len(list(files.iterdir())) < 350
    until(lambda: len(list(files.iterdir())) < 100, "the end of the connections")
    assert a.run("echo", "on") == "on\n"


# The other ways to run it


def test_a_daemon_of_root_for_root_alone(place: Path, ann: User) -> None:
    folder = place / "alone"
    folder.mkdir()
    with opened(folder) as yard:
        yard.environment["GPUYARD_SINGLE_USER"] = "true"
        yard.serve()
        assert stat.S_IMODE((yard.data_dir / "gpuyard.sock").lstat().st_mode) == 0o600
        assert stat.S_IMODE(yard.data_dir.stat().st_mode) == 0o700

        def refused() -> str:
            with pytest.raises(GpuyardError) as refusal:
                yard.client.status()
            return str(refusal.value)

        assert "you may not connect" in ann.do(refused)
        yard.data_dir.chmod(0o711)
        (yard.data_dir / "gpuyard.sock").chmod(0o666)  # the kernel's word counts, not the modes alone
        assert ann.do(refused) == "this daemon serves root only; start one of your own"


def test_a_daemon_of_root_refuses_a_place_that_others_can_change(place: Path, ann: User) -> None:
    for folder, culprit in ((ann.home / "data", ann.home), (place / "open", place / "open")):
        folder.mkdir()
        if culprit == folder:
            folder.chmod(0o777)
        with opened_in(folder) as yard:
            done = yard.process("serve", "--simulate-gpus", "1")
        assert done.code == 2
        assert f"others than root may change {culprit}" in done.err


@contextlib.contextmanager
def opened_in(folder: Path) -> Iterator[Yard]:
    """A yard on a directory that is there already."""
    yield Yard(folder, folder)
