"""What a subscription names: events and destination URLs, which hold secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qs, unquote, urlsplit

from gpuyard.errors import UserError, suggest

START, FINISH, FAILURE, TIMEOUT, LONG_WAIT = EVENTS = ("start", "finish", "failure", "timeout", "long-wait")
DEFAULT_EVENTS = (FINISH, FAILURE, TIMEOUT)
TASKS = "tasks"  # not an event: tell of each task of an array by itself, not once of all
TEST = "test"
ALL, NONE = "all", "none"
REMOVED = "its subscription was removed"  # why a delivery was dropped
OF_STATE = {
    "succeeded": FINISH, "failed": FAILURE, "interrupted": FAILURE, "oom": FAILURE, "cancelled": FAILURE,
    "timeout": TIMEOUT,
}  # fmt: skip
"""The event of each final state; a cancellation counts only if another user did it."""
LONG_WAIT_SECONDS = 3600.0  # seconds that are a long wait, by default
MOST_DESTINATIONS = 8  # different places that one process sends to
_NAME = re.compile(r"(?!\d+$)[\w.+-]{1,60}")


def check_events(words: Iterable[str]) -> tuple[str, ...]:
    """Events, each once and in their order; `all` is all of them."""
    given = {word.strip().lower().replace("_", "-") for word in words} - {""}
    for word in sorted(given):
        if word not in (*EVENTS, TASKS, ALL):
            known = ", ".join((*EVENTS, TASKS, ALL))
            raise UserError(f"there is no event '{word}'{suggest(word, (*EVENTS, TASKS)) or f'; there are {known}'}")
    if ALL in given:
        given |= set(EVENTS)
    found = tuple(word for word in (*EVENTS, TASKS) if word in given)
    if not set(found) - {TASKS}:
        raise UserError(f"say of what to tell: some of {', '.join(EVENTS)}")
    return found


def check_name(name: str) -> str:
    """A name for a subscription that cannot be mistaken for anything else."""
    if name in (ALL, NONE) or not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be the name of a subscription; take letters, digits, dots and dashes, and not only "
            f"digits, nor {ALL} or {NONE}"
        )
    return name


LOCAL = frozenset(("dbus", "kde", "qt", "glib", "gio", "gnome", "macosx", "windows", "syslog", "blink1", "file"))
"""Schemes that stay on this machine, on a desktop or in its log: not for a daemon."""
MAIL = "mail"  # the scheme of a bare address, for which the setting `mail` names the server
_HOSTED = frozenset(
    ("mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms", "gotify", "gotifys", "http", "https")
)
"""Schemes that have a host where one is expected; elsewhere a secret may stand in its place."""
_MAIL = ("mailto", "mailtos")
_MOST = 4000
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+-]*)://\S")
_ADDRESS = re.compile(r"[\w.!#$%&'*+/=^`{|}~-]+@(?:[A-Za-z0-9-]+\.)*[A-Za-z0-9-]+")
_SHORT = 3  # texts of a URL that are shorter can be found anywhere, and are no secrets


def is_url(text: str) -> bool:
    """Whether a text is a URL, and not the name of a subscription."""
    return "@" in text or ":" in text


def check_url(text: str, *, mail: bool) -> str:
    """A URL as stored; else raises. `mail` tells whether a bare address is enough."""
    text = text.strip()
    address = text.removeprefix("mailto:")
    if _ADDRESS.fullmatch(address):
        if not mail:
            raise UserError(
                "this daemon knows no mail server (setting mail), so an address is not enough; write for example "
                "mailtos://USER:PASSWORD@smtp.example.org?to=ADDRESS"
            )
        return f"{MAIL}://{address}"
    found = _SCHEME.match(text)
    if found is None or len(text) > _MOST or not text.isprintable():
        raise UserError(
            "this is not where a notification can go; write a URL such as mailtos://USER:PASSWORD@HOST?to=ADDRESS, "
            "slack://A/B/C, dingtalk://SECRET@TOKEN or jsons://HOST/PATH"
        )
    scheme = found[1].lower()
    if scheme == MAIL:
        raise UserError("write a bare address, as in ann@example.org, or a whole URL, as in mailtos://...")
    if scheme in LOCAL:
        raise UserError(f"{scheme}:// stays on the daemon's machine, where nobody sees it; take one of the network")
    return scheme + text[len(scheme) :]


def mask(url: str) -> str:
    """What may be shown of a URL: its scheme, and its host where that is no secret."""
    scheme, _, rest = url.partition("://")
    if scheme == MAIL:
        return rest
    if scheme not in _HOSTED:
        return f"{scheme}://***"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return f"{scheme}://***"
    secret = "***@" if parts.username or parts.password else ""
    to = ", ".join(parse_qs(parts.query).get("to", ())) if scheme in _MAIL else ""
    return f"{scheme}://{secret}{host}" + (f":{port}" if port else "") + (f" to {to}" if to else "")


def scrub(text: str, url: str) -> str:
    """A text without any part of a URL that may be a secret."""
    scheme, _, rest = url.partition("://")
    if scheme == MAIL:
        return text
    shown = mask(url)
    pieces = {piece for part in re.split(r"[/?&=:@,;#]", rest) for piece in (part, unquote(part))}
    secrets = sorted((p for p in pieces if len(p) >= _SHORT and p not in shown), key=len, reverse=True)
    for secret in secrets:
        text = text.replace(secret, "***")
    return text.replace(url, shown)
