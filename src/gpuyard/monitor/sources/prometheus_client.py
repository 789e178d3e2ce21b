"""HTTP client of Prometheus, with retries and error messages for people."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    import httpx

PATIENCE = 5.0  # seconds for which it is asked again in all, while it does not answer
TIMEOUT = 10.0
_LONGEST = 6  # times as long the whole of an answer may take, of which a part must come in time
_LARGEST = 256 * 2**20  # bytes of an answer; we ask for some megabytes at once
_HASTE = 2.0  # seconds for an answer, once the patience is gone
_HOPELESS = 3  # failures in a row after which nothing more is asked, once the patience is gone
_TOO_MUCH = ("too many samples", "maximum resolution", "too many points")


class Unanswered(GpuyardError):
    """Prometheus does not answer."""


class TooMuch(GpuyardError):
    """Prometheus will not tell as much at once."""


class Prometheus:
    """A server with Prometheus's API, and the patience with it: one of these for each read."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        patience: float = PATIENCE,
        timeout: float = TIMEOUT,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        import httpx

        self.name = shown(url)
        self.warnings: list[str] = []  # what Prometheus itself warned of
        self._patience, self._timeout, self._sleep = patience, timeout, sleep
        self._failures = 0
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            root = base(url)
            # certificates take long to load, and without TLS there are none to look at: redirects are not followed
            self._client = httpx.Client(base_url=root, headers=headers, verify=root.startswith("https:"))
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"'{url}' is no URL of a Prometheus ({error}); write for example {_EXAMPLE}") from None

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, path: str, params: Mapping[str, Any]) -> Any:
        """The data of an answer. `Unanswered` if there is none within the patience, `UserError` if refused."""
        pause = 0.1
        while True:
            if self._patience <= 0 and self._failures >= _HOPELESS:
                raise Unanswered(f"{self.name} has not answered lately")
            begun = time.monotonic()
            try:
                found = self._once(path, params)
                self._failures = 0
                return found
            except Unanswered:
                self._failures += 1
                self._patience -= time.monotonic() - begun + pause
                if self._patience <= 0:
                    raise
            self._sleep(pause)
            pause = min(2 * pause, 2.0)

    def _once(self, path: str, params: Mapping[str, Any]) -> Any:
        import httpx

        timeout = self._timeout if self._patience > 0 else _HASTE
        try:
            with self._client.stream("GET", f"api/v1/{path}", params=dict(params), timeout=timeout) as answer:
                return self._read(answer, _found(self._body(answer)), path)
        except httpx.HTTPError as error:
            if isinstance(_root(error), ssl.SSLCertVerificationError):
                raise UserError(
                    f"{self.name} shows a certificate that is not trusted ({_root(error)}); name the one to trust in "
                    f"SSL_CERT_FILE"
                ) from error
            raise Unanswered(f"{self.name} does not answer ({_said(error)})") from error

    def _body(self, answer: httpx.Response) -> bytes:
        end, parts, size = time.monotonic() + _LONGEST * self._timeout, list[bytes](), 0
        for part in answer.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > _LARGEST:
                raise UserError(f"{self.name} answers with more than {_LARGEST >> 20} MiB at once; ask for less time")
            if time.monotonic() > end:
                raise Unanswered(f"{self.name} does not answer (it takes too long)")
        return b"".join(parts)

    def _read(self, answer: httpx.Response, found: Any, path: str) -> Any:
        told = found if isinstance(found, dict) and "status" in found else {}
        if answer.status_code in (401, 403):
            raise UserError(_LOCKED.format(name=self.name, code=answer.status_code))
        if answer.is_redirect:
            moved = shown(answer.headers.get("Location", "")).partition("/api/v1")[0]
            raise UserError(f"{self.name} is elsewhere now: {moved}; say so with --url")
        if answer.status_code == 429 or answer.status_code >= 500:
            raise Unanswered(f"{self.name} cannot answer ({told.get('error') or answer.status_code})")
        if told.get("status") == "error":
            error = str(told.get("error", ""))
            raise (
                TooMuch(error)
                if any(text in error for text in _TOO_MUCH)
                else UserError(f"{self.name} refuses the question: {error}")
            )
        if answer.status_code != 200 or told.get("status") != "success" or not _is_sound(path, told.get("data")):
            raise UserError(
                f"what answers at {self.name} is no Prometheus ({answer.status_code}); say where it is with --url"
            )
        warnings = told.get("warnings")
        said = [str(text) for text in warnings] if isinstance(warnings, list) else []
        self.warnings += [text for text in said if text not in self.warnings]
        return told["data"]


_EXAMPLE = "http://localhost:9090"
_LOCKED = (
    "{name} does not let you in ({code}); put a token into GPUYARD_PROMETHEUS_TOKEN, or a name and a password into the "
    "URL, as in https://name:password@host"
)


def base(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"'{shown(url)}' is no URL of a Prometheus; write for example {_EXAMPLE}")
    path = parts.path.rstrip("/").removesuffix("/api/v1").removesuffix("/graph")
    return urlunsplit((parts.scheme, parts.netloc, f"{path}/", "", ""))


def shown(url: str) -> str:
    """A URL without its secrets."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def _found(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_sound(path: str, data: Any) -> bool:
    """Whether an answer has the form of Prometheus's: labels of series, and their values."""
    try:
        if path == "series":
            return all(isinstance(text, str) for labels in data for text in labels.values())
        for one in data["result"]:
            if not all(isinstance(text, str) for text in one["metric"].values()):
                return False
            for at, text in one["values"]:
                float(at), float(text)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True


def _root(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _said(error: Exception) -> str:
    import httpx

    return "it takes too long" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
