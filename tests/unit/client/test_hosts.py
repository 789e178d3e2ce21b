"""Daemons elsewhere: how their addresses are written, and where tokens are kept."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from gpuyard.client.hosts import Known, forget, hosts_file, keep, known, parse_host
from gpuyard.errors import UserError


@pytest.mark.parametrize(
    ("text", "url", "port"),
    [
        ("https://box:62333", "https://box:62333", 62333),
        ("HTTPS://Box:62333/", "https://box:62333", 62333),
        ("box:62333", "http://box:62333", 62333),
        ("box", "http://box:62333", 62333),
        ("https://box", "https://box", 443),
        ("http://box:80/gpus/", "http://box/gpus", 80),
        ("http://[::1]:5", "http://[::1]:5", 5),
    ],
)
def test_addresses(text: str, url: str, port: int) -> None:
    host = parse_host(text)
    assert (host.url, host.port) == (url, port)
    assert parse_host(url) == host or "://" not in text


@pytest.mark.parametrize(
    "text", ["", "ftp://box", "http://", "http://box:port", "http://box:99999", "a b", "x?y", "x\n"]
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(UserError, match="is no address of a daemon; write it as in https://box:62333"):
        parse_host(text)


def test_a_password_has_no_place_in_an_address() -> None:
    with pytest.raises(UserError, match="gpuyard login stores a token") as caught:
        parse_host("https://ann:pass@box")
    assert "pass@" not in str(caught.value)


def test_tokens_are_kept_for_nobody_else_to_read(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    box, other = parse_host("https://box"), parse_host("https://other:1/x")
    former = os.umask(0)
    try:
        path = keep(box, Known("s3cret", '/a "b"\\c'), environment)
    finally:
        os.umask(former)
    keep(other, Known("t0ken"), environment)
    assert path == tmp_path / "gpuyard" / "hosts.toml" == hosts_file(environment)
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert known(box, environment=environment) == ("s3cret", '/a "b"\\c')
    assert known(other, environment=environment) == ("t0ken", None)
    assert "s3cret" not in repr(known(box, environment=environment))
    assert os.listdir(path.parent) == ["hosts.toml"]
    assert forget(box, environment)
    assert not forget(box, environment)
    assert known(box, environment=environment) == (None, None)
    assert known(other, environment=environment).token == "t0ken"


def test_windows_keeps_such_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert hosts_file({"APPDATA": str(tmp_path)}) == tmp_path / "gpuyard" / "hosts.toml"


def test_what_is_given_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    box = parse_host("https://box")
    keep(box, Known("file", "/file"), environment)
    environment |= {"GPUYARD_TOKEN": "environment", "GPUYARD_CA": "/environment"}
    assert known(box, environment=environment) == ("environment", "/environment")
    assert known(box, "given", "/given", environment=environment) == ("given", "/given")


def test_a_broken_file_is_told_but_not_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "gpuyard" / "hosts.toml"
    path.parent.mkdir()
    for text in ("token = s3cret", '["https://box"]\nca = "s3cret"', "box = 's3cret'"):
        path.write_text(text)
        with pytest.raises(UserError, match="cannot be understood; delete it, and gpuyard login again") as caught:
            known(parse_host("https://box"), environment={"XDG_CONFIG_HOME": str(tmp_path)})
        assert "s3cret" not in str(caught.value)
