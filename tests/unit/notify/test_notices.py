"""Notifications: what may be shown of URLs, what texts say, who is told of what, and what is kept."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from tests.yard import PATIENCE, until

from gpuyard.config import Settings
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.notify import delivery
from gpuyard.notify.messages import (
    Sources,
    Trigger,
    body_of,
    check_template,
    end_of,
    fill,
    last_lines,
    long_waits,
    message_of,
    title_of,
)
from gpuyard.notify.outbox import MOST_WAITING, Delivery, NoSuchSubscription, Outbox, Subscription
from gpuyard.notify.sender import MessageSender, OutgoingMessage, ResultCallback
from gpuyard.notify.service import Dispatcher, NotificationService, TooManyTrials, Trials, recipients
from gpuyard.notify.subscriptions import EVENTS, check_events, check_url, mask, scrub
from gpuyard.server.auth.hosts import is_forwarded

# URLs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "mailtos://ann:geheim@smtp.example.org?to=ann@example.org",
            "mailtos://***@smtp.example.org to ann@example.org",
        ),
        ("mailto://box:2525?from=a@b.de", "mailto://box:2525"),
        ("jsons://box/secret/path?token=x", "jsons://box"),
        ("slack://TokenA/TokenB/TokenC/#channel", "slack://***"),
        ("dingtalk://secret@token", "dingtalk://***"),
        ("https://hooks.slack.com/services/A/B/C", "https://hooks.slack.com"),
        ("mail://ann@example.org", "ann@example.org"),
        ("json://[broken/x", "json://***"),
    ],
)
def test_of_a_url_only_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert mask(url) == shown


def test_nothing_secret_is_left_in_what_a_server_says() -> None:
    url = "json://ann:geheim@box.example/hooks/T0KEN?+Key=sch%2Fluessel"
    said = "POST http://box.example/hooks/T0KEN (ann, geheim, sch/luessel): no route to box.example"
    found = scrub(said, url)
    assert "no route to box.example" in found
    assert not any(secret in found for secret in ("geheim", "T0KEN", "ann", "luessel"))


def test_an_address_is_enough_where_a_mail_server_is_known() -> None:
    assert check_url(" ann@example.org ", mail=True) == check_url("mailto:ann@example.org", mail=True)
    with pytest.raises(UserError, match="this daemon knows no mail server"):
        check_url("ann@example.org", mail=False)
    with pytest.raises(UserError, match="write a bare address"):
        check_url("mail://ann@example.org", mail=True)
    with pytest.raises(UserError, match="not where a notification can go"):
        check_url("json://x\n", mail=True) and check_url("json://\x07", mail=True)


@pytest.mark.parametrize("scheme", ["dbus", "syslog", "GNOME", "windows", "file"])
def test_what_stays_on_the_machine_is_refused(scheme: str) -> None:
    with pytest.raises(UserError, match="stays on the daemon's machine"):
        check_url(f"{scheme}://x", mail=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries that apprise loads
@pytest.mark.parametrize(
    "url",
    [
        "mailtos://ann:pass%40word@gmail.com",
        "mailtos://ann:geheim@smtp.example.org:587?from=me@example.org&to=you@example.org",
        "mailto://smtp.example.org?from=gpuyard@box.example&to=you@example.org",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#channel",
        "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "dingtalk://secret@abcdefabcdef",
        "dingtalk://abcdefabcdef",
        "jsons://user:geheim@host/path?+X-Token=abc&:team=a",
        "ntfys://topic",
        "tgram://123456789:abcdefg_hijklmnop/12315544/",
        "pover://ubvwxyzabcdefghijklmnopqrstuv1@abcdefghijklmnopqrstuvwxyz1234",
    ],
)
def test_the_examples_of_the_guide_are_understood(url: str) -> None:
    assert delivery.checked(check_url(url, mail=False)) == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_apprise_does_not_know_is_told() -> None:
    assert (
        delivery.checked("nothing://x") == delivery.checked("https://example.org/x") == "nothing of this kind is known"
    )
    assert delivery.checked("syslog://") != ""
    assert "geheim" not in delivery.checked("mailtos://ann:geheim@x?from=@")


def test_events_are_kept_in_their_order() -> None:
    assert check_events(["Timeout", "start", "long_wait"]) == ("start", "timeout", "long-wait")
    assert check_events(["all"]) == EVENTS


# Texts


def test_a_template_knows_its_fields_and_nothing_else() -> None:
    facts = {"name": "{id}", "id": "7", "exit_code": "1"}
    assert fill(check_template("{{{name}}} ended: {exit_code}"), facts) == "{{id}} ended: 1"
    for bad in ("{name[0]}", "{0}", "{}", "{name!r}", "{name:>99999999}", "{name", "{name.upper}"):
        with pytest.raises(UserError):
            check_template(bad)


def test_the_last_lines_are_what_a_person_would_have_seen() -> None:
    data = b"".join(b"%d\n" % n for n in range(100)) + b"5%\r50%\r100%\r\n\x1b[1mbold\x1b[0m\x1b]0;title\x07\tx\xff\n\n"
    lines = last_lines(data).split("\n")
    assert (len(lines), lines[0], lines[-2:]) == (20, "82", ["100%", "bold    x\ufffd"])
    assert last_lines(b"half\nwhole", cut=True) == "whole"
    assert last_lines(b"") == ""
    assert len(last_lines(b"x" * 100_000)) == 500
    assert sum(map(len, last_lines(b"\n".join([b"y" * 499] * 20)).split("\n"))) <= 8000


def _view(**more: Any) -> JobView:
    found = JobView(
        1, "7", "train", "ann", "failed", 100.0, 0.0, {"command": ["python", "a b.py"]}, 1, (0, 1), 3, 160.0
    )
    return replace(found, **{"ended": 220.0, **more})


def _sources(printed: bytes = b"boom\n") -> Sources:
    return Sources(Path("/x"), "box", list, lambda view: "exit code 3", lambda *which: (0, printed))


def test_what_is_told_of_a_job_that_ran_out_of_gpu_memory() -> None:
    why = "ran out of GPU memory: wanted 5.2G, 4G were promised; all 3 retries with more are used up"
    sources = replace(_sources(), why=lambda view: why)
    story = message_of(Trigger("7", "failure", 220.0, _view(state="oom", exit_code=1)), sources)
    assert title_of(story.facts) == "gpuyard: job 7 (train) ran out of GPU memory after 1m 00s"
    assert f"\nReason:    {why}\n" in body_of(story.facts)
    resized = {"ooms": 2, "gpu_memory": 6.5 * 2**30, "asked_memory": 4.0 * 2**30}
    story = message_of(Trigger("7", "finish", 220.0, _view(state="succeeded", work=resized)), sources)
    assert (
        story.fields["reason"] == "it ran out of GPU memory 2 times before, and was given 6.5G of a GPU in place of 4G"
    )
    alone = {"ooms": 1, "gpu_memory": None}
    story = message_of(Trigger("7", "finish", 220.0, _view(state="succeeded", work=alone)), sources)
    assert story.fields["reason"] == "it ran out of GPU memory 1 time before, and was given GPUs for itself"


def test_what_is_told_of_a_failure() -> None:
    story = message_of(Trigger("7", "failure", 220.0, _view()), _sources())
    assert title_of(story.facts) == "gpuyard: job 7 (train) failed with exit code 3 after 1m 00s"
    body = body_of(story.facts)
    for line in ("Exit code: 3", "Ran for:   1m 00s", "Waited:    1m 00s", "On GPUs:   0,1", "Host:      box",
                 "Command:   python 'a b.py'", "    boom"):  # fmt: skip
        assert f"\n{line}\n" in body
    assert (story.fields["duration"], story.fields["wait"], story.fields["exit_code"]) == (60.0, 60.0, 3)
    assert title_of({"what": "x", "id": "7", "name": "a\nb\rc"}) == "gpuyard: job 7 (a b c) x"


def test_names_that_are_no_utf_8_are_told_all_the_same() -> None:
    view = _view(work={"command": ["run", "\udcff.py"], "directory": "/\udcff"})
    story = message_of(Trigger("7", "failure", 220.0, view), _sources())
    assert "Command:   run '?.py'" in body_of(story.facts)
    assert story.fields["command"].encode()


def test_where_output_went_to_a_file_that_is_said() -> None:
    view = _view(work={"output": "/home/ann/out.txt", "command": []})
    assert message_of(Trigger("7", "failure", 220.0, view), _sources()).facts["log"] == "(in /home/ann/out.txt)"


# Who is told of what


@pytest.mark.parametrize(
    ("view", "by", "event"),
    [
        (_view(state="succeeded"), "", "finish"),
        (_view(state="interrupted"), "", "failure"),
        (_view(state="oom"), "", "failure"),
        (_view(state="timeout"), "", "timeout"),
        (_view(state="cancelled"), "ann", ""),
        (_view(state="cancelled"), "root", "failure"),
        (_view(state="cancelled"), "", "failure"),  # what it was to follow failed
        (_view(state="succeeded", kind="lease"), "", ""),
    ],
)
def test_ends(view: JobView, by: str, event: str) -> None:
    assert end_of(view, by) == event


def test_recipients() -> None:
    usual, named = Subscription(1, "ann", "usual", "json://a"), Subscription(2, "ann", "named", "json://b", ("start",))
    of_jobs, others = Subscription(3, "ann", "", "json://c", of_jobs=True), Subscription(4, "bob", "usual", "json://d")
    late = Subscription(5, "ann", "late", "json://e", created=1000.0)
    every = [usual, named, of_jobs, others, late]

    def told(event: str = "failure", each: bool | None = None, **work: Any) -> list[int]:
        happening = Trigger("7", event, 220.0, _view(work=work), each=each)
        return [one.id for one in recipients(happening, every)]

    assert told() == [1]
    assert told("start") == [2]
    assert told(notify=["none"]) == []
    assert told(notify=["all"], notify_on=["failure"]) == [1, 2]
    assert told(notify=["named"], notify_on=["failure"]) == [2]
    assert told(notify=["#3"]) == [3]
    assert told(notify=["#3", "all"]) == [1, 3]
    assert told(notify=["#4"]) == []
    assert told(each=True) == []
    assert told(each=True, notify_on=["failure", "tasks"]) == [1, 2]
    assert told(each=False, notify_on=["failure", "tasks"]) == []


def test_a_long_wait_begins_when_a_job_might() -> None:
    waits = _view(state="queued", attempt=0, started=None, ended=None)
    assert [h.id for h in long_waits([waits], 200.0, 100.0)] == ["7"]
    assert [h.id for h in long_waits([replace(waits, work={"begin": 150.0})], 200.0, 100.0)] == []
    assert [h.id for h in long_waits([replace(waits, state="held")], 200.0, 100.0)] == []
    tasks = [replace(waits, id=f"8_{n}", array="8") for n in range(3)]
    assert [h.id for h in long_waits(tasks, 200.0, 100.0)] == ["8"]
    assert [h.id for h in long_waits([*tasks, replace(tasks[0], state="running")], 200.0, 100.0)] == []


# Who sends what


class Sender:
    """Stands for the courier: notes what it is given at once, and ends when it is let."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.ends: dict[int, threading.Event] = {}

    def send(self, user: str, parcels: list[OutgoingMessage], note: ResultCallback) -> None:
        [parcel] = parcels
        self.sent.append(parcel.delivery.id)
        end = self.ends.setdefault(parcel.delivery.id, threading.Event())
        if parcel.delivery.id == 1:
            note(parcel, "")
        assert end.wait(PATIENCE)

    def stop(self) -> None:
        for end in self.ends.values():
            end.set()


def test_what_is_being_sent_is_not_sent_again_when_an_earlier_process_ends(outbox: Outbox, tmp_path: Path) -> None:
    Store(tmp_path / "gpuyard.db").close()
    sender = Sender()
    clerk = Dispatcher(
        replace(_sources(), database=tmp_path / "gpuyard.db"), outbox, cast(MessageSender, sender), (1.0,)
    )
    outbox.add(Subscription(0, "ann", "box", "json://a"), 1.0)
    outbox.advance(None, [_delivery(1, "7")])
    clerk.start()
    try:
        until(lambda: sender.sent == [1])
        outbox.advance(None, [_delivery(1, "8")])
        clerk.ring()
        until(lambda: sender.sent == [1, 2])  # beside the first process, which has noted what it sent
        sender.ends[1].set()
        outbox.add(Subscription(0, "bob", "box", "json://b"), 1.0)
        outbox.advance(None, [replace(_delivery(2, "9"), user="bob")])
        clerk.ring()
        until(lambda: 3 in sender.sent)  # so it has looked at what is due
        assert sender.sent == [1, 2, 3]
    finally:
        clerk.stop(0.0)


# What is kept


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "notices.db")


def _delivery(subscription: int, job: str = "7", event: str = "finish", at: float = 100.0) -> Delivery:
    return Delivery(subscription, "box", "json://box", "ann", job, event, at, "title", "body", {"job": job}, next=at)


def test_subscriptions_are_each_users_own(outbox: Outbox) -> None:
    mine = outbox.add(Subscription(0, "ann", "box", "json://geheim"), 5.0)
    assert "geheim" not in repr(mine)
    assert outbox.subscription("ann", str(mine.id)) == outbox.subscription("ann", "box") == mine
    with pytest.raises(UserError, match="you have a subscription 'box' already"):
        outbox.add(Subscription(0, "ann", "box", "json://b"), 6.0)
    with pytest.raises(NoSuchSubscription, match="you have no subscription 'bxo'; did you mean 'box'"):
        outbox.subscription("ann", "bxo")
    with pytest.raises(NoSuchSubscription):
        outbox.remove("bob", str(mine.id), 7.0)
    outbox.advance(1, [_delivery(mine.id)])
    outbox.remove("ann", "box", 7.0)
    [left] = outbox.recent("ann")
    assert (left.state, left.error, left.body) == ("given-up", "its subscription was removed", "")


def test_an_event_is_told_once_however_often_it_is_seen(outbox: Outbox, tmp_path: Path) -> None:
    assert outbox.cursor() is None
    assert outbox.advance(10, [_delivery(1), _delivery(2), _delivery(1, event="start")]) == 3
    assert outbox.advance(12, [_delivery(1), _delivery(1, "8")]) == 1
    assert (outbox.cursor(), outbox.told("7", "finish")) == (12, {1, 2})
    outbox.close()
    again = Outbox(tmp_path / "notices.db")
    assert (again.cursor(), len(again.recent(None))) == (12, 4)


def test_what_fails_is_due_again_and_the_rest_waits_for_it(outbox: Outbox) -> None:
    outbox.advance(1, [_delivery(1, str(n)) for n in range(5)] + [_delivery(2)])
    first, *_ = found = outbox.due(100.0, 3)
    assert [one.subscription for one in found] == [1, 1, 1, 2]
    outbox.failed(first.id, "Connection refused", 101.0, 111.0)
    outbox.postpone(1, 111.0)
    assert [one.subscription for one in outbox.due(105.0, 3)] == [2]
    assert outbox.next_due() == 100.0
    outbox.delivered(outbox.due(105.0, 3)[0].id, 105.0)
    assert outbox.next_due() == 111.0
    outbox.failed(first.id, "Connection refused", 111.0, None)
    assert [(one.state, one.attempts) for one in outbox.recent(None, failed=True)] == [("given-up", 2)]


def test_a_flood_is_cut_off_and_that_is_told(outbox: Outbox) -> None:
    outbox.advance(1, [_delivery(1, str(n)) for n in range(MOST_WAITING + 2)])
    assert len(outbox.due(100.0, 10_000)) == MOST_WAITING
    dropped = outbox.recent("ann", failed=True)
    assert [one.state for one in dropped] == ["given-up"] * 2
    assert "wait to be sent" in dropped[0].error


def test_what_is_old_is_forgotten(outbox: Outbox) -> None:
    kept = outbox.add(Subscription(0, "ann", "box", "json://a"), 0.0)
    urls = [outbox.add(Subscription(0, "ann", "", f"json://{n}", of_jobs=True), 0.0) for n in range(2)]
    outbox.advance(1, [_delivery(kept.id, str(n)) for n in range(2)])
    outbox.delivered(1, 100.0)
    day = 86400.0
    outbox.prune(8 * day, set())
    assert ([one.id for one in outbox.recent(None)], len(outbox.subscriptions())) == ([2], 3)
    outbox.prune(40 * day, {urls[1].id})
    assert [one.id for one in outbox.subscriptions("ann")] == [kept.id, urls[1].id]
    assert outbox.of_jobs("ann", "json://1", 40 * day) == urls[1]


# The way to the daemon


@pytest.fixture
def daemons() -> Iterator[tuple[int, list[bytes]]]:
    """What stands for the daemon: its port, at all addresses of this machine, and what was sent there."""
    heard: list[bytes] = []
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        server.settimeout(PATIENCE)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    line, _ = server.accept()
                    with line:
                        heard.append(line.recv(10_000))
                        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@pytest.fixture
def guarded(daemons: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> int:
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, getattr(socket.socket, name))
    monkeypatch.setattr(http.client.HTTPConnection, "endheaders", http.client.HTTPConnection.endheaders)
    delivery.guard(daemons[0])
    return daemons[0]


def _spellings() -> list[str]:
    own = ("127.0.0.1", "127.9.9.9", "localhost", "0.0.0.0", "2130706433", "[::1]", "[::]", "[::ffff:127.0.0.1]")
    return [*own, socket.gethostname()]


def _parcel(url: str) -> dict[str, Any]:
    return {"id": 1, "url": url, "title": "t", "body": "b", "event": "finish", "fields": {}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("host", _spellings())
def test_no_spelling_leads_to_the_daemon(host: str, guarded: int, daemons: tuple[int, list[bytes]]) -> None:
    url = f"json://{host}:{guarded}/api/v1/shutdown"
    assert "nothing of this kind" in delivery.checked(url, guarded) or "itself" in delivery.checked(url, guarded)
    assert delivery.send(_parcel(url)) != ""
    assert daemons[1] == []


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "0177.0.0.1", *_spellings()])
def test_nor_does_a_connection_of_any_kind(host: str, guarded: int, daemons: tuple[int, list[bytes]]) -> None:
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    for connect in (socket.socket.connect, socket.socket.connect_ex):
        with socket.socket(family) as line, pytest.raises(PermissionError, match="the daemon itself"):
            connect(line, (bare, guarded))
    with socket.socket(socket.AF_UNIX) as line, pytest.raises(PermissionError):
        line.connect("/run/gpuyard/gpuyard.sock")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nor_does_a_redirection_and_others_see_who_sends(guarded: int, daemons: tuple[int, list[bytes]]) -> None:
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Via"])
            self.send_response(307)
            self.send_header("Location", f"http://localhost:{guarded}/api/v1/shutdown")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        error = delivery.send(_parcel(f"json://127.0.0.1:{server.server_address[1]}/x?redirect=yes"))
        server.shutdown()
        thread.join(PATIENCE)
    assert error != ""
    assert (seen, daemons[1]) == (["1.1 gpuyard"], [])
    assert is_forwarded([(b"via", b"1.1 gpuyard")]), "so no daemon takes it for whom it runs as"


# Trials


def test_who_tries_many_urls_out_waits_and_nobody_else_does() -> None:
    trials, go = Trials(), threading.Event()
    try:
        hanging = [trials.start("ann", lambda: go.wait(PATIENCE)) for _ in range(2)]
        with pytest.raises(TooManyTrials, match="2 URLs of yours are being tried out"):
            trials.start("ann", lambda: True)
        assert trials.start("bob", lambda: "done").result(PATIENCE) == "done"
        go.set()
        assert [one.result(PATIENCE) for one in hanging] == [True, True]
        until(lambda: not trials._users)
        trials.start("ann", lambda: True).result(PATIENCE)
    finally:
        go.set()
        trials.stop()


def test_a_job_never_waits_for_its_url(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path / "s", single_user=True)
    Store(settings.database).close()
    service, go = NotificationService(settings, replace(_sources(), database=settings.database)), threading.Event()
    said: list[str] = []

    def check(user: str, url: str) -> str:
        said.append(url)
        assert go.wait(PATIENCE)
        return "nothing of this kind is known"

    cast(Any, service._sender).check = check
    try:
        first = service.refs("ann", ["json://a", "nothing://it", "json://c", "json://d"])
        assert first == ("#1", "#2", "#3", "#4")
        assert service.refs("ann", ["json://c", "json://a"]) == ("#3", "#1")
        assert len(said) <= 2, "of one user"
        go.set()
        [one, _] = until(lambda: len(service.outbox.recent("ann")) == 2 and service.outbox.recent("ann"))
        assert (one.state, one.error, one.event) == ("given-up", "nothing of this kind is known", "test")
        with pytest.raises(NoSuchSubscription):
            service.refs("ann", ["json://new", "nobody"])
        assert service.outbox.of_jobs("ann", "json://new", 1.0) is None
    finally:
        go.set()
        service._trials.stop()
        service.outbox.close()


def test_the_urls_of_one_user_have_an_end(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.notify.outbox.MOST_URLS", 2)
    for number in range(2):
        outbox.add(Subscription(0, "ann", "", f"json://{number}", of_jobs=True), 1.0)
    with pytest.raises(UserError, match="you gave 2 different URLs with jobs"):
        outbox.add(Subscription(0, "ann", "", "json://2", of_jobs=True), 1.0)
    outbox.add(Subscription(0, "bob", "", "json://2", of_jobs=True), 1.0)
