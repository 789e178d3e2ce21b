"""Connection to a cluster: from a kubeconfig, or from inside a pod."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpuyard.errors import UserError

_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FRESH = 60.0  # seconds for which a token that was read or made is good
_EXEC_TIMEOUT = 60.0


class Connection:
    """An API server and how to talk to it; `authorization()` is called for every request, since tokens expire."""

    def __init__(
        self,
        server: str,
        *,
        context: ssl.SSLContext | None = None,
        token: str = "",
        token_file: Path | None = None,
        command: Mapping[str, Any] | None = None,
        basic: str = "",
        namespace: str = "default",
        in_pod: bool = False,
    ) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"'{server}' is no address of an API server; it looks like https://host:6443")
        self.server, self.host, self.tls = server.rstrip("/"), parts.hostname, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/")
        self.context = context
        self.namespace, self.in_pod = namespace, in_pod
        self._token, self._token_file, self._command, self._basic = token, token_file, command, basic
        self._read_at = -_FRESH

    def authorization(self) -> str:
        """The `Authorization` header; empty where a certificate identifies us."""
        if self._basic:
            return f"Basic {self._basic}"
        if (self._token_file or self._command) and time.monotonic() - self._read_at > _FRESH:
            self._token = _read_token(self._token_file) if self._token_file else _run(self._command or {})
            self._read_at = time.monotonic()
        return f"Bearer {self._token}" if self._token else ""

    def refused(self) -> None:
        """The token was refused: get a new one for the next request."""
        self._read_at = -_FRESH


def connect(kubeconfig: str | Path | None = None, context: str | None = None) -> Connection:
    """The cluster of a kubeconfig (`$KUBECONFIG`, `~/.kube/config`); without one, that of the pod we run in."""
    named = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG", "")
    paths = [Path(text).expanduser() for text in named.split(os.pathsep) if text]
    if not paths and (usual := Path("~/.kube/config").expanduser()).is_file():
        paths = [usual]
    if paths:
        return _from_files(paths, context)
    if (_POD / "token").is_file() and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _from_pod()
    raise UserError("there is no cluster to talk to: name a kubeconfig with --kubeconfig, or set KUBECONFIG")


def _from_pod() -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    context = ssl.create_default_context(cafile=str(_POD / "ca.crt"))
    namespace = (_POD / "namespace").read_text().strip() if (_POD / "namespace").is_file() else "default"
    shown = f"[{host}]" if ":" in host else host
    return Connection(
        f"https://{shown}:{port}", context=context, token_file=_POD / "token", namespace=namespace, in_pod=True
    )


def _from_files(paths: list[Path], context: str | None) -> Connection:
    config: dict[str, Any] = {"clusters": [], "users": [], "contexts": []}
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no kubeconfig {path}")
        try:
            found = yaml.safe_load(path.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is no kubeconfig: {str(error).splitlines()[0]}") from None
        if not isinstance(found, dict):
            raise UserError(f"{path} is no kubeconfig: it has no clusters, users and contexts")
        for kind in ("clusters", "users", "contexts"):
            known = {one.get("name") for one in config[kind]}
            rows = _rows(found, kind, path)
            config[kind] += [{**one, "_at": path.parent} for one in rows if one.get("name") not in known]
        config.setdefault("current-context", found.get("current-context"))
    name = context or config.get("current-context")
    chosen = _named(config, "contexts", name, paths[0])["context"]
    cluster = _named(config, "clusters", chosen.get("cluster"), paths[0])
    user = _named(config, "users", chosen.get("user"), paths[0]) if chosen.get("user") else {"user": {}, "_at": Path()}
    return _connection(cluster, user, chosen.get("namespace") or "default")


def _rows(found: Mapping[str, Any], kind: str, path: Path) -> list[dict[str, Any]]:
    rows, one = found.get(kind) or [], kind[:-1]
    for row in rows if isinstance(rows, list) else [None]:
        content = row.get(one) if isinstance(row, dict) else None
        if kind == "users" and content is None and isinstance(row, dict):
            continue  # anonymous
        if not isinstance(content, dict) or (kind == "clusters" and not isinstance(content.get("server"), str)):
            raise UserError(f"{path} is no kubeconfig: what it says of its {kind} makes no sense")
    return list(rows)


def _named(config: Mapping[str, Any], kind: str, name: str | None, path: Path) -> dict[str, Any]:
    found: dict[str, Any] | None = next((one for one in config[kind] if one.get("name") == name), None)
    if found is None:
        known = ", ".join(str(one.get("name")) for one in config[kind]) or "none"
        raise UserError(f"{path} has no {kind[:-1]} '{name}'; it has {known}")
    return found


def _connection(cluster: dict[str, Any], user: dict[str, Any], namespace: str) -> Connection:
    server, account = cluster["cluster"], user.get("user") or {}
    try:
        context = _tls(server, account, cluster["_at"], user["_at"]) if server["server"].startswith("https:") else None
    except (OSError, ssl.SSLError, ValueError) as error:
        raise UserError(f"the certificates of the kubeconfig cannot be used: {error}") from None
    basic = ""
    if account.get("username"):
        basic = base64.b64encode(f"{account['username']}:{account.get('password', '')}".encode()).decode()
    token_file = Path(user["_at"], account["tokenFile"]) if account.get("tokenFile") else None
    return Connection(
        server["server"], context=context, token=account.get("token", ""), token_file=token_file,
        command=account.get("exec"), basic=basic, namespace=namespace,
    )  # fmt: skip


def _tls(server: Mapping[str, Any], account: Mapping[str, Any], at: Path, user_at: Path) -> ssl.SSLContext:
    if data := server.get("certificate-authority-data"):
        context = ssl.create_default_context(cadata=_decoded(data).decode())
    elif name := server.get("certificate-authority"):
        context = ssl.create_default_context(cafile=str(Path(at, name)))
    else:
        context = ssl.create_default_context()
    if server.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if account.get("client-certificate-data") or account.get("client-certificate"):
        with tempfile.TemporaryDirectory() as folder:  # ssl reads certificates from files only
            files = []
            for key in ("client-certificate", "client-key"):
                data = account.get(f"{key}-data")
                path = Path(folder, key) if data else Path(user_at, account.get(key, ""))
                if data:
                    path.touch(mode=0o600)
                    path.write_bytes(_decoded(data))
                files.append(str(path))
            context.load_cert_chain(*files)
    return context


def _decoded(data: str) -> bytes:
    return base64.b64decode("".join(data.split()), validate=True)


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UserError(f"the token in {path} cannot be read: {error.strerror}") from None


def _run(command: Mapping[str, Any]) -> str:
    environment = {**os.environ, **{one["name"]: one["value"] for one in command.get("env") or []}}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(
        {"apiVersion": command.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    )
    words = [command["command"], *(command.get("args") or [])]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, timeout=_EXEC_TIMEOUT, check=True)
        status = json.loads(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise UserError(f"{words[0]}, which the kubeconfig names, gave no token: {error}") from None
    return str(status.get("token", ""))
