"""Admission webhook: adds the variable that names a pod's GPUs."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from gpuyard.errors import UserError
from gpuyard.kubernetes.names import ALIYUN_MEMORY, GPU, GPU_MEMORY, INDICES, SCHEDULER, SEED_MEMORY

VARIABLE = "NVIDIA_VISIBLE_DEVICES"  # GPUs that NVIDIA's container runtime shows a container: indices, or empty
PATH = "/mutate"
_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_DEFAULT = ("", "default-scheduler")  # the API server's default where no scheduler was chosen
_MOST = 16 * 2**20  # bytes of a review: objects are far smaller, with what they were before as well
_HURRY = 10.0  # seconds for a handshake, and for a request that has begun
_IDLE = 120.0  # between requests: API servers hang up after 90, so that we never cut one off
_NOTHING = f"there is nothing here; reviews are sent to {PATH}\n"
_GRACE = 5.0  # seconds at the end for what has been asked already

log = logging.getLogger(__name__)
Object = dict[str, Any]


class BadReview(UserError):
    """This is no AdmissionReview."""


@dataclass(frozen=True, slots=True)
class Rules:
    scheduler: str = SCHEDULER
    set_scheduler: bool = False  # whether pods that declare GPU memory, and no scheduler, become ours


# -- what is said to a review -----------------------------------------------------------------------------


def answer(review: Any, rules: Rules) -> Object:
    """The review with our response: every pod is allowed; ours get what they lack."""
    request = _request(review)
    response: Object = {"uid": request["uid"], "allowed": True}
    if _is_new_pod(request):
        if not (pod := _mapping(request, "object")):
            raise BadReview("the review's request has no object")
        if changes := patch(pod, rules):
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(changes).encode()).decode()
            log.info("%s: %s", _named(request, pod), ", ".join(f"{one['op']} {one['path']}" for one in changes))
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


def patch(pod: Object, rules: Rules) -> list[Object]:
    """Changes to a pod as a JSON patch; none for pods of other schedulers, or that share no GPU."""
    spec = _mapping(pod, "spec")
    changes: list[Object] = []
    scheduler = spec.get("schedulerName", "")
    if rules.set_scheduler and scheduler in _DEFAULT and not spec.get("nodeName") and _said(pod, GPU_MEMORY):
        changes.append({"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler})
        scheduler = rules.scheduler
    if scheduler == rules.scheduler and _shares(pod):
        for kind in ("initContainers", "containers"):
            for position, container in enumerate(_list(spec, kind)):
                changes += _variable(container, f"/spec/{kind}/{position}/env")
    return changes


def _request(review: Any) -> Object:
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise BadReview("this is no AdmissionReview; only what an API server asks before it admits pods is answered")
    if review.get("apiVersion") not in _VERSIONS:
        raise BadReview(f"the review is neither {' nor '.join(_VERSIONS)}; name these in admissionReviewVersions")
    request = _mapping(review, "request")
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        raise BadReview("the review's request has no uid")
    return request


def _is_new_pod(request: Object) -> bool:
    """Whether a review creates a pod: updates cannot change a container's environment."""
    kind = _mapping(request, "kind")
    is_pod = not kind.get("group") and kind.get("kind") == "Pod"
    return is_pod and request.get("operation") == "CREATE" and not request.get("subResource")


def _shares(pod: Object) -> bool:
    """Whether a pod wants a part of a GPU; NVIDIA's device plugin tells pods with whole GPUs which ones they have."""
    spec = _mapping(pod, "spec")
    containers = [*_list(spec, "containers"), *_list(spec, "initContainers")]
    if any(_asks(container, GPU) for container in containers):
        return False
    said = _said(pod, GPU_MEMORY) or _said(pod, SEED_MEMORY)
    return bool(said) or any(_asks(container, ALIYUN_MEMORY) for container in containers)


def _said(pod: Object, key: str) -> Any:
    meta = _mapping(pod, "metadata")
    return _mapping(meta, "annotations").get(key) or _mapping(meta, "labels").get(key)


def _asks(container: Object, resource: str) -> bool:
    wanted = _mapping(container, "resources")
    return any(str(_mapping(wanted, kind).get(resource, 0)) != "0" for kind in ("limits", "requests"))


def _variable(container: Object, path: str) -> Iterator[Object]:
    env = _list(container, "env")
    if any(one.get("name") == VARIABLE for one in env):
        return
    line = {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDICES}']"}}}
    yield {"op": "add", "path": f"{path}/-", "value": line} if env else {"op": "add", "path": path, "value": [line]}


def _mapping(thing: Object, key: str) -> Object:
    found = thing.get(key)
    if not isinstance(found, dict | None):
        raise BadReview(f"the review's '{key}' is no object")
    return found or {}


def _list(thing: Object, key: str) -> list[Object]:
    found = thing.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadReview(f"the review's '{key}' is no list of objects")
    return found


def _named(request: Object, pod: Object) -> str:
    meta = _mapping(pod, "metadata")
    return f"{request.get('namespace', '')}/{meta.get('name') or meta.get('generateName', '')}"


# -- how it is reached ------------------------------------------------------------------------------------


class Certificate:
    """A certificate with its key; new connections use the files as they are then."""

    def __init__(self, file: str, key: str) -> None:
        self._files = (file, key)
        self._lock = threading.Lock()
        self._seen, self._context = self._look(), self._loaded()

    def context(self) -> ssl.SSLContext:
        with self._lock:
            if (seen := self._look()) != self._seen:
                self._seen = seen
                try:
                    self._context = self._loaded()
                    log.info("there is a new certificate in %s", self._files[0])
                except OSError as error:  # perhaps only one of the two has been replaced so far
                    log.warning("the new certificate in %s cannot be used, the former one stays: %s",
                                self._files[0], error)  # fmt: skip
            return self._context

    def _look(self) -> list[tuple[int, ...]]:
        found = list[tuple[int, ...]]()
        for path in self._files:
            try:
                stat = os.stat(path)
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError:
                found.append(())
        return found

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._files, password=lambda: b"")  # there is no terminal to type one
        return context


class Webhook(socketserver.ThreadingTCPServer):
    """Answers reviews, with a thread for each connection; as a context manager, it listens until the exit."""

    allow_reuse_address = True
    daemon_threads = True  # those that wait for a next request need not end before we do
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], certificate: Certificate, rules: Rules) -> None:
        self.certificate, self.rules = certificate, rules
        self._quiet = threading.Condition()
        self.working = 0  # requests that are being answered
        try:
            self.address_family, *_, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            super().__init__(where, _Handler)  # type: ignore[arg-type]  # of IPv6, an address has four parts
        except OSError as error:
            said = error.strerror or error
            raise UserError(f"nobody can listen at {address[0]}:{address[1]} ({said}); choose another one") from None
        self.port: int = self.server_address[1]

    def __enter__(self) -> Webhook:
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        with self._quiet:
            self._quiet.wait_for(lambda: not self.working, _GRACE)
        self.server_close()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The server does not end within this context."""
        with self._quiet:
            self.working += 1
        try:
            yield
        finally:
            with self._quiet:
                self.working -= 1
                self._quiet.notify_all()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the connection's own thread, where a slow client delays no other."""
        request.settimeout(_HURRY)
        with self.certificate.context().wrap_socket(request, server_side=True) as secured:
            _Handler(secured, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log why a connection ended, unless it was merely lost."""
        error = sys.exc_info()[1]
        if isinstance(error, ssl.SSLError):
            log.warning("%s and we do not agree on TLS (%s): does it trust our certificate?", client_address[0],
                        error.reason)  # fmt: skip
        elif not isinstance(error, OSError):
            log.error("a connection ended in a mistake of ours", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: Webhook
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gpuyard", ""
    timeout = _IDLE
    wbufsize = -1  # an answer is one write, not one for each of its lines
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        log.debug(format, *arguments)

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._send(200, "ok\n")
        else:
            self._send(404, _NOTHING)

    def do_POST(self) -> None:
        with self.server.at_work():
            if self.path.partition("?")[0] != PATH:
                self.close_connection = True  # what was sent has not been read
                self._send(404, _NOTHING)
                return
            try:
                found = answer(self._review(), self.server.rules)
            except BadReview as error:
                log.warning("%s: %s", self.client_address[0], error)
                self._send(400, f"{error}\n")
            else:
                self._send(200, json.dumps(found), "application/json")

    def _review(self) -> Any:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= _MOST:
            self.close_connection = True
            raise BadReview(f"a review has a Content-Length, of at most {_MOST:,} bytes")
        self.connection.settimeout(_HURRY)
        content = self.rfile.read(length)
        self.connection.settimeout(_IDLE)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise BadReview("the review is no JSON") from None

    def _send(self, status: int, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()
