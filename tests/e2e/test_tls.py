"""TLS on TCP, with a certificate made for the purpose."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import ssl
import struct
import subprocess
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.web import ask
from tests.yard import PATIENCE, Yard, until

from gpuyard.client.client import Client
from gpuyard.config import Settings
from gpuyard.errors import GpuyardError
from gpuyard.server import security

ONE_LINE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -keyout {key} -out {cert} -subj /CN=box "
    "-addext subjectAltName=DNS:box,DNS:localhost,IP:127.0.0.1"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates with their keys."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with; apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "two"):
        command = ONE_LINE.format(key=folder / f"{name}.key", cert=folder / f"{name}.crt")
        subprocess.run(command.split(), check=True, capture_output=True)
    return folder


def test_a_daemon_speaks_tls(own_yard: Yard, files: Path) -> None:
    own_yard.environment["GPUYARD_SINGLE_USER"] = "true"
    own_yard.serve("--port", "0", "--tls-cert", str(files / "one.crt"), "--tls-key", str(files / "one.key"))
    url = own_yard.client.status()["url"]
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(files / "one.crt"))
    assert ask(url, "GET", "/api/v1/session", tls=trusting).json["via"] == "loopback"
    token = own_yard.client.make_token("ann")["token"]
    reply = ask(url, "POST", "/api/v1/session", {"token": token}, tls=trusting, headers={"Origin": url})
    assert SimpleCookie(reply.headers["set-cookie"])["gpuyard_session"]["secure"]
    foreign = ask(url, "GET", "/api/v1/jobs", tls=trusting, headers={"Origin": url.replace("https", "http")})
    assert foreign.status == 403
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(url, "GET", "/api/v1/jobs", tls=ssl.create_default_context())
    with pytest.raises(GpuyardError, match=f"speaks TLS; write {url}$"):
        Client(host=url.replace("https", "http")).submit(["true"])
    old = ssl.create_default_context(cafile=str(files / "one.crt"))
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        ask(url, "GET", "/api/v1/jobs", tls=old)
    assert own_yard.client.status()["warnings"] == []
    (files / "one.key").chmod(0o644)
    assert f"warning   anybody on this machine may read the key in {files / 'one.key'}" in own_yard("status").out
    assert own_yard("doctor").out.count("may read the key") == 1, "though the doctor's own settings name no key"
    (files / "one.key").chmod(0o600)


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_its_stream_leaves_no_traceback(own_yard: Yard, files: Path, reset: bool) -> None:
    own_yard.environment["GPUYARD_SINGLE_USER"] = "true"
    own_yard.serve("--port", "0", "--tls-cert", str(files / "one.crt"), "--tls-key", str(files / "one.key"))
    where = urlsplit(own_yard.client.status()["url"])
    trusting = ssl.create_default_context(cafile=str(files / "one.crt"))
    for _ in range(4):
        plain = socket.create_connection((where.hostname, where.port or 0), PATIENCE)
        if reset:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
            stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            assert stream.recv(1000).startswith(b"HTTP/1.1 200")
        own_yard.wait(own_yard.submit("--", "true"))  # which they would have been told
    own_yard.end()
    assert "Traceback" not in (own_yard.data_dir / "daemon.log").read_text()


def test_who_connects_and_says_nothing_takes_no_place_of_others(own_yard: Yard, files: Path) -> None:
    """Before TLS is set up nothing is known of a connection but its address, and it has a file descriptor already."""
    own_yard.environment["GPUYARD_SINGLE_USER"] = "true"
    own_yard.serve("--port", "0", "--tls-cert", str(files / "one.crt"), "--tls-key", str(files / "one.key"))
    status = own_yard.client.status()
    resource.prlimit(status["pid"], resource.RLIMIT_NOFILE, (256, 256))
    place = urlsplit(status["url"])
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((place.hostname, place.port), PATIENCE)) for _ in range(300)
        ]
        assert silent[-1].recv(1) == b"", "hung up on"
        assert own_yard.wait(own_yard.client.submit(["true"]))["state"] == "succeeded"
        assert len(os.listdir(f"/proc/{status['pid']}/fd")) < 128
    trusting = ssl.create_default_context(cafile=str(files / "one.crt"))
    assert until(lambda: _answers(status["url"], trusting), "an answer to others")
    assert "Too many open files" not in (own_yard.data_dir / "daemon.log").read_text()


def _answers(url: str, trusting: ssl.SSLContext) -> bool:
    with contextlib.suppress(OSError):
        return ask(url, "GET", "/healthz", tls=trusting).status == 200
    return False


def test_what_is_wrong_with_a_certificate(own_yard: Yard, files: Path, tmp_path: Path) -> None:
    cert, key, locked = str(files / "one.crt"), str(files / "one.key"), str(tmp_path / "locked.key")
    lock = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run(lock, check=True, capture_output=True)
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for flags, why in (
        (["--tls-cert", "missing.crt"], "cannot be read: No such file"),
        (["--tls-cert", cert, "--tls-key", "missing.key"], "the key .*missing.key cannot be read"),
        (["--tls-cert", cert, "--tls-key", str(files / "two.key")], "is not that of the certificate"),
        (["--tls-cert", cert, "--tls-key", locked], "has a password"),
        (["--tls-cert", cert], "no certificate and key"),
        (["--tls-cert", str(empty), "--tls-key", key], "no certificate and key"),
        (["--tls-key", key], "no certificate; give --tls-cert"),
    ):
        settings = Settings(
            tmp_path, tmp_path / "s", tls_cert=_of(flags, "--tls-cert"), tls_key=_of(flags, "--tls-key")
        )
        with pytest.raises(security.BadCertificate, match=why):
            security.check_certificate(settings)
    done = own_yard.process("serve", "--simulate-gpus", "1", "--port", "0", "--tls-cert", cert)
    assert (done.code, "Traceback" in done.err, "--tls-key" in done.err) == (2, False, True)


def _of(flags: list[str], name: str) -> str:
    return flags[flags.index(name) + 1] if name in flags else ""


def test_certificates_end(files: Path, tmp_path: Path) -> None:
    settings = Settings(
        tmp_path, tmp_path / "s", bind="192.0.2.1", tls_cert=str(files / "one.crt"), tls_key=str(files / "one.key")
    )
    found = security.read_certificate(settings.tls_cert, settings.tls_key)

    def told(days: float) -> str:
        return " ".join(security.certificate_warnings(settings, found.expires + days * 86400.0))

    assert told(-30) == ""
    assert "expires on" in told(-7)
    assert "has expired on" in told(1)
    assert "is not valid before" in told(-400)
    assert security.exposure_warnings(settings, "https://192.0.2.1") == []


def test_the_doctor_looks_at_it(own_yard: Yard, files: Path) -> None:
    own_yard.environment |= {"GPUYARD_TLS_CERT": str(files / "one.crt"), "GPUYARD_TLS_KEY": str(files / "two.key")}
    assert "bad   certificate" in own_yard("doctor").out
    own_yard.environment["GPUYARD_TLS_KEY"] = str(files / "one.key")
    (files / "one.key").chmod(0o644)
    assert "may read the key" in own_yard("doctor").out
    (files / "one.key").chmod(0o600)
    assert "ok    certificate" in own_yard("doctor").out
    own_yard.environment |= {"GPUYARD_TLS_CERT": "", "GPUYARD_TLS_KEY": "", "GPUYARD_BIND": "192.0.2.1"}
    own_yard.environment["GPUYARD_PORT"] = "62333"
    told = own_yard("doctor").out
    assert "tokens travel to http://192.0.2.1:62333 in clear text" in told
