"""Kubeconfigs: which cluster, as whom, and what is said to those that make no sense."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.certificates import certificate

from gpuyard.errors import UserError
from gpuyard.kubernetes import kubeconfig
from gpuyard.kubernetes.kubeconfig import Connection, connect


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody's own cluster matters here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


def config(name: str = "k", user: Any = None, cluster: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}:8080", **(cluster or {}), **more}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}],
    }  # fmt: skip


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_the_file_that_is_named_the_variable_or_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, variable = write(tmp_path / "a", config("a")), write(tmp_path / "b", config("b"))
    write(tmp_path / "home" / ".kube" / "config", config("c"))
    assert connect().server == "http://c:8080"
    monkeypatch.setenv("KUBECONFIG", str(variable))
    assert connect().server == "http://b:8080"
    found = connect(named)
    assert (found.server, found.host, found.port) == ("http://a:8080", "a", 8080)
    assert (found.tls, found.namespace) == (False, "of-a")


def test_several_files_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path / "a", config("a")), write(tmp_path / "b", config("b"))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    assert connect().server == "http://a:8080"
    assert connect(context="b").server == "http://b:8080"
    with pytest.raises(UserError, match="has no context 'c'; it has a, b"):
        connect(context="c")


def test_tokens_passwords_and_files_of_tokens(tmp_path: Path) -> None:
    def authorization(**user: Any) -> str:
        return connect(write(tmp_path / "k", config(user=user))).authorization()

    assert authorization() == ""
    assert authorization(token="abc") == "Bearer abc"
    assert authorization(username="ann", password="x") == "Basic " + base64.b64encode(b"ann:x").decode()
    write(tmp_path / "token", "first\n")
    found = connect(write(tmp_path / "k", config(user={"tokenFile": "token"})))  # beside the file that names it
    assert found.authorization() == "Bearer first"
    write(tmp_path / "token", "second\n")
    assert found.authorization() == "Bearer first"
    found.refused()  # the server did not take it: there may be another
    assert found.authorization() == "Bearer second"
    (tmp_path / "token").unlink()
    found.refused()
    with pytest.raises(UserError, match=r"the token in .* cannot be read: No such file"):
        found.authorization()


def test_programs_that_make_tokens(tmp_path: Path) -> None:
    code = (
        "import json, os; word = os.environ['WORD'] + json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind']; "
        "print(json.dumps({'status': {'token': word}}))"
    )
    made = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", code],
            "env": [{"name": "WORD", "value": "abc"}]}  # fmt: skip
    assert connect(write(tmp_path / "k", config(user={"exec": made}))).authorization() == "Bearer abcExecCredential"
    for command in (["-c", "print('no')"], ["-c", "raise SystemExit(1)"], ["-c", "print('{}')"]):
        found = connect(write(tmp_path / "k", config(user={"exec": {**made, "args": command}})))
        with pytest.raises(UserError, match="which the kubeconfig names, gave no token"):
            found.authorization()
    found = connect(write(tmp_path / "k", config(user={"exec": {"command": "no-such-program"}})))
    with pytest.raises(UserError, match="no-such-program, which the kubeconfig names, gave no token"):
        found.authorization()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a: [", "is no kubeconfig"),
        ("just words", "it has no clusters, users and contexts"),
        ("", "it has no clusters, users and contexts"),
        ({"clusters": []}, "has no context 'None'; it has none"),
        ({**config(), "clusters": []}, "has no cluster 'k'; it has none"),
        ({**config(), "users": []}, "has no user 'k'; it has none"),
        ({**config(), "contexts": None}, "has no context 'k'"),
        (config(server="ftp://k"), "'ftp://k' is no address of an API server"),
        (
            config(server="https://k", cluster={"certificate-authority": "missing.crt"}),
            "certificates of the kubeconfig",
        ),
        (config(server="https://k", cluster={"certificate-authority-data": "%%%"}), "certificates of the kubeconfig"),
        (config(server="https://k", user={"client-certificate": "a", "client-key": "b"}), "certificates of the"),
        ({**config(), "clusters": [{"name": "k"}]}, "is no kubeconfig"),
        ({**config(), "clusters": [{"name": "k", "cluster": {}}]}, "is no kubeconfig"),
        ({**config(), "contexts": [{"name": "k"}]}, "is no kubeconfig"),
        ({**config(), "clusters": "k"}, "is no kubeconfig"),
        ({**config(), "clusters": ["k"]}, "is no kubeconfig"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, content: object, why: str) -> None:
    with pytest.raises(UserError, match=why.replace("'", ".")):
        connect(write(tmp_path / "k", content))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a kubeconfig with --kubeconfig, or set KUBECONFIG"):
        connect()
    with pytest.raises(UserError, match="there is no kubeconfig"):
        connect(tmp_path / "missing")


def test_inside_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificate(tmp_path / "made")
    write(tmp_path / "ca.crt", Path(made.file).read_text())
    write(tmp_path / "token", "abc")
    write(tmp_path / "namespace", "gpuyard-system\n")
    monkeypatch.setattr(kubeconfig, "_POD", tmp_path)
    with pytest.raises(UserError, match="there is no cluster to talk to"):
        connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    found = connect()
    assert (found.server, found.namespace, found.in_pod) == ("https://[fd00::1]:443", "gpuyard-system", True)
    assert found.authorization() == "Bearer abc"


def test_certificates_in_the_file_or_beside_it(tmp_path: Path) -> None:
    made = certificate(tmp_path / "made")
    authority, key = Path(made.file).read_bytes(), Path(made.key).read_bytes()
    inside = {"certificate-authority-data": base64.encodebytes(authority).decode()}
    who = {"client-certificate-data": base64.b64encode(authority).decode(),
           "client-key-data": base64.b64encode(key).decode()}  # fmt: skip
    found = connect(write(tmp_path / "k", config(server="https://k", user=who, cluster=inside)))
    assert found.context is not None
    assert found.context.cert_store_stats()["x509"] == 1
    beside = {"certificate-authority": "made/cert.pem"}
    found = connect(write(tmp_path / "k", config(server="https://k", cluster=beside)))
    assert found.context is not None
    assert found.context.check_hostname
    found = connect(write(tmp_path / "k", config(server="https://k", cluster={"insecure-skip-tls-verify": True})))
    assert found.context is not None
    assert not found.context.check_hostname


def test_addresses() -> None:
    found = Connection("https://[fd00::1]/api/")
    assert (found.host, found.port, found.path, found.tls) == ("fd00::1", 443, "/api", True)
    assert Connection("http://host").port == 80
    for text in ("host:6443", "", "https://", "ftp://x"):
        with pytest.raises(UserError, match="is no address of an API server"):
            Connection(text)
