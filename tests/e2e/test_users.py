"""A root daemon and real users: jobs are theirs, and nobody can do to others what they should not."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.users import PATH, Desk, User, made
from tests.yard import Yard, opened, until

from gpuyard import config
from gpuyard.client import connection
from gpuyard.client.client import Client
from gpuyard.client.transport import Refused, Request, UnixTransport, send
from gpuyard.engines.local.processes import MARK, read_proc
from gpuyard.errors import GpuyardError, UserError
from gpuyard.server.security import prepare_data_dir

ENDLESS = ("sleep", "1000")
SECRET = "s3cret-that-nobody-else-may-see"


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


def test_a_job_of_root_keeps_what_root_submitted(shared_yard: Yard) -> None:
    given = {"PATH": PATH, "HOME": "/elsewhere"}
    job = shared_yard.client.submit(["sh", "-c", "id -u; echo $HOME; umask"], environment=given, directory="/")
    assert shared_yard.wait(job)["state"] == "succeeded"
    assert shared_yard.client.log(job).data.decode().split() == ["0", "/elsewhere", f"{_umask():04o}"]


def _umask() -> int:
    former = os.umask(0o077)
    os.umask(former)
    return former


def test_a_user_without_a_name(shared_yard: Yard, ann: User) -> None:
    nameless = User("54321", 54321, 54321, frozenset(), Path("/"))
    desk = Desk(shared_yard, nameless)
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
        "GPUYARD_CHECKPOINT_DIR": f"{work}/checkpoint", "GPUYARD_PROGRESS": f"{work}/progress",
            MARK: f"{a.yard.data_dir.resolve()}/jobs/{id}/1",
    }  # fmt: skip


def test_an_environment_that_is_too_large_is_refused_with_a_sentence(a: Desk) -> None:
    with pytest.raises(Refused, match="environment: "):
        a.submit("true", environment={"LARGE": "x" * 2**20})
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


def test_a_user_who_is_gone(shared_yard: Yard, place: Path) -> None:
    with made(place, f"gycarl{os.getpid()}") as carl:
        id = Desk(shared_yard, carl).submit("true", hold=True)
        subprocess.run(["userdel", carl.name], check=True)
        shared_yard.client.release(id)
        job = shared_yard.wait(id)
    assert (job["state"], job["reason"]) == ("failed", f"there is no user {carl.name} on this machine any more")


def test_scripts_and_output_are_the_users_own(a: Desk, b: Desk) -> None:
    text = '#!/bin/bash -l\nid -u; echo "$@"; srun echo step; stat -c \'%u %a\' "$0"\n'
    job = a.submit("mine.sh", "an argument", script=text, slurm=True, output="%j.out")
    assert a.yard.wait(job)["state"] == "succeeded"
    path = a.user.home / f"{job}.out"
    assert path.read_text().splitlines() == [str(a.user.uid), "an argument", "step", f"{a.user.uid} 700"]
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (a.user.uid, 0o640)
    with pytest.raises(AssertionError, match=r"cannot be written: you may not make files in|is not yours to write"):
        b.submit("echo", "mine now", output=str(path))

    def unchecked(client: Client) -> str:  # in a process of its own
        connection._check_folder = lambda *_: None
        return str(client.submit(["echo", "mine now"], directory="/", output=str(path)))

    elsewhere = a.yard.wait(b.ask(unchecked))
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


def test_what_a_job_is_granted_is_for_its_owner(a: Desk, b: Desk) -> None:
    text = 'test -w "${GPUYARD_CONTROL#unix:}" && stat -c "%U %a" "$GPUYARD_CHECKPOINT_DIR" && sleep 1000'
    id = a.submit("sh", "-c", text, adaptive=True)
    a.yard.await_output(id, f"{a.user.name} 700".encode())
    asked: list[Callable[[Client], Any]] = [
        lambda client: client.grant(id),
        lambda client: client.report(id, gain_per_second=0.0, decision="nothing", reason="none"),
        lambda client: client.give_back_grant(id),
    ]
    for ask in asked:
        with pytest.raises(Refused) as refusal:
            b.ask(ask)
        assert refusal.value.status == 403
        assert a.ask(lambda client: len(ask(client))) > 5  # noqa: B023
    assert b.ask(lambda client: len(client.adaptation(id)["decisions"])) == 1


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
        answers = [send(UnixTransport(b.yard.client.socket), Request("GET", f"/api/v1{route}")) for route in routes]
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
    with pytest.raises(Refused, match="priority 6 is more than users may ask for here, which is 5") as refusal:
        a.submit("true", priority=6)
    assert refusal.value.status == 422
    assert a.yard.client.submit(["true"], priority=6)


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
    theirs, everybodys = ann.home / "data", place / "open"
    theirs.mkdir()
    with opened_in(theirs) as yard:
        done = yard.process("serve", "--simulate-gpus", "1")
    assert done.code == 2
    assert f"others than root may change {ann.home}; choose another place" in done.err
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    with pytest.raises(UserError, match=f"others than root may change {everybodys}"):
        prepare_data_dir(everybodys, shared=True)
    (place / "link").symlink_to(theirs)
    with pytest.raises(UserError, match=f"others than root may change {ann.home}"):
        prepare_data_dir(place / "link", shared=True)


@contextlib.contextmanager
def opened_in(folder: Path) -> Iterator[Yard]:
    """A yard on a directory that is there already."""
    yield Yard(folder, folder)


def test_a_daemon_of_a_user_serves_that_user(place: Path, ann: User, bob: User) -> None:
    """Run as a user it needs no root, and knows nobody else; a job has the limits of whoever submits it."""
    folder = ann.home / "yard"
    ann.do(folder.mkdir)
    with opened_in(folder) as yard:
        settings = config.settings({"data_dir": str(folder), "simulate_gpus": "1"}, {"HOME": str(ann.home)})
        for name in LOADED:
            importlib.import_module(name)
        said = place / "said"
        file = os.open(said, os.O_WRONLY | os.O_CREAT)
        daemon = os.fork()
        if daemon == 0:
            ann._become(lambda: _serve(settings), {}, file)
        os.close(file)
        try:
            until(lambda: _answers(yard) or said.read_text(), "an answer of ann's daemon")
            assert said.read_text() == ""
            assert stat.S_IMODE((folder / "gpuyard.sock").lstat().st_mode) == 0o600
            desk = Desk(yard, ann)
            limits = {resource.RLIMIT_NOFILE: (200, 300)}
            printed = desk.run("sh", "-c", "id -u; ulimit -n; echo $HOME; ls -d $GPUYARD_CHECKPOINT_DIR", limits=limits)
            uid, files, home, checkpoints = printed.split()
            assert (int(uid), files, home) == (ann.uid, "200", "/elsewhere")
            assert checkpoints.startswith(f"{folder}/work/")
            by_root = yard.wait(yard.client.submit(["touch", "by-root"], directory=str(ann.home), environment={}))
            assert (by_root["user"], (ann.home / "by-root").stat().st_uid) == ("root", ann.uid)
            assert stat.S_IMODE((folder / "work").stat().st_mode) == 0o700
            assert bob.do(lambda: not _answers(yard))
        finally:
            os.kill(daemon, signal.SIGTERM)
            os.waitpid(daemon, 0)


LOADED = (
    "gpuyard.server.serve", "uvicorn.loops.auto", "uvicorn.loops.asyncio", "uvicorn.lifespan.off",
    "concurrent.futures.thread", "encodings.ascii", "encodings.latin_1", "encodings.idna",
)  # fmt: skip
"""What a daemon loads later than at its start, when Ann's Python cannot."""


def _serve(settings: config.Settings) -> None:
    os.setsid()
    importlib.import_module("gpuyard.server.serve").serve(settings)


def _answers(yard: Yard) -> bool:
    try:
        yard.client.status()
    except GpuyardError:
        return False
    return True
