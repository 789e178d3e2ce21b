"""Tokens on TCP: who comes in by them, what they allow, how they are made, and how they end."""

from __future__ import annotations

import json
import threading
import time

from tests.doors import JOB, Door
from tests.web import Reply
from tests.yard import until


def test_nobody_comes_in_without_a_good_token(door: Door, proxied: Door) -> None:
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/nothing"), ("GET", "/openapi.json")):
        reply = door(method, path, JOB if method == "POST" else None)
        assert reply.status == 401, reply
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "gpuyard token create" in reply.detail
    good, here = proxied.token(), {"X-Forwarded-For": "192.0.2.1"}
    id = good.split("_")[1]
    for wrong in ("x", "gy_", f"gy_{id}_", f"gy_{id}_wrong", f"gy_zzzzzzzz_{good.split('_', 2)[2]}", f"{good}x"):
        reply = proxied("GET", "/v1/jobs", token=wrong, headers=here)
        assert reply.status == 401, wrong
        assert "there is no such token" in reply.detail
    assert proxied("GET", "/v1/jobs", token=good, headers=here).status == 200
    elsewhere = proxied("GET", "/v1/jobs", headers={"X-Auth-Token": good})
    assert elsewhere.status == 401, "that is for watchmen's paths alone"
    assert proxied("GET", f"/v1/jobs?token={good}").status == 401


def test_a_token_is_its_users(door: Door) -> None:
    ann, bob, boss = door.token("ann"), door.token("bob"), door.token("boss", "admin")
    made = door("POST", "/v1/jobs", {**JOB, "command": ["sleep", "100"]}, token=ann)
    assert made.status == 201
    job = made.json["id"]
    assert door("GET", f"/v1/jobs/{job}", token=bob).json["user"] == "ann"
    for method, path in (("POST", "cancel"), ("GET", "log"), ("GET", "environment")):
        reply = door(method, f"/v1/jobs/{job}/{path}", token=bob)
        assert reply.status == 403
        assert "ask ann" in reply.detail
    assert door("POST", "/v1/shutdown", token=ann).status == 403
    assert door("PUT", "/v1/policy", {"policy": "sjf"}, token=ann).status == 403
    assert door("PUT", "/v1/policy", {"policy": "sjf"}, token=boss).status == 200
    assert door("PUT", "/v1/policy", {"policy": "/tmp/mine.py:best"}, token=boss).status == 403, "a file from afar"
    assert door("POST", f"/v1/jobs/{job}/cancel", token=ann).status == 200


def test_a_viewer_changes_nothing(door: Door) -> None:
    viewer = door.token("eve", "viewer")
    assert door("GET", "/v1/status", token=viewer).status == 200
    for method, path, body in (
        ("POST", "/v1/jobs", JOB), ("POST", "/v1/leases", {}), ("POST", "/v1/tokens", {}), ("PUT", "/v1/policy", {}),
        ("POST", "/client/register", {}),
    ):  # fmt: skip
        reply = door(method, path, body, token=viewer)
        assert (reply.status, "viewer" in reply.body.decode()) == (403, True), (method, path)


def test_to_ask_what_would_change_is_no_change(door: Door) -> None:
    viewer = door.token("ivy", "viewer")
    assert door("POST", "/v1/policy/preview", {"policy": "sjf"}, token=viewer).json["policy"].startswith("sjf@")
    refused = door("POST", "/v1/policy/preview", {"policy": "/tmp/mine.py:best"}, token=door.token("boss", "admin"))
    assert (refused.status, "from a file" in refused.detail) == (403, True)
    door("PUT", "/v1/policy", {"policy": "sjf"}, token=viewer)
    written = until(
        lambda: [e for e in door.yard.client.audit(limit=50) if e["user"] == "ivy"], "the refusal in the audit trail"
    )
    assert {entry["path"] for entry in written} == {"/api/v1/policy"}


def test_tokens_end(door: Door) -> None:
    short = door.token(expires=0.5)
    until(lambda: door("GET", "/v1/status", token=short).status == 401, "the end of a token")
    assert "has expired" in door("GET", "/v1/status", token=short).detail
    lost = door.token(label="lost laptop")
    page = door.login(lost)
    assert door("GET", "/v1/session", headers=page).status == 200
    listed = {token["id"]: token for token in door.yard.json("token", "list", "--all")}
    assert listed[lost.split("_")[1]]["sessions"] == 1
    done = door.yard("token", "revoke", lost)
    assert (done.code, done.out) == (0, f"token {lost.split('_')[1]} of ann is revoked\n")
    assert "was revoked" in door("GET", "/v1/status", token=lost).detail
    assert door("GET", "/v1/session", headers=page).status == 401
    assert door("POST", "/v1/session", {"token": lost}).status == 401
    assert door("DELETE", "/v1/tokens/nosuch", token=door.token("boss", "admin")).status == 404


def test_who_waits_when_the_token_is_revoked_gets_nothing(door: Door) -> None:
    token = door.token()
    last = door("GET", "/v1/events?after=1000000", token=token).json["last"]
    found: list[Reply] = []
    thread = threading.Thread(
        target=lambda: found.append(door("GET", f"/v1/events?after={last}&user=nobody&wait=2", token=token))
    )
    thread.start()
    time.sleep(0.2)
    door.yard.client.revoke_token(token.split("_")[1])
    thread.join()
    assert [reply.status for reply in found] == [401]


def test_tokens_of_tokens(door: Door) -> None:
    user, boss = door.token("ann"), door.token("boss", "admin")
    for headers in ({"Authorization": f"Bearer {user}"}, door.login(user)):
        reply = door("POST", "/v1/tokens", {}, headers=headers)
        assert reply.status == 403
        assert "a token cannot make tokens" in reply.detail
    made = door("POST", "/v1/tokens", {"user": "carl", "role": "viewer", "expires": 60}, token=boss)
    assert made.status == 201
    assert (made.json["made_by"], made.json["runs_as"]) == ("boss", None)
    names = {token["user"] for token in door("GET", "/v1/tokens", token=user).json["tokens"]}
    assert names == {"ann"}
    theirs = made.json["id"]
    assert door("DELETE", f"/v1/tokens/{theirs}", token=user).status == 404, "of others nobody learns anything"
    for name in ("anonymous", "a b", "@group", "*", "-x", "", "a/b", "a" * 65, "a\nb"):
        assert door("POST", "/v1/tokens", {"user": name}, token=boss).status == 422, name
    assert door("POST", "/v1/tokens", {"role": "king"}, token=boss).status == 422
    assert door("POST", "/v1/tokens", {"expires": -1}, token=boss).status == 422


def test_the_command(door: Door) -> None:
    done = door.yard("token", "create", "zoe", "--expires", "90d", "--label", "laptop")
    token = done.out.strip()
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert "zoe's user token" in done.err
    assert "its jobs run as" in done.err
    assert door.url in done.err
    secret = token.split("_", 2)[2]
    assert len(secret) >= 43
    assert secret not in done.err
    listed = door.yard("token", "list", "--json")
    assert "laptop" in listed.out
    assert "laptop" in door.yard("token", "list", "--user", "zoe").out
    assert secret not in listed.out
    assert door.yard("token", "create", "--expires", "-3d").code == 2
    refused = door.yard("token", "revoke", "nosuch")
    assert (refused.code, "gpuyard token list" in refused.err) == (1, True)
    made = door.yard.json("token", "create", "yan", "--role", "viewer")
    assert made["token"].startswith(f"gy_{made['id']}_")


def test_who_is_wrong_again_and_again_has_to_wait(proxied: Door) -> None:
    token = proxied.token()
    there, elsewhere = {"X-Forwarded-For": "192.0.2.7"}, {"X-Forwarded-For": "192.0.2.8"}
    for n in range(10):
        if n % 2:
            assert proxied("GET", "/v1/jobs", token="gy_a_b", headers=there).status == 401
        else:
            assert proxied("POST", "/v1/session", {"token": "gy_a_b"}, headers=there).status == 401
    for method, path, more in (
        ("GET", "/v1/jobs", {"token": "gy_a_b"}), ("POST", "/v1/session", {"body": {"token": "gy_a_b"}}),
    ):  # fmt: skip
        reply = proxied(method, path, headers=there, **more)
        assert reply.status == 429
        assert 1 <= int(reply.headers["retry-after"]) <= 31
        assert "wait" in reply.detail
    assert proxied("POST", "/auth", {"token": "gy_a_b"}, headers=there).status == 429
    assert proxied("GET", "/v1/jobs", token=token, headers=there).status == 200
    assert proxied("GET", "/v1/jobs", token="gy_a_b", headers=elsewhere).status == 401


def test_without_tokens_one_may_look_and_wait(wide: Door) -> None:
    assert wide("GET", "/v1/session").json == {"user": "anonymous", "role": "anonymous", "via": "nobody"}
    assert wide("GET", "/v1/jobs").status == 200
    own = wide.yard.client.submit(["sleep", "100"])
    for method, path, body in (
        ("POST", "/v1/jobs", JOB), ("POST", "/v1/jobs/batch", {"jobs": [JOB]}), ("POST", f"/v1/jobs/{own}/cancel", {}),
        ("PATCH", f"/v1/jobs/{own}", {"priority": 1}), ("POST", "/v1/tokens", {}), ("PUT", "/v1/policy", {}),
        ("POST", "/v1/shutdown", {}),
    ):  # fmt: skip
        reply = wide(method, path, body)
        assert (reply.status, "gpuyard token create" in reply.detail) == (401, True), (method, path)
    for path in ("log", "environment"):
        assert wide("GET", f"/v1/jobs/{own}/{path}").status == 403
    assert wide("GET", "/v1/audit").status == 403
    assert wide("GET", "/v1/tokens").json == {"tokens": []}
    assert wide("POST", "/v1/leases", {}).status not in (401, 403)
    assert wide("POST", "/client/nothing", {}).status == 404
    assert wide("POST", "/auth", {}).json == {"status": "ok", "msg": "No authentication required"}
    assert wide("GET", "/v1/jobs", token="gy_a_b").status == 401
    assert wide("POST", "/v1/jobs", JOB, token=wide.token()).status == 201
    assert "BEWARE" in (wide.yard.data_dir / "daemon.log").read_text()
    [sentence] = wide.yard.client.status()["warnings"]
    assert "without a token" in sentence
    assert sentence in wide.yard("status").out
    assert sentence in wide.yard("up").err
    told = {finding["check"]: finding for finding in json.loads(wide.yard("doctor", "--json").out)}
    assert told["network"]["state"] == "warn"
    assert "without a token" in told["network"]["found"]
