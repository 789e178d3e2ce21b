"""Tokens and sessions, in memory and in `access.db`."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import string
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuyard.daemon.store.database import StoreFailing
from gpuyard.daemon.store.database import connect as open_database
from gpuyard.errors import GpuyardError, UserError

VERSION = 1
_PREFIX = "gy"
_LETTERS = string.ascii_lowercase + string.digits
_SECRET = 32  # random bytes
_SESSION_SECONDS = 12 * 3600.0  # seconds that a session lasts without being used
_COARSE = 300.0  # seconds after which it is written down that something is still used
_MOST_SESSIONS = 100  # of one token
_FORGOTTEN = 365 * 86400.0  # seconds after which a token that is over is not listed any more
_NOBODYS = b"\0" * 32


class NoSuchToken(GpuyardError):
    """There is no such token; gpuyard token list shows them."""


@dataclass(frozen=True, slots=True)
class Token:
    id: str
    hash: bytes
    user: str
    uid: int | None
    role: str
    label: str
    made_by: str
    limits: str
    created: float
    expires: float | None = None
    used: float | None = None
    revoked: float | None = None

    def __repr__(self) -> str:
        return f"Token({self.id!r}, {self.user!r}, {self.role!r})"

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "active" if self.expires is None or now < self.expires else "expired"


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    hash: bytes
    token: str
    place: str
    created: float
    expires: float

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self.token!r})"


class CredentialStore:
    """All tokens and sessions. May be used from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file; without one, everything is in memory only."""
        self.lock = threading.RLock()
        self.connection = connect(path)
        self._tokens: dict[str, Token] = {token.id: token for token in self._load("tokens", Token)}
        self._sessions: dict[bytes, Session] = {one.hash: one for one in self._load("sessions", Session)}
        self._changed: dict[str, Token | Session] = {}  # recently used, not written yet
        with suppress(StoreFailing):  # a full disk: the audit log's thread tries again
            self.tidy(time.time())

    def close(self) -> None:
        with self.lock:
            with suppress(StoreFailing):  # when something was used last is no reason to fail
                self.flush()
            self.connection.close()

    # -- tokens -----------------------------------------------------------------------------------

    def make(
        self, user: str, role: str, *, uid: int | None = None, label: str = "", made_by: str = "", limits: str = "",
        expires: float | None = None,
    ) -> tuple[Token, str]:  # fmt: skip
        """A new token, and its text, which is not stored."""
        secret = secrets.token_urlsafe(_SECRET)
        with self.lock, self._writing() as connection:
            id = _new_id(self._tokens)
            token = Token(id, _hash(secret), user, uid, role, label, made_by, limits, time.time(), expires)
            _insert(connection, "tokens", token)
            self._tokens[id] = token
        return token, f"{_PREFIX}_{id}_{secret}"

    def tokens(self) -> list[Token]:
        """All tokens, the newest first; also expired and revoked ones, for a year."""
        return sorted(self._tokens.values(), key=lambda token: -token.created)

    def token(self, id: str) -> Token:
        if (token := self._tokens.get(id)) is None:
            raise NoSuchToken
        return token

    def with_text(self, text: str) -> Token | None:
        """The token with this text, also if it has expired; the time to compare does not tell whether it exists."""
        prefix, _, rest = text.partition("_")
        id, _, secret = rest.partition("_")
        token = self._tokens.get(id) if prefix == _PREFIX else None
        right = hmac.compare_digest(_hash(secret), token.hash if token else _NOBODYS)
        return token if right else None

    def use(self, token: Token) -> Token | None:
        """Note the use of a token; None if it is not active."""
        now = time.time()
        if token.state(now) != "active":
            return None
        if token.used is None or now - token.used > _COARSE:
            with self.lock:
                token = self._tokens[token.id] = replace(self._tokens[token.id], used=now)
                self._changed[token.id] = token
        return token if token.revoked is None else None

    def revoke(self, id: str) -> Token:
        token = self.token(id)
        if token.revoked is not None:
            return token
        token = replace(token, revoked=time.time())
        with self.lock, self._writing() as connection:
            connection.execute("UPDATE tokens SET revoked = ? WHERE id = ?", (token.revoked, id))
            connection.execute("DELETE FROM sessions WHERE token = ?", (id,))
            self._tokens[id] = token
            self._sessions = {hash: one for hash, one in self._sessions.items() if one.token != id}
        return token

    # -- sessions ---------------------------------------------------------------------------------

    def open_session(self, token: Token, place: str) -> tuple[Session, str]:
        secret, now = secrets.token_urlsafe(_SECRET), time.time()
        with self.lock, self._writing() as connection:
            own = sorted(self.sessions_of(token.id), key=lambda session: session.created)
            for former in own[: max(0, len(own) - _MOST_SESSIONS + 1)]:
                self._drop(former, connection)
            id = _new_id(session.id for session in self._sessions.values())
            session = Session(id, _hash(secret), token.id, place, now, _until(token, now))
            _insert(connection, "sessions", session)
            self._sessions[session.hash] = session
        return session, secret

    def sessions_of(self, token: str) -> list[Session]:
        now = time.time()
        return [
            session for session in list(self._sessions.values()) if session.token == token and now < session.expires
        ]

    def session(self, secret: str, place: str) -> tuple[Session, Token] | None:
        """The session with a secret, and its token, if both are valid and the place is that of the login."""
        session = self._sessions.get(_hash(secret))
        return None if session is None or session.place != place else self._used(session)

    def session_with(self, id: str) -> tuple[Session, Token] | None:
        """The session with an id, and its token, if both are valid; for callers who have shown the secret before."""
        found = next((session for session in list(self._sessions.values()) if session.id == id), None)
        return None if found is None else self._used(found)

    def _used(self, session: Session) -> tuple[Session, Token] | None:
        """Note the use of a session, which extends it; None if it is over."""
        now = time.time()
        if now >= session.expires:
            return None
        token = self.use(self._tokens[session.token])
        if token is None:
            return None
        if (until := _until(token, now)) - session.expires > _COARSE:
            with self.lock:
                if session.hash not in self._sessions:
                    return None
                session = self._sessions[session.hash] = replace(session, expires=until)
                self._changed[session.id] = session
        return session, token

    def close_session(self, id: str) -> None:
        with self.lock, self._writing() as connection:
            for session in [one for one in self._sessions.values() if one.id == id]:
                self._drop(session, connection)

    def _drop(self, session: Session, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM sessions WHERE id = ?", (session.id,))
        self._sessions.pop(session.hash, None)
        self._changed.pop(session.id, None)

    def token_of(self, via: str) -> Token | None:
        """The token of a `token ID` or `session ID` that is still valid; None for any other."""
        kind, _, id = via.partition(" ")
        now = time.time()
        if kind == "session":
            found = next((session for session in list(self._sessions.values()) if session.id == id), None)
            id = found.token if found is not None and now < found.expires else ""
        token = self._tokens.get(id) if kind in ("token", "session") else None
        return token if token is not None and token.state(now) == "active" else None

    # -- the file ---------------------------------------------------------------------------------

    def flush(self) -> None:
        with self.lock:
            changed, self._changed = self._changed, {}
            if not changed:
                return
            with self._writing() as connection:
                for one in changed.values():
                    if isinstance(one, Token):
                        connection.execute("UPDATE tokens SET used = ? WHERE id = ?", (one.used, one.id))
                    else:
                        connection.execute("UPDATE sessions SET expires = ? WHERE id = ?", (one.expires, one.id))

    def tidy(self, now: float) -> None:
        with self.lock, self._writing() as connection:
            for session in [one for one in self._sessions.values() if now >= one.expires]:
                self._drop(session, connection)
            for token in list(self._tokens.values()):
                over = min(token.revoked or now, token.expires or now)
                if now - over > _FORGOTTEN:
                    connection.execute("DELETE FROM sessions WHERE token = ?", (token.id,))
                    connection.execute("DELETE FROM tokens WHERE id = ?", (token.id,))
                    del self._tokens[token.id]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; a failure to write becomes `StoreFailing`."""
        try:
            with self.connection:
                yield self.connection
        except sqlite3.Error as error:
            raise StoreFailing(f"access.db cannot be written ({error}); free some space, and try again") from error

    def _load(self, table: str, kind: Any) -> list[Any]:
        names = ", ".join(kind.__dataclass_fields__)
        try:
            return [kind(*row) for row in self.connection.execute(f"SELECT {names} FROM {table}")]
        except sqlite3.Error as error:
            raise UserError(f"access.db is damaged ({error}); move it away, and make new tokens") from error


def _new_id(taken: Any) -> str:
    taken = set(taken)
    while (id := "".join(secrets.choice(_LETTERS) for _ in range(8))) in taken:
        continue
    return id


def _insert(connection: sqlite3.Connection, table: str, row: Token | Session) -> None:
    names = list(row.__dataclass_fields__)
    marks = ", ".join("?" for _ in names)
    values = [getattr(row, name) for name in names]
    connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)


def _until(token: Token, now: float) -> float:
    """When a session that is used now ends: never later than its token."""
    return min(now + _SESSION_SECONDS, token.expires or now + _SESSION_SECONDS)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def connect(path: Path | None) -> sqlite3.Connection:
    """Open the file with mode 0600; SQLite gives the same mode to its journal."""
    try:
        if path is not None:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            connection = open_database(path, timeout=10.0, check_same_thread=False)
        else:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.execute("PRAGMA secure_delete = ON")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            schema = Path(__file__).with_name("access.sql").read_text()
            connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {VERSION}; COMMIT;")
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"{path} cannot be used ({error}); move it away, and make new tokens") from error
    if version > VERSION:
        raise UserError(f"{path} was written by a newer version of gpuyard; use that version")
    return connection
