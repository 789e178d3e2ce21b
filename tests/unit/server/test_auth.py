"""The parts of authentication: names, failures, tokens, the audit log, and answers that end early."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config import Settings, settings
from gpuyard.errors import UserError
from gpuyard.server.auth import audit as audit_module
from gpuyard.server.auth import credentials as credentials_module
from gpuyard.server.auth.audit import AuditEntry, AuditLog, RedactingFormatter
from gpuyard.server.auth.authentication import FailureLimiter
from gpuyard.server.auth.credentials import CredentialStore, NoSuchToken
from gpuyard.server.auth.hosts import Hosts, address_of, network_of
from gpuyard.server.auth.middleware import Auth, AuthMiddleware
from gpuyard.server.auth.permissions import Forbidden, Permissions, Role
from gpuyard.server.security import exposure_warnings


def made(**more: Any) -> Settings:
    return Settings(Path("/x"), Path("/x/s"), **more)


# -- names ----------------------------------------------------------------------------------------


def test_names_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: type("Name", (), {"nodename": "Box"})())
    hosts = Hosts(made(bind="0.0.0.0"))
    for host in ("10.1.2.3:62333", "10.1.2.3", "[fe80::1]:62333", "localhost:62333", "box:62333", "BOX.:62333"):
        assert hosts.serves(host, 62333), host
    for host in ("evil.example", "10.1.2.3:80", "box.evil.example", "", "10.1.2.3.evil.example"):
        assert not hosts.serves(host, 62333), host
    for host in ("10.1.2.3:62333", "box:62333"):
        assert not Hosts(made()).serves(host, 62333), host


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "foreign"),
    [
        ("http://box:1", "box:1", "http", False),
        ("HTTP://BOX:1", "box:1", "http", False),
        ("http://box", "box:80", "http", False),
        ("https://box", "box", "https", False),
        ("https://box:443", "box", "https", False),
        ("https://box", "box", "http", True),
        ("https://gpus", "gpus", "http", False),  # a proxy's
        ("http://gpus", "gpus", "https", True),
        ("http://box:2", "box:1", "http", True),
        ("http://box.evil:1", "box:1", "http", True),
        ("null", "box:1", "http", True),
        ("", "box:1", "http", True),
        ("file://", "box:1", "http", True),
        ("http://[::1", "box:1", "http", True),
        ("http://a@box:1", "box:1", "http", True),
    ],
)
def test_origins(origin: str, host: str, scheme: str, foreign: bool) -> None:
    assert Hosts(made(allowed_hosts=("gpus",))).is_foreign(origin, host, scheme, 62333) is foreign


def test_addresses() -> None:
    def of(client: str, forwarded: str, *hosts: str) -> str:
        scope = {"client": (client, 1), "headers": [(b"x-forwarded-for", forwarded.encode())]}
        return address_of(scope, made(allowed_hosts=hosts))

    assert of("127.0.0.1", "1.1.1.1, 2.2.2.2", "gpus") == "2.2.2.2"
    assert of("::1", "2001:db8::7", "gpus") == "2001:db8::7"
    assert of("127.0.0.1", "1.1.1.1") == "127.0.0.1", "nobody said that there is a proxy"
    assert of("10.0.0.9", "1.1.1.1", "gpus") == "10.0.0.9", "not from our proxy"
    assert of("127.0.0.1", "1.1.1.1, unknown", "gpus") == "127.0.0.1"
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2:ffff::1") == "2001:0db8:0001:0002::/64"
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"


def test_failures_are_forgiven_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    failures = FailureLimiter(most=3, every=10.0)
    for _ in range(3):
        assert failures.wait("a") == 0
        failures.add("a")
    assert (failures.wait("a"), failures.wait("b")) == (10, 0)
    now += 9.5
    assert failures.wait("a") == 1
    now += 0.5
    assert failures.wait("a") == 0
    failures.add("a")
    assert failures.wait("a") == 10
    for number in range(20_000):
        failures.add(str(number))
    assert failures.wait("a") == 0, "memory is bounded"


# -- tokens and sessions --------------------------------------------------------------------------


def test_tokens_and_sessions_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "access.db"
    access = CredentialStore(file)
    token, text = access.make("ann", "user", label="laptop", limits="nofile=1:2")
    session, secret = access.open_session(token, "here")
    assert text == f"gy_{token.id}_{text.split('_', 2)[2]}"
    assert text.split("_", 2)[2] not in repr(token) + repr(session)
    assert access.with_text(text) == token
    assert access.session(secret, "there") is None
    access.close()
    again = CredentialStore(file)
    assert again.with_text(text) is not None
    assert again.session(secret, "here") is not None
    again.revoke(token.id)
    assert again.session(secret, "here") is None
    assert again.token_of(f"token {token.id}") is again.token_of(f"session {session.id}") is None
    with pytest.raises(NoSuchToken):
        again.revoke("nosuch")
    again.close()
    assert CredentialStore(file).token(token.id).revoked is not None


def test_a_session_never_outlives_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    access = CredentialStore()
    short, _ = access.make("ann", "user", expires=now + 60)
    long, _ = access.make("ann", "user")
    opened = {token.id: access.open_session(token, "") for token in (short, long)}
    assert opened[short.id][0].expires == now + 60
    now += 61
    assert access.session(opened[short.id][1], "") is None
    assert access.session(opened[long.id][1], "") is not None
    for _ in range(4):  # it slides while it is used
        now += 10 * 3600
        assert access.session(opened[long.id][1], "") is not None
    now += 13 * 3600
    assert access.session(opened[long.id][1], "") is None
    access.tidy(now)
    assert access.sessions_of(long.id) == []


def test_that_a_token_is_used_is_not_written_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    access = CredentialStore()
    token, text = access.make("ann", "user")
    used = access.use(token)
    assert used is not None
    assert used.used is not None
    access.flush()
    changes = access.connection.total_changes
    for _ in range(100):
        found = access.with_text(text)
        assert found is not None
        assert access.use(found) is not None
    access.flush()
    assert access.connection.total_changes == changes


def test_one_token_has_so_many_sessions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "_MOST_SESSIONS", 3)
    access = CredentialStore()
    token, _ = access.make("ann", "user")
    secrets = [access.open_session(token, "")[1] for _ in range(5)]
    assert [access.session(secret, "") is not None for secret in secrets] == [False, False, True, True, True]


def test_a_file_that_is_no_store_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "access.db").write_text("something else" * 100)
    with pytest.raises(UserError, match=r"access.db cannot be used .*; move it away"):
        CredentialStore(tmp_path / "access.db")


# -- the audit log ------------------------------------------------------------------------------------


def entry(status: int = 201, path: str = "/api/v1/jobs", **more: Any) -> AuditEntry:
    return AuditEntry(time.time(), "ann", "socket", "", "POST", path, status, **more)


def test_the_audit_log_cannot_be_flooded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_BURST", 10.0)
    audit = AuditLog(CredentialStore())
    for number in range(1000):
        audit.add(entry(403, f"/{number}"))
        audit.add(entry(401, "/same"))
    audit.add(entry())
    found = [one for _, one in audit.find(limit=10_000)]
    assert len(found) == 11
    assert sum(one.status == 201 for one in found) == 1
    monkeypatch.setattr(audit_module, "_REFILL", 1e9)
    audit.add(entry(401, "/again"))
    later = [one for _, one in audit.find(limit=10_000)]
    assert sum(one.times for one in later if one.status == 403) == 1000, "those without a row are counted"
    assert sum(one.times for one in later if one.status == 401) == 1001


def test_refusals_do_not_push_out_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_MOST_REFUSALS", 3)
    monkeypatch.setattr(audit_module, "_MOST_CHANGES", 5)
    audit = AuditLog(CredentialStore())
    audit.add(entry()._replace(at=1.0))
    for number in range(8):
        audit.add(entry(job=str(number)))
        audit.add(entry(403, f"/{number}"))
    audit.flush()
    audit._tidy()
    kept = [one for _, one in audit.find()]
    assert [one.path for one in kept if one.status == 403] == ["/7", "/6", "/5"]
    assert [one.job for one in kept if one.status == 201] == ["7", "6", "5", "4", "3"]


def test_the_audit_log_is_kept_in_memory_while_it_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    access = CredentialStore()
    audit = AuditLog(access)
    access.connection.execute("ALTER TABLE audit RENAME TO away")
    for job in ("7", "8"):
        audit.add(entry(job=job))
        audit.flush()
    assert caplog.text.count("cannot be written") == 1
    access.connection.execute("ALTER TABLE away RENAME TO audit")
    assert [one.job for _, one in audit.find()] == ["8", "7"]


def test_no_token_gets_into_a_log() -> None:
    _, text = CredentialStore().make("ann", "user")
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "GET /%s failed", (text,), None)
    try:
        raise ValueError(f"not {text}")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    written = RedactingFormatter("%(message)s").format(record)
    assert text.split("_", 2)[2] not in written
    assert written.count(f"gy_{text.split('_')[1]}_...") == 2


# -- the gate -------------------------------------------------------------------------------------


async def _streamed(auth: Auth, text: str, events: list[str], end: Callable[[], object]) -> list[dict[str, Any]]:
    """What comes out of an endless answer to whoever has a token that ends after the second piece."""
    sent: list[dict[str, Any]] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(10):
            if number == 2:
                end()
            events.append(str(number))
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {text}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/api/v1/events", "query_string": b"", "headers": headers,
             "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 5), "state": {}}  # fmt: skip
    await AuthMiddleware(endless, auth)(scope, receive, send)
    return sent


def _ends(auth: Auth, text: str, end: Callable[[], object]) -> None:
    events = list[str]()
    start, *pieces = asyncio.run(_streamed(auth, text, events, end))
    assert start["status"] == 200
    assert [(piece["body"], piece["more_body"]) for piece in pieces] == [
        (b"piece", True), (b"piece", True), (b"", False)
    ]  # fmt: skip
    assert events == ["0", "1", "2", "3"], "and whoever makes the stream is stopped"


def test_a_stream_ends_with_its_token() -> None:
    chosen = made()
    auth = Auth(chosen, Permissions(chosen))
    token, text = auth.credentials.make("ann", "viewer")
    _ends(auth, text, lambda: auth.credentials.revoke(token.id))


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, bool]]:
    """Users of a shared daemon by name: their number, and whether they are admins. Nothing is cached."""
    found = {"ann": (1001, True)}
    numbers = "gpuyard.server.auth.authentication"
    monkeypatch.setattr("gpuyard.config._is_root", lambda: True)
    monkeypatch.setattr(f"{numbers}.uid_of", lambda name: found[name][0] if name in found else None)
    monkeypatch.setattr(f"{numbers}.group_names", lambda uid: ())
    monkeypatch.setattr(f"{numbers}._KEEP", -1.0)
    monkeypatch.setattr("gpuyard.server.auth.permissions._KEEP", -1.0)
    monkeypatch.setattr(Permissions, "_is_admin", lambda self, uid: (uid, True) in found.values())
    return found


@pytest.mark.parametrize("then", [("ann", (1001, False)), ("ann", (1002, True)), ("bob", (1001, True))])
def test_a_stream_of_an_admin_ends_with_the_admins_rights(
    accounts: dict[str, tuple[int, bool]], then: tuple[str, tuple[int, bool]]
) -> None:
    chosen = made()
    auth = Auth(chosen, Permissions(chosen))
    _, text = auth.credentials.make("ann", "admin", uid=1001)

    def end() -> None:
        accounts.clear()
        accounts.update([then])

    _ends(auth, text, end)


def test_a_token_is_worth_what_its_owner_is_now(accounts: dict[str, tuple[int, bool]]) -> None:
    chosen = made()
    authenticator = Auth(chosen, Permissions(chosen)).authenticator
    token, _ = authenticator.credentials.make("ann", "admin", uid=1001)
    looks, _ = authenticator.credentials.make("ann", "viewer", uid=1001)
    boss = authenticator.holder(token, "token 1")
    assert (boss.admin, boss.role, authenticator.holds(boss)) == (True, Role.ADMIN, False), "there is no token 1"
    accounts["ann"] = (1001, False)
    now = authenticator.holder(token, "token 1")
    assert (now.admin, now.role) == (False, Role.USER)
    accounts["ann"] = (1002, True)
    for one in (token, looks):  # the name is another's now, and so are the logs of its jobs
        with pytest.raises(Forbidden, match="who has no account on this machine any more"):
            authenticator.holder(one, "token 1")


# -- settings -------------------------------------------------------------------------------------


def test_risks_are_told() -> None:
    assert exposure_warnings(made(), "http://127.0.0.1:62333") == []
    assert exposure_warnings(made(bind="0.0.0.0", tokens="none"), "") == [], "nobody listens"
    both = exposure_warnings(made(bind="0.0.0.0", tokens="none"), "http://0.0.0.0:62333")
    assert "set tokens to auto (--token auto)" in both[0]
    assert [("without a token" in one, "clear text" in one) for one in both] == [(True, False), (False, True)]


def test_a_clients_token_is_no_setting(tmp_path: Path) -> None:
    here = {"GPUYARD_CONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    assert settings(environment={**here, "GPUYARD_TOKEN": "gy_abc_def"}).tokens == "auto"
    assert settings(environment={**here, "GPUYARD_TOKENS": "required"}).tokens == "required"
    with pytest.raises(UserError, match="tokens is one of auto, required, none"):
        settings(environment={**here, "GPUYARD_TOKENS": "requird"})
