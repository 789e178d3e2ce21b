"""What a daemon, or something before it, answers in place of what was asked for."""

from __future__ import annotations

import json

from gpuyard.errors import GpuyardError, UserError
from gpuyard.transport import Answer, NoDaemon

_AWAY = (502, 503, 504)
"""What a proxy answers while the daemon behind it is away."""
_ELSEWHERE = (403, 404, 405, 501)
"""What servers answer that know nothing of our paths; a daemon says so in JSON."""


class Refused(GpuyardError):
    """The daemon said no."""

    def __init__(self, status: int, message: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Invalid(Refused, UserError):
    """The daemon cannot make sense of the request."""


def refusal(answer: Answer, url: str = "", token: bool = False) -> GpuyardError:
    """An answer that is none, as an error; with the daemon's URL if it is elsewhere, and whether a token was sent."""
    text = _detail(answer)
    if url and text is None and answer.status in _AWAY:
        return NoDaemon(f"there is a proxy at {url}, but no daemon behind it answers; see whether it is up there")
    if url and answer.status in _ELSEWHERE and not _is_json(answer):
        return stranger(url)
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "elsewhere")
        return GpuyardError(f"{url or 'the daemon'} sends to {where}; give the address there, if you trust it")
    kind = Invalid if answer.status in (400, 422) else Refused
    return kind(answer.status, _sentence(answer, text, url, token))


def stranger(url: str) -> GpuyardError:
    """Somebody answers, and it is no daemon."""
    return GpuyardError(f"what answers at {url} is not gpuyard; check the host, the port and the path")


def _is_json(answer: Answer) -> bool:
    try:
        json.loads(answer.body)
    except ValueError:
        return False
    return True


def _detail(answer: Answer) -> str | None:
    """The daemon's own sentence."""
    try:
        problem = json.loads(answer.body)
        text = problem.get("detail") or problem.get("title")
    except (ValueError, AttributeError):
        return None
    return text if isinstance(text, str) else None


def _sentence(answer: Answer, text: str | None, url: str, token: bool) -> str:
    if answer.status == 401 and url and token:
        why = text or "it may be over, or revoked"
        return f"{url} does not take this token: {why} (gpuyard login {url} stores another)"
    if answer.status == 401 and url:
        return f"{url} wants to know who you are: gpuyard login {url} stores a token, or set GPUYARD_TOKEN"
    if answer.status == 421:
        return text or (
            f"the daemon at {url} does not go by that name; reach it by another, or let its admin add this one to the "
            "setting allowed_hosts"
        )
    if answer.status == 429:
        seconds = answer.headers.get("retry-after", "")
        wait = f" (try again in {seconds} s)" if seconds.isdigit() else ""
        return f"{text or 'too many requests that failed'}{wait}"
    return text or f"the daemon answered {answer.status}; see its log with gpuyard status"
