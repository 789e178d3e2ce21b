"""TCP on a machine that many share: jobs run as whoever a token is for, and nobody gets more than they have."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from http.client import HTTPMessage
from typing import Any

import pytest
from tests.users import User, made, reachable_folder, require_root
from tests.web import Reply, ask
from tests.yard import Yard, opened, until

from gpuyard.client.transport import Refused


@pytest.fixture(scope="module")
def shared(groups: tuple[str, str]) -> Iterator[Yard]:
    """A daemon of root on TCP, which trusts the kernel on who asks."""
    require_root()
    with reachable_folder() as folder, opened(folder) as yard:
        yard.environment["GPUYARD_ADMIN_GROUP"] = groups[1]
        yard.serve("--port", "0")
        yield yard


def post(yard: Yard, user: User, path: str, body: Any, **more: Any) -> Reply:
    """What somebody on this machine is answered on TCP."""
    url = yard.client.status()["url"]
    limits = more.pop("limits", None)
    found = user.do(lambda: [(reply := ask(url, "POST", path, body, **more)).status, reply.body.decode()], limits)
    return Reply(found[0], HTTPMessage(), found[1].encode())


def job(user: User, *command: str) -> dict[str, Any]:
    return {"command": list(command), "directory": "/", "environment": user.environment()}


def output(yard: Yard, reply: Reply) -> str:
    """What a job printed."""
    assert reply.status == 201, reply
    ended = yard.wait(reply.json["id"])
    return yard.client.log(ended["id"]).data.decode().strip()


def test_a_token_runs_jobs_as_its_user(shared: Yard, ann: User, bob: User) -> None:
    url = shared.client.status()["url"]
    anns = ann.do(lambda: shared.client.make_token())
    assert (anns["user"], anns["role"], anns["runs_as"]) == (ann.name, "user", ann.name)
    bobs = shared.client.make_token(bob.name)
    for token, user in ((anns, ann), (bobs, bob)):
        reply = ask(url, "POST", "/api/v1/jobs", job(user, "id", "-un"), token=token["token"])
        assert output(shared, reply) == user.name
    reply = ask(url, "POST", "/api/v1/jobs", job(ann, "sleep", "100"), token=anns["token"])
    cancel = f"/api/v1/jobs/{reply.json['id']}/cancel"
    assert ask(url, "POST", cancel, {}, token=bobs["token"]).status == 403
    assert ask(url, "POST", cancel, {}, token=anns["token"]).status == 200
    assert post(shared, ann, "/api/v1/jobs", {**job(ann, "true"), "user": bob.name}).status == 422


def test_nobody_gets_a_token_for_more_than_they_are(
    shared: Yard, ann: User, bob: User, groups: tuple[str, str]
) -> None:
    def refused(user: User, why: str, *name: str, role: str = "user") -> None:
        with pytest.raises(Refused, match=why) as found:
            user.do(lambda: shared.client.make_token(*name, role=role))
        assert found.value.status == 403

    refused(ann, f"a token for {bob.name}", bob.name)
    refused(ann, "an admin token", role="admin")
    with pytest.raises(Refused, match="useradd nobody-here, or a token that may only look"):
        shared.client.make_token("nobody-here")
    assert shared.client.make_token("nobody-here", role="viewer")["runs_as"] is None
    with reachable_folder() as folder, made(folder, f"{ann.name}x", groups[1]) as boss:
        refused(boss, f"only root may make a token that runs jobs as {ann.name}", ann.name)
        refused(boss, "only root may make a token that runs jobs as root", "root")
        assert boss.do(lambda: shared.client.make_token(role="admin"))["role"] == "admin"
        assert boss.do(lambda: shared.client.make_token(ann.name, role="viewer"))["user"] == ann.name
        plain = boss.do(lambda: shared.client.make_token())["token"]
        url = shared.client.status()["url"]
        assert ask(url, "PUT", "/api/v1/policy", {"policy": "sjf"}, token=plain).status == 403, "no admin's token"
    until(lambda: ask(url, "GET", "/api/v1/jobs", token=plain).status == 403, "the end of an account's tokens")
    assert "has no account on this machine any more" in ask(url, "GET", "/api/v1/jobs", token=plain).detail


def test_a_token_has_no_rights_that_its_owner_has_lost(
    shared: Yard, ann: User, bob: User, groups: tuple[str, str]
) -> None:
    url = shared.client.status()["url"]
    with pytest.raises(Refused, match=f"{bob.name} is not an admin here, so an admin token of {bob.name} would be"):
        shared.client.make_token(bob.name, role="admin")
    reply = post(shared, ann, "/api/v1/jobs", job(ann, "sh", "-c", "echo mine; exec sleep 1000"))
    log = f"/api/v1/jobs/{reply.json['id']}/log"
    with reachable_folder() as folder, made(folder, f"{ann.name}y", groups[1]) as boss:
        token = boss.do(lambda: shared.client.make_token(role="admin"))["token"]
        until(lambda: b"mine" in ask(url, "GET", log, token=token).body)
        cookie = ask(url, "POST", "/api/v1/session", {"token": token}).headers["set-cookie"].partition(";")[0]
        subprocess.run(["gpasswd", "-d", boss.name, groups[1]], check=True, capture_output=True)
        until(lambda: ask(url, "GET", log, token=token).status == 403, "the end of an admin's rights")
        assert ask(url, "POST", "/api/v1/tokens", {"role": "admin"}, token=token).status == 403
        who = ask(url, "GET", "/api/v1/session", headers={"Cookie": cookie}).json
        assert (who["user"], who["role"]) == (boss.name, "user")
        assert ask(url, "GET", "/api/v1/jobs", token=token).status == 200, "what every user may do is left"
    shared.client.cancel(reply.json["id"])


def test_limits_cannot_be_left_behind(shared: Yard, ann: User) -> None:
    few = {resource.RLIMIT_NOFILE: (77, 88)}
    asked = job(ann, "sh", "-c", "ulimit -n; ulimit -Hn")
    reply = post(shared, ann, "/api/v1/jobs", asked, limits=few)
    assert output(shared, reply) == "77\n88", "by TCP as by the socket"
    token = ann.do(lambda: shared.client.make_token(), few)["token"]
    reply = ask(shared.client.status()["url"], "POST", "/api/v1/jobs", asked, token=token)
    assert output(shared, reply) == "77\n88", "nor by a token"


def test_the_kernel_names_whoever_asks_on_tcp(shared: Yard, ann: User, bob: User) -> None:
    reply = post(shared, ann, "/api/v1/jobs", job(ann, "sleep", "100"))
    assert shared.client.job(reply.json["id"])["user"] == ann.name
    cancel = f"/api/v1/jobs/{reply.json['id']}/cancel"
    assert post(shared, bob, cancel, {}).status == 403
    assert post(shared, bob, "/api/v1/shutdown", {}).status == 403
    assert post(shared, ann, cancel, {}).status == 200
    [first, *_] = shared.client.audit(user=ann.name, limit=1)
    assert (first["via"], first["path"], first["job"]) == ("loopback", cancel, reply.json["id"])


def test_a_session_is_good_only_for_whoever_opened_it(shared: Yard, ann: User, bob: User) -> None:
    """Browsers show a cookie to every server of a machine, whatever its port: bob's, too."""
    url, token = shared.client.status()["url"], ann.do(lambda: shared.client.make_token())["token"]

    def opened() -> list[str]:
        reply = ask(url, "POST", "/api/v1/session", {"token": token})
        return [reply.headers["set-cookie"].partition(";")[0], reply.json["csrf"]]

    cookie, csrf = ann.do(opened)
    page = {"Cookie": cookie, "X-CSRF-Token": csrf, "Origin": url}

    def who() -> str:
        return str(ask(url, "GET", "/api/v1/session", headers=page).json["user"])

    assert ann.do(who) == ann.name
    assert bob.do(who) == bob.name, "the kernel's word, not the cookie's"


def test_files_are_opened_as_the_tokens_user(shared: Yard, ann: User) -> None:
    url, token = shared.client.status()["url"], shared.client.make_token(ann.name)["token"]
    closed = shared.data_dir / "by-ann"
    wish = {**job(ann, "echo", "mine"), "output": str(closed)}
    ended = shared.wait(ask(url, "POST", "/api/v1/jobs", wish, token=token).json["id"])
    assert ended["state"] == "failed"
    assert "cannot be written" in (ended["message"] or "")
    assert not closed.exists()
    admin = shared.client.make_token("root", role="admin")["token"]
    refused = ask(url, "PUT", "/api/v1/policy", {"policy": f"{ann.home}/mine.py:best"}, token=admin)
    assert (refused.status, "not by a token" in refused.detail) == (403, True)
