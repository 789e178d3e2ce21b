"""Remote daemons: their addresses, and the tokens that `gpuyard login` stored.

Tokens are in `hosts.toml` in the user's configuration directory, readable only by the user.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gpuyard.client.transport import check_header
from gpuyard.errors import UserError

PORT = 62333
_PORTS = {"http": 80, "https": 443}


class Host(NamedTuple):
    scheme: str
    name: str
    port: int
    base: str = ""  # path prefix behind a proxy

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """`box:62333`."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def url(self) -> str:
        """`https://box:62333`."""
        return f"{self.scheme}://{self.authority}{self.base}"

    @property
    def loopback(self) -> bool:
        """Whether it is this machine, judged by its name."""
        return self.name in ("localhost", "::1") or self.name.startswith("127.")


class Known(NamedTuple):
    token: str | None = None
    ca: str | None = None  # file with the certificates to trust

    def __repr__(self) -> str:
        return f"Known(token={'...' if self.token else None}, ca={self.ca!r})"


def parse_host(text: str) -> Host:
    """Parse `https://box:62333`, `http://box`, `box:62333` or `box`."""
    bare = "://" not in text
    try:
        parts = urlsplit(f"http://{text}" if bare else text)
        name, port = parts.hostname, parts.port
    except ValueError:
        name, port, parts = None, None, urlsplit("")
    if not name or parts.scheme not in _PORTS or parts.query or parts.fragment or any(c in text for c in " \t\r\n"):
        raise UserError(f"'{text}' is no address of a daemon; write it as in https://box:{PORT}")
    if not (name + parts.path).isascii() or not name.isprintable():
        raise UserError(f"'{text}' is to be written in ASCII")
    if parts.username is not None or parts.password is not None:
        raise UserError("an address holds no password here; gpuyard login stores a token")
    usual = PORT if bare else _PORTS[parts.scheme]
    return Host(parts.scheme, name, port or usual, parts.path.rstrip("/"))


def known(
    host: Host, token: str | None = None, ca: str | None = None, environment: Mapping[str, str] | None = None
) -> Known:
    """Token and certificates for a host: as given, else from the environment, else from the file."""
    environment = os.environ if environment is None else environment
    token = token or environment.get("GPUYARD_TOKEN")
    ca = ca or environment.get("GPUYARD_CA")
    if token is None or (ca is None and host.tls):
        kept = _read(hosts_file(environment)).get(host.url, Known())
        token, ca = token or kept.token, ca or kept.ca
    return Known(check_header("a token", token) if token else None, ca)


def keep(host: Host, what: Known, environment: Mapping[str, str] | None = None) -> Path:
    """Store a token for a host; returns the file."""
    path = hosts_file(environment)
    _write(path, {**_read(path), host.url: what})
    return path


def forget(host: Host, environment: Mapping[str, str] | None = None) -> bool:
    """Forget a host; returns whether it was known."""
    path = hosts_file(environment)
    kept = _read(path)
    if kept.pop(host.url, None) is None:
        return False
    _write(path, kept)
    return True


def hosts_file(environment: Mapping[str, str] | None = None) -> Path:
    environment = os.environ if environment is None else environment
    if sys.platform == "win32" and environment.get("APPDATA"):
        return Path(environment["APPDATA"]) / "gpuyard" / "hosts.toml"
    home = environment.get("HOME") or str(Path.home())
    return Path(environment.get("XDG_CONFIG_HOME") or Path(home) / ".config") / "gpuyard" / "hosts.toml"


def _read(path: Path) -> dict[str, Known]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    import tomllib  # lazily: most users have no such file

    try:
        found = tomllib.loads(text)
        return {url: Known(str(one["token"]), one.get("ca")) for url, one in found.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        # The position is not shown: it may be in a token.
        raise UserError(f"{path} cannot be understood; delete it, and gpuyard login again") from None


def _write(path: Path, kept: Mapping[str, Known]) -> None:
    """Write atomically; the file is never readable by others."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    from gpuyard.files import replacing  # lazily: most commands write no such file

    with replacing(path, durable=False, mode=0o600) as draft, draft.open("w", encoding="utf-8") as file:
        file.write("# Written by gpuyard login. A token stands for its owner: show this file to nobody.\n")
        for url, one in sorted(kept.items()):
            file.write(f"\n[{_quoted(url)}]\ntoken = {_quoted(one.token or '')}\n")
            file.write(f"ca = {_quoted(one.ca)}\n" if one.ca else "")


def _quoted(text: str) -> str:
    return json.dumps(text)
