"""Client of the Kubernetes API:

JSON over one open connection per thread, watches, and reflectors that list and watch a kind.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes.kubeconfig import Connection

try:
    import orjson
except ImportError:  # the extra [kubernetes] has it; without it lists of thousands of pods take longer to read
    orjson = None  # type: ignore[assignment]

Object = dict[str, Any]
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
_PAGE = 500  # objects of a list at once
_QUIET = 330.0  # seconds without a byte after which a watch counts as dead: servers close them, or send bookmarks


class ApiError(GpuyardError):
    """The API server refused."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message or reason} ({status})")
        self.status, self.reason, self.message = status, reason, message

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def gone(self) -> bool:
        """Whether the server has forgotten the requested version: list again."""
        return self.status == 410 or self.reason in ("Expired", "Gone")

    @property
    def later(self) -> bool:
        return self.status == 429 or self.status >= 500


class Unreachable(GpuyardError):
    """The API server does not answer."""


class Change(NamedTuple):
    kind: str  # `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`
    object: Object


class Listed(NamedTuple):
    items: list[Object]
    version: str


def open_link(to: Connection, timeout: float) -> http.client.HTTPConnection:
    if not to.tls:
        return http.client.HTTPConnection(to.host, to.port, timeout=timeout)
    return http.client.HTTPSConnection(to.host, to.port, timeout=timeout, context=to.context)


class Api:
    """Calls to one API server. Threads may share it: each has a connection of its own."""

    def __init__(self, connection: Connection, *, timeout: float = 10.0) -> None:
        self.connection, self._timeout = connection, timeout
        self._local = threading.local()
        self._links: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections of all threads; a later call opens a new one."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    # -- single calls -------------------------------------------------------------------------------

    def get(self, path: str, **params: Any) -> Object:
        return self.call("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any], **params: Any) -> Object:
        return self.call("POST", path, body, params)

    def put(self, path: str, body: Mapping[str, Any], **params: Any) -> Object:
        return self.call("PUT", path, body, params)

    def patch(self, path: str, body: Mapping[str, Any], kind: str = MERGE, **params: Any) -> Object:
        return self.call("PATCH", path, body, params, kind)

    def delete(self, path: str, body: Mapping[str, Any] | None = None, **params: Any) -> Object:
        """Delete an object; `gracePeriodSeconds`, `propagationPolicy` and `dryRun` may follow."""
        return self.call("DELETE", path, body, params)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Object:
        """One request. `ApiError` where the server refuses, `Unreachable` where there is no answer."""
        content = None if body is None else _dumps(body)
        status, answer = self._sent(method, _target(path, params), content, kind)
        if status == 401:  # tokens expire: once more with a new one
            self.connection.refused()
            status, answer = self._sent(method, _target(path, params), content, kind)
        found = _parsed(answer)
        if status >= 400:
            raise _refusal(status, found, answer)
        return found

    def _sent(self, method: str, target: str, content: bytes | None, kind: str) -> tuple[int, bytes]:
        """Send on this thread's connection, or on a new one if the server closed that while it was idle."""
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        for link in ([kept] if kept is not None else []) + [None]:
            fresh = link is None
            found = link or self._kept(self._timeout)
            try:
                status, answer = self._exchange(found, method, target, content, kind)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self._drop(found)
                if fresh or (method == "POST" and not isinstance(error, http.client.RemoteDisconnected)):
                    raise Unreachable(f"{self.connection.server} hung up ({error})") from error
            except (OSError, http.client.HTTPException) as error:
                self._drop(found)
                raise self._unreachable(error) from error
            else:
                self._local.connection = found
                return status, answer
        raise Unreachable(f"{self.connection.server} hung up")

    def _exchange(
        self, link: http.client.HTTPConnection, method: str, target: str, content: bytes | None, kind: str
    ) -> tuple[int, bytes]:
        link.request(method, self.connection.path + target, body=content, headers=self._headers(content, kind))
        with link.getresponse() as answer:
            return answer.status, answer.read()

    def _headers(self, content: bytes | None, kind: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "gpuyard"}
        if content is not None:
            headers["Content-Type"] = kind
        if authorization := self.connection.authorization():
            headers["Authorization"] = authorization
        return headers

    def _link(self, timeout: float) -> http.client.HTTPConnection:
        return open_link(self.connection, timeout)

    def _kept(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that `close` closes."""
        link = self._link(timeout)
        with self._lock:
            self._links.append(link)
        return link

    def _drop(self, link: http.client.HTTPConnection) -> None:
        link.close()
        self._local.connection = None
        with self._lock:
            self._links = [one for one in self._links if one is not link]

    def _unreachable(self, error: Exception) -> GpuyardError:
        server = self.connection.server
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unreachable(f"{server} shows a certificate that the kubeconfig does not trust: {error.reason}")
        said = "it takes too long" if isinstance(error, socket.timeout | TimeoutError) else error
        return Unreachable(f"{server} does not answer ({said})")

    # -- many objects -------------------------------------------------------------------------------

    def list(self, path: str, **params: Any) -> Listed:
        items, going_on = list[Object](), ""
        while True:
            more = {"continue": going_on} if going_on else {}
            page = self.get(path, limit=_PAGE, **params, **more)
            items += page.get("items") or ()
            meta = page.get("metadata", {})
            going_on = meta.get("continue", "")
            if not going_on:
                return Listed(items, str(meta.get("resourceVersion", "")))

    def watch(self, path: str, version: str, *, seconds: int = 300, **params: Any) -> Watch:
        asked = {**params, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true",
                 "timeoutSeconds": seconds}  # fmt: skip
        link = self._link(self._timeout)
        try:
            link.request("GET", self.connection.path + _target(path, asked), headers=self._headers(None, ""))
            answer = link.getresponse()
            if answer.status >= 400:
                raise _refusal(answer.status, _parsed(text := answer.read()), text)
            if link.sock is not None:
                link.sock.settimeout(_QUIET)
        except (OSError, http.client.HTTPException) as error:
            link.close()
            raise self._unreachable(error) from error
        except ApiError:
            link.close()
            raise
        return Watch(self, link, answer)


class Watch:
    """A stream of changes; when the server ends it, another one continues from the last version."""

    def __init__(self, api: Api, link: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._api, self._link, self._answer = api, link, answer
        self._socket = link.sock

    def __iter__(self) -> Iterator[Change]:
        try:
            while line := self._answer.readline():
                found = _loads(line)
                if found["type"] == "ERROR":
                    status = found["object"]
                    raise ApiError(int(status.get("code", 500)), status.get("reason", ""), status.get("message", ""))
                yield Change(found["type"], found["object"])
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # a stream that is cut, here or there: AttributeError is http.client's word for one that we closed
            raise Unreachable(f"the stream of {self._api.connection.server} was cut ({error})") from error
        finally:
            self._link.close()

    def close(self) -> None:
        """End it, from any thread."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself


def _target(path: str, params: Mapping[str, Any] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _parsed(answer: bytes) -> Object:
    try:
        found = _loads(answer) if answer else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(status: int, found: Object, answer: bytes) -> ApiError:
    reason = str(found.get("reason") or http.client.responses.get(status, "refused"))
    return ApiError(status, reason, str(found.get("message") or answer[:200].decode(errors="replace")))


def _dumps(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value) if orjson else json.dumps(value, separators=(",", ":")).encode()


def _loads(text: bytes) -> Any:
    return orjson.loads(text) if orjson else json.loads(text)


# -- paths --------------------------------------------------------------------------------------------


def core(kind: str, namespace: str = "", name: str = "", *below: str) -> str:
    """Path of an object in the core group: `core("pods", "default", "a", "binding")`."""
    return _path("/api/v1", kind, namespace, name, *below)


def group(group: str, kind: str, namespace: str = "", name: str = "", *below: str) -> str:
    """Path of an object in another group: `group("coordination.k8s.io/v1", "leases", "kube-system")`."""
    return _path(f"/apis/{group}", kind, namespace, name, *below)


def _path(root: str, kind: str, namespace: str, name: str, *below: str) -> str:
    parts = [root, *(("namespaces", quote(namespace)) if namespace else ()), kind]
    return "/".join([*parts, *(quote(part) for part in (name, *below) if part)])


log = logging.getLogger("gpuyard.kubernetes")
_FIRST, _LONGEST = 0.1, 5.0  # seconds until a retry


class Relisted(NamedTuple):
    kind: str
    objects: list[Any]


class Changed(NamedTuple):
    kind: str
    object: Any


class Gone(NamedTuple):
    kind: str
    object: Any


class Reflector(threading.Thread):
    """Follows one kind of object, and parses objects in its own thread, not in the scheduler's."""

    def __init__(
        self,
        api: Api,
        kind: str,
        path: str,
        read: Callable[[Object], Any],
        send: Callable[[Relisted | Changed | Gone], None],
        resync: float,
    ) -> None:
        super().__init__(name=f"watch {kind}", daemon=True)
        self._api, self._kind, self._path, self._read, self._send = api, kind, path, read, send
        self._resync = resync
        self._stopped = threading.Event()
        self._watch: Watch | None = None
        self._version = ""
        self._listed_at = 0.0
        self.trouble = ""  # the error of the last attempt; empty: none

    def run(self) -> None:
        pause = _FIRST
        while not self._stopped.is_set():
            try:
                if not self._version or time.monotonic() - self._listed_at > self._resync:
                    self._list()
                self._follow()
                pause = _FIRST
            except GpuyardError as error:
                if isinstance(error, ApiError) and error.gone:
                    self._version = ""
                    continue
                self._complain(str(error))
            if self.trouble:
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST)

    def stop(self) -> None:
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()

    def _list(self) -> None:
        found = self._api.list(self._path)
        self._send(Relisted(self._kind, [self._read(one) for one in found.items]))
        self._version, self._listed_at = found.version, time.monotonic()
        self._recovered()

    def _follow(self) -> None:
        left = max(1, int(self._resync - (time.monotonic() - self._listed_at)))
        self._watch = self._api.watch(self._path, self._version, seconds=min(left, 300))
        self._recovered()
        for kind, object in self._watch:
            self._version = object["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self._send(Gone(self._kind, self._read(object)))
            elif kind != "BOOKMARK":
                self._send(Changed(self._kind, self._read(object)))

    def _recovered(self) -> None:
        if self.trouble:
            log.warning("%s are heard of again", self._kind)
            self.trouble = ""

    def _complain(self, trouble: str) -> None:
        if not self.trouble and not self._stopped.is_set():
            log.warning("%s are not heard of: %s; trying again", self._kind, trouble)
        self.trouble = trouble
