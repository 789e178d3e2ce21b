"""Certificates for tests, made by openssl; without it a test is skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_CA = """[ca]
default_ca = own
[own]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


class Certificate(NamedTuple):
    """A certificate that vouches for itself, and its key."""

    file: str
    key: str


def certificate(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1", *, expired: bool = False) -> Certificate:
    """A new one for some names."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with; apt-get install openssl")
    folder.mkdir()
    key, request, found = (str(folder / name) for name in ("key.pem", "request.pem", "cert.pem"))
    what = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test"]
    _openssl("req", *what, "-keyout", key, "-out", request, "-addext", f"subjectAltName={names}")
    (folder / "index").touch()
    (folder / "serial").write_text("01")
    (folder / "ca.cnf").write_text(_CA.format(folder=folder))
    end = "20200102000000Z" if expired else "20991231000000Z"
    dates = ["-startdate", "20200101000000Z", "-enddate", end]
    files = ["-config", str(folder / "ca.cnf"), "-in", request, "-out", found, "-keyfile", key]
    _openssl("ca", "-selfsign", "-batch", "-notext", *files, *dates)
    return Certificate(found, key)


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
