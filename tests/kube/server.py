"""A real etcd and kube-apiserver 1.20 on loopback, and kube-scheduler where a test wants it; there is no kubelet.

`build-apiserver.sh` beside this file makes the programs from Debian's source package.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes.api_client import Api, ApiError, Object, core
from gpuyard.kubernetes.kubeconfig import Connection, connect
from tests.kube.processes import free_port, kill, spawn
from tests.yard import PATIENCE

VERSION = "1.20.2"
ADMIN = "admin"
USERS = {ADMIN: "system:masters", "ann": "people", "bob": "people", "nobody": ""}
"""Who has a token from the start, and in what group. Service accounts get theirs when they are asked for."""
_ACCOUNT = "system:serviceaccount:"


def binary(name: str) -> Path:
    """A program of Kubernetes; without it the test is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = Path(os.environ.get("GPUYARD_KUBE_BIN") or cache / "gpuyard-test" / f"kube-{VERSION}")
    if not os.access(folder / name, os.X_OK):
        pytest.skip(f"no {name} in {folder}; bash tests/kube/build-apiserver.sh builds it, once, in about five minutes")
    return folder / name


def etcd() -> str:
    """The store of the API server; without it the test is skipped."""
    found = shutil.which("etcd")
    if found is None:
        pytest.skip("no etcd; apt-get install -y --no-install-recommends etcd-server")
    return found


class ClosingApi(Api):
    """Calls whose connections are closed in the end, whichever thread opened them: a warning is an error here."""

    def __init__(self, connection: Connection, *, timeout: float = PATIENCE) -> None:
        super().__init__(connection, timeout=timeout)
        self._links: list[http.client.HTTPConnection] = []

    def _link(self, timeout: float) -> http.client.HTTPConnection:
        link = super()._link(timeout)
        self._links.append(link)
        return link

    def close(self) -> None:
        """Nobody calls any more."""
        for link in self._links:
            link.close()
        self._links.clear()


class KubeServer:
    """An API server with a store of its own, in a temporary folder, for one process of tests."""

    def __init__(self) -> None:
        self._programs = {"etcd": etcd(), "kube-apiserver": str(binary("kube-apiserver"))}
        self._temporary = tempfile.TemporaryDirectory(prefix="gpuyard-kube-")
        self.folder = Path(self._temporary.name)
        self.port, self._etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None
        self._apis: list[ClosingApi] = []
        self._admin: ClosingApi | None = None
        (self.folder / "tokens.csv").write_text(
            "".join(f'token-of-{user},{user},{user},"{groups}"\n' for user, groups in USERS.items())
        )

    # -- running ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start both, and wait until they take requests."""
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        self._etcd = spawn(
            [self._programs["etcd"], f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=error",
             f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
             f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
             f"--quota-backend-bytes={4 * 2**30}"],
            self.folder / "etcd.log",
        )  # fmt: skip
        self.start_api()

    def start_api(self) -> None:
        """Start the API server alone, on the port that it always has."""
        keys = self.folder / "certs" / "apiserver.key"  # the one it makes for TLS will do for tokens as well
        self._api = spawn(
            [self._programs["kube-apiserver"], f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
             "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}",
             f"--cert-dir={keys.parent}", f"--token-auth-file={self.folder / 'tokens.csv'}",
             "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
             f"--service-account-key-file={keys}", f"--service-account-signing-key-file={keys}",
             "--service-cluster-ip-range=10.96.0.0/24", "--delete-collection-workers=8",
             # nobody here makes the service accounts of namespaces, which pods would need
             "--disable-admission-plugins=ServiceAccount"],
            self.folder / "apiserver.log",
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while not self._ready():
            assert self._api.poll() is None, f"kube-apiserver gave up:\n{self.log()[-2000:]}"
            assert self._etcd is None or self._etcd.poll() is None, (self.folder / "etcd.log").read_text()[-2000:]
            assert time.monotonic() < end, f"kube-apiserver is not ready after {PATIENCE} s:\n{self.log()[-2000:]}"
            time.sleep(0.02)

    def stop_api(self) -> None:
        """Kill the API server; its store stays."""
        kill(self._api)

    def mend(self) -> None:
        """Start the API server again if a test left without it."""
        if self._api is None or self._api.poll() is not None:
            self.start_api()

    def restart_api(self, downtime: float = 0.0) -> None:
        """Kill the API server, and start it again some seconds later."""
        self.stop_api()
        time.sleep(downtime)  # that long nobody answers, which is what the test is about
        self.start_api()

    def stop(self) -> None:
        """End everything, and leave nothing."""
        for api in self._apis:
            api.close()
        kill(self._api)
        kill(self._etcd)
        self._temporary.cleanup()

    def log(self) -> str:
        """What the API server wrote."""
        return (self.folder / "apiserver.log").read_text(errors="replace")

    def _ready(self) -> bool:
        try:
            self.api().get("/readyz")
            for namespace in ("default", "kube-system"):  # made a little later
                self.api().get(core("namespaces", name=namespace))
        except GpuyardError:
            return False
        return True

    # -- reaching it --------------------------------------------------------------------------------

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A file by which to reach the server as one of `USERS`, or as a service account, which is made if need be."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        token = self._account_token(user) if user.startswith(_ACCOUNT) else f"token-of-{user}"
        assert user in USERS or user.startswith(_ACCOUNT), f"{user} is nobody; add them to USERS"
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": self.url, "certificate-authority": str(self.folder / "certs" / "apiserver.crt")}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }  # fmt: skip
        path.write_text(json.dumps(text))  # YAML is JSON as well
        return path

    def api(self, user: str = ADMIN) -> ClosingApi:
        """Calls as somebody; always the same ones as the admin."""
        if user == ADMIN and self._admin is not None:
            return self._admin
        made = ClosingApi(connect(self.kubeconfig(user)))
        self._apis.append(made)
        if user == ADMIN:
            self._admin = made
        return made

    def _account_token(self, user: str) -> str:
        """What the pods of a service account would find in their token file."""
        namespace, name = user.removeprefix(_ACCOUNT).split(":")
        for path, body in (
            (core("namespaces"), {"metadata": {"name": namespace}}),
            (core("serviceaccounts", namespace), {"metadata": {"name": name}}),
        ):
            make(self.api(), path, body)
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}}
        made = self.api().post(core("serviceaccounts", namespace, name, "token"), asked)
        return str(made["status"]["token"])

    @contextmanager
    def kube_scheduler(self, **flags: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the real scheduler of Kubernetes meanwhile."""
        port, admin = free_port(), self.kubeconfig()
        log = self.folder / f"kube-scheduler-{port}.log"
        process = spawn(
            [binary("kube-scheduler"), f"--kubeconfig={admin}", f"--authentication-kubeconfig={admin}",
             f"--authorization-kubeconfig={admin}", "--bind-address=127.0.0.1", f"--secure-port={port}", "--port=0",
             "--leader-elect=false", *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items())],
            log,
        )  # fmt: skip
        try:
            yield process
            assert process.poll() is None, f"kube-scheduler gave up:\n{log.read_text()[-2000:]}"
        finally:
            kill(process)


def make(api: Api, path: str, body: Object) -> None:
    """Make something that may be there already."""
    try:
        api.post(path, body)
    except ApiError as error:
        if not error.conflict:
            raise
