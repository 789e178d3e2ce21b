"""Being told of jobs: a real daemon, a real mail server, a real web server."""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.post import Hook, Post
from tests.users import Desk
from tests.yard import Yard, opened, until

from gpuyard.client.transport import Invalid, Refused

ENDLESS = ("sleep", "1000")
SECRET = "s3cret-t0ken"
OUTPUT = r'for i in $(seq 30); do echo "line $i"; done; printf "10%%\r90%%\r\033[31mred\033[0m alert\n"; exit 3'


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    found = Post()
    found.open()
    yield found
    found.shut()


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with Hook().running() as found:
        yield found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, post: Post) -> Iterator[Yard]:
    """A yard that tries again quickly, and knows a mail server."""
    with opened(tmp_path_factory.mktemp("told")) as found:
        found.environment["GPUYARD_NOTIFY_RETRY"] = "0.3s"
        found.environment["GPUYARD_MAIL"] = f"mailto://127.0.0.1:{post.port}?from=gpuyard@box.example"
        found.serve()
        yield found


@pytest.fixture
def yard(told: Yard, post: Post) -> Iterator[Yard]:
    """The same, with nobody to be told."""
    yield told
    told.clear()
    for one in told.client.subscriptions():
        told.client.unsubscribe(one["id"])
    post.mails.clear()


def _await_delivery(yard: Yard, job: str) -> None:
    until(lambda: all(one["state"] == "delivered" for one in yard.client.notifications(job=job)), "a delivery")


def _await_failure(yard: Yard, job: str) -> None:
    until(lambda: yard.client.notifications(job=job, failed=True), "a failure to send")


def _subscribe(desk: Desk, url: str, name: str) -> None:
    desk.ask(lambda client: client.subscribe(url, name=name))


# What arrives


def test_mail_tells_exit_code_duration_and_the_last_lines(yard: Yard, post: Post) -> None:
    done = yard("notify", "add", post.url, "--name", "box", "--on", "all")
    assert (done.code, done.out) == (0, "box\n"), done
    job = yard.submit("--name", "train", "--", "sh", "-c", OUTPUT)
    mail = post.one("failed")
    assert mail["Subject"].startswith(f"gpuyard: job {job} (train) failed with exit code 3 after ")
    assert (mail["From"], mail["X-To"], mail.get_content_type()) == (
        "gpuyard@box.example",
        "ann@example.org",
        "text/plain",
    )
    text = mail.get_content().replace("\r\n", "\n")
    rows = dict(line.split(":", 1) for line in text.split("\n") if line[:1].isupper() and ":" in line)
    assert (rows["State"].strip(), rows["Exit code"].strip()) == ("failed", "3")
    assert rows["Ran for"].strip().endswith("s")
    assert rows["Command"].strip().startswith("sh -c")
    assert "    line 30\n    red alert\n" in text.replace("90%red", "red")
    assert "line 12\n" in text
    assert "line 11\n" not in text
    assert "\x1b" not in text
    started = post.one(f"job {job} (train) started on GPU")
    assert "Exit code" not in started.get_content()
    until(lambda: all(one["state"] == "delivered" for one in yard.client.notifications(job=job)))
    assert [one["event"] for one in yard.client.notifications(job=job)] == ["failure", "start"]


def test_a_webhook_gets_fields_and_people_write_their_own_texts(yard: Yard, hook: Hook) -> None:
    url = f"json://user:{SECRET}@{hook.address}/{SECRET}?:team=a"
    yard.client.subscribe(url, name="hook", title="{name} is {state}", body="{exit_code} {{on}} {gpus} {id}")
    job = yard.submit("--name", "own", "--", "sh", "-c", "sleep 0.1")
    [got] = until(lambda: hook.of(job))
    assert (got["title"], got["message"], got["type"]) == ("own is succeeded", f"0 {{on}} 0 {job}", "success")
    assert (got["state"], got["exit_code"], got["event"], got["team"]) == ("succeeded", "0", "finish", "a")
    assert 0.1 <= float(got["duration"]) < 60
    assert got["path"] == f"/{SECRET}"


def test_a_test_is_sent_at_once_and_tells_how_it_went(yard: Yard, post: Post) -> None:
    yard("notify", "add", "ann@example.org")
    assert yard.client.subscriptions()[0]["target"] == "ann@example.org"
    done = yard("notify", "test")
    assert (done.code, done.err) == (0, "mail (ann@example.org): sent\n")
    assert post.one("gpuyard: a test")["X-To"] == "ann@example.org"
    yard("notify", "add", f"json://127.0.0.1:1/{SECRET}", "--name", "nobody")
    done = yard("notify", "test", "nobody")
    assert (done.code, done.err) == (1, "nobody (json://127.0.0.1:1): failed: Connection refused\n")


# What goes wrong


def test_a_mail_server_that_is_down_harms_nobody(yard: Yard, post: Post) -> None:
    yard.client.subscribe(post.url, name="box")
    post.shut()
    try:
        job = yard.submit("--", "sh", "-c", "exit 4")
        assert (yard.wait(job)["state"], yard.wait(job)["exit_code"]) == ("failed", 4)
        _await_failure(yard, job)
        [row] = yard.json("notify", "log", "--failed", "--job", job)
        assert (row["state"], row["error"], row["event"]) == ("waiting", "Connection refused", "failure")
        assert row["next_at"] > row["at"]
        shown = yard("show", job).out
        assert f"failure to mailto://127.0.0.1:{post.port} to " in shown
        assert " failed: Connection refused; tried " in shown
        assert "again at" in yard("notify", "log").out
        ill = [one for one in yard.json("doctor") if one["check"] == "notifications"]
        assert [one["state"] for one in ill] == ["warn"]
        assert "Connection refused" in ill[0]["found"]
    finally:
        post.open()
    assert "exit code 4" in post.one(f"job {job} ")["Subject"]
    _await_delivery(yard, job)
    assert len(post.titled(f"job {job} ")) == 1
    assert yard.client.notifications(failed=True, job=job) == []


def test_what_ends_while_the_daemon_is_dead_is_told_once_it_is_back(yard: Yard, post: Post, tmp_path: Path) -> None:
    yard.client.subscribe(post.url, name="box")
    post.shut()
    earlier = yard.submit("--", "true")
    later = yard.submit("--", "sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done")
    yard.wait(earlier)
    until(lambda: yard.client.job(later)["state"] == "running")
    yard.end(signal.SIGKILL)
    (tmp_path / "go").touch()
    post.open()
    yard.serve()
    for job in (earlier, later):
        assert "succeeded" in post.one(f"job {job} ")["Subject"]
        _await_delivery(yard, job)
        assert len(post.titled(f"job {job} ")) == 1


def test_a_server_that_hangs_delays_neither_others_nor_the_end(yard: Yard) -> None:
    with Hook().running() as hook:
        yard.client.subscribe(f"json://{hook.address}/hang?rto=600", name="hang")
        yard.client.subscribe(f"json://{hook.address}/good", name="good")
        first = yard.submit("--", "true")
        until(lambda: hook.hanging and hook.of(first), "the first post, beside one that hangs")
        second = yard.submit("--", "true")
        until(lambda: hook.of(second), "the next one")
        states = {one["subscription"]: one["state"] for one in yard.client.notifications(job=first)}
        assert states["hang"] == "waiting"
        yard.end()
        assert not hook.released.is_set()
        assert yard.daemon is not None
        assert yard.daemon.returncode == 0
        yard.serve()
        until(lambda: hook.hanging > 1, "another attempt, by the next daemon")


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"url": "nothing://x/y"}, "nothing://*** cannot be used: nothing of this kind is known"),
        ({"url": f"mailtos://ann:{SECRET}@x?from=@"}, "cannot be used: Invalid ~From~ email"),
        ({"url": "syslog://local1"}, "syslog:// stays on the daemon's machine"),
        ({"url": "somewhere"}, "this is not where a notification can go; write a URL such as"),
        ({"url": "json://x", "events": ["finsh"]}, "there is no event 'finsh'; did you mean 'finish'?"),
        ({"url": "json://x", "events": ["tasks"]}, "say of what to tell"),
        ({"url": "json://x", "title": "{nme}"}, "a template knows no {nme}; did you mean 'name'?"),
        ({"url": "json://x", "body": "{name.__class__}"}, "a template knows no {name.__class__}"),
        ({"url": "json://x", "name": "12"}, "'12' cannot be the name of a subscription"),
    ],
)
def test_a_mistake_is_told_at_once(yard: Yard, wish: dict[str, str], sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        yard.client.subscribe(**wish)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)
    assert yard.client.subscriptions() == []


def test_secrets_are_seen_nowhere(yard: Yard, hook: Hook) -> None:
    url = f"json://{SECRET}:{SECRET}@127.0.0.1:1/{SECRET}?+X={SECRET}"
    yard.client.subscribe(url, name="secret")
    one = yard.submit("--notify", "secret", "--", "true")
    two = yard.submit("--notify", url.replace("json:", "form:"), "--", "true")
    for job in (one, two):
        _await_failure(yard, job)
    assert yard.client.job(two)["notify"] == ["url"]
    shown = [
        yard(*words).out + yard(*words).err
        for words in (
            ("show", one), ("show", two, "--json"), ("notify", "list", "--json"), ("notify", "log", "--json"),
            ("doctor",), ("config", "show", "--json"),
        )
    ]  # fmt: skip
    shown += [json.dumps(yard.client.events(0, limit=10_000)), (yard.data_dir / "daemon.log").read_text()]
    shown += [path.read_bytes().decode("latin-1") for path in yard.data_dir.glob("gpuyard.db*")]
    assert all(SECRET not in text for text in shown)
    assert "form://***@127.0.0.1:1" in shown[1]
    assert (yard.data_dir / "notices.db").stat().st_mode & 0o777 == 0o600


# Which of it


def test_an_array_is_told_of_once_and_task_by_task_if_asked(yard: Yard, hook: Hook) -> None:
    yard.client.subscribe(f"json://{hook.address}/", name="hook", events=["start", "finish", "failure"])
    array = yard.submit(
        "--array", "0-4", "--", "sh", "-c", 'echo "task $GPUYARD_ARRAY_TASK_ID"; [ $GPUYARD_ARRAY_TASK_ID != 3 ]'
    )
    each = yard.submit("--array", "0-1", "--notify-on", "finish,tasks", "--", "true")
    posts = until(lambda: len(hook.of(array)) == 2 and hook.of(array))
    assert [post["event"] for post in posts] == ["start", "failure"]
    assert posts[1]["title"].endswith("ended: 4 succeeded, 1 failed")
    assert (posts[1]["exit_code"], posts[1]["reason"]) == ("1", f"task {array}_3: exit code 1")
    assert posts[1]["message"].endswith("\n    task 3")
    until(lambda: hook.of(f"{each}_0") and hook.of(f"{each}_1"))
    yard.submit("--name", "last", "--", "true")
    until(lambda: [post for post in hook.posts if post.get("name") == "last"])
    assert [post["job"] for post in hook.posts if str(post.get("job")).startswith((f"{array}_", each))] in (
        [f"{each}_0", f"{each}_1"],
        [f"{each}_1", f"{each}_0"],
    )


def test_a_long_wait_is_told_once_with_its_reason(yard: Yard, hook: Hook) -> None:
    done = yard("notify", "add", f"json://{hook.address}/", "--name", "hook", "--on", "finish", "--long-wait", "0.5s")
    assert done.code == 0, done
    yard.submit("--gpus", "4", "--notify", "none", "--", *ENDLESS)
    job = yard.submit("--gpus", "2", "--", *ENDLESS)
    [post] = until(lambda: hook.of(job))
    assert (post["event"], post["state"]) == ("long-wait", "queued")
    assert "still waits after" in post["title"]
    assert "needs 2 GPUs, 0 idle" in post["reason"]
    other = yard.submit("--gpus", "3", "--", *ENDLESS)
    until(lambda: hook.of(other))
    assert len(hook.of(job)) == 1


def test_only_the_last_of_several_attempts_is_an_end(yard: Yard, hook: Hook) -> None:
    yard.client.subscribe(f"json://{hook.address}/", name="hook", events=["start", "failure"])
    job = yard.submit("--retries", "2", "--retry-delay", "0s", "--", "false")
    yard.wait(job)
    until(lambda: len(hook.of(job)) == 2)
    last = yard.submit("--", "false")
    until(lambda: len(hook.of(last)) == 2)
    assert [post["event"] for post in hook.of(job)] == ["start", "failure"]


def test_a_job_says_who_is_told_of_it(yard: Yard, hook: Hook) -> None:
    for name in ("one", "two"):
        yard.client.subscribe(f"json://{hook.address}/{name}", name=name)
    only = yard.submit("--notify", "two", "--", "true")
    url = yard.submit("--notify", f"json://{hook.address}/url", "--notify-on", "start", "--", "true")
    none = yard.submit("--notify", "none", "--", "false")
    mine = yard.submit("--", *ENDLESS)
    until(lambda: yard.client.job(mine)["state"] == "running")
    yard("cancel", mine)
    changed = yard.submit("--hold", "--", "true")
    assert yard("edit", changed, "--notify", "one").code == 0
    yard("release", changed)
    both = yard.submit("--", "true")
    until(lambda: len(hook.of(both)) == 2 and hook.of(only) and hook.of(url) and hook.of(changed))
    assert [post["path"] for post in hook.of(only)] == ["/two"]
    assert [(post["path"], post["event"]) for post in hook.of(url)] == [("/url", "start")]
    assert [post["path"] for post in hook.of(changed)] == ["/one"]
    assert hook.of(none) == hook.of(mine) == []
    done = yard("submit", "--notify", "tow", "--", "true")
    assert (done.code, "you have no subscription 'tow'; did you mean 'two'?" in done.err) == (2, True)


def test_a_script_for_slurm_says_whom_to_mail(yard: Yard, post: Post, daemon: Yard) -> None:
    script = yard.cwd / "mail.sh"
    script.write_text("#!/bin/sh\n#SBATCH --mail-type=END --mail-user=bob@example.org\nexit 1\n")
    job = yard.submit(script)
    mail = post.one(f"job {job} ")
    assert (mail["X-To"], "failed" in mail["Subject"]) == ("bob@example.org", True)
    done = daemon("submit", script)
    assert done.code == 0
    assert "warning: no mail is sent to bob@example.org: the daemon knows no mail server (setting mail)" in done.err


def test_jobs_of_a_file_say_it_too(yard: Yard, hook: Hook) -> None:
    (yard.cwd / "jobs.yaml").write_text(
        f"- command: 'true'\n  notify: [json://{hook.address}/file]\n  notify-on: [start, finish]\n"
    )
    job = yard.submit("--file", "jobs.yaml")
    until(lambda: len(hook.of(job)) == 2)
    assert [post["path"] for post in hook.of(job)] == ["/file", "/file"]


# Whose it is


def test_on_a_shared_machine_each_is_told_as_themselves(a: Desk, b: Desk, hook: Hook) -> None:
    for module in ("jobs.notify", "terminal.text_table"):  # Python may lie where users cannot go
        importlib.import_module(f"gpuyard.cli.{module}")
    for desk, path in ((a, "ann"), (b, "bob")):
        _subscribe(desk, f"json://{SECRET}:x@{hook.address}/{path}", "mine")
    _subscribe(a, f"json://{SECRET}:x@127.0.0.1:1/", "broken")
    job = a.submit(*ENDLESS)
    until(lambda: a.yard.client.job(job)["state"] == "running")
    a.yard.client.cancel(job)  # by root
    [post] = until(lambda: [post for post in hook.of(job) if post["path"] == "/ann"])  # others have such an id, too
    assert post["sender"] == a.user.uid
    assert "was cancelled by root" in post["title"]
    assert [one["target"] for one in b.ask(lambda client: client.subscriptions())] == [f"json://***@{hook.address}"]
    with pytest.raises(Refused, match="you have no subscription 'broken'"):
        b.ask(lambda client: client.unsubscribe("broken"))
    with pytest.raises(Refused, match="you have no subscription"):
        b.submit("true", notify=["broken"])
    with pytest.raises(Refused, match="only an admin may see what others are told"):
        b.ask(lambda client: client.notifications(all=True))
    assert b.ask(lambda client: client.notifications(job=job)) == []
    until(lambda: a.ask(lambda client: client.notifications(job=job, failed=True)))
    [seen] = a.yard.client.notifications(all=True, failed=True, job=job)
    assert (seen["user"], seen["error"], seen["target"]) == (a.user.name, "Connection refused", None)
    assert a.cli("notify", "list").out.count("***") == 2
    for desk in (a, b):
        desk.ask(lambda client: [client.unsubscribe(one["id"]) for one in client.subscriptions()])


def test_notifications_that_cannot_be_had_are_told(own_yard: Yard) -> None:
    own_yard.serve()
    own_yard.end()
    for ending in ("-wal", "-shm"):
        (own_yard.data_dir / f"notices.db{ending}").unlink(missing_ok=True)
    (own_yard.data_dir / "notices.db").write_bytes(b"garbage" * 1000)
    own_yard.serve()
    (told,) = [one for one in own_yard.client.status()["threads"] if one["state"] != "ok"]
    assert told == {"name": "notices", "state": "dead", "problem": "file is not a database"}
    found = {one["check"]: one for one in json.loads(own_yard("doctor", "--json").out)}
    assert found["threads"]["state"] == "warn"
    assert found["notifications"]["found"] == "there are no notifications now: file is not a database"
