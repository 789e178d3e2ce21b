"""`gpuyard login` and `logout`: tokens for daemons elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.client import Client, Refused
from gpuyard.errors import GpuyardError, UserError

Url = Annotated[str, typer.Argument(metavar="URL", help="Where the daemon listens, as in https://box:62333.")]


def login(
    url: Url,
    ca_file: Annotated[
        str | None, typer.Option("--ca-file", metavar="FILE", help="Trust these certificates there, and remember that.")
    ] = None,
) -> None:
    """Store a token for a daemon elsewhere, so that --host reaches it."""
    from gpuyard.hosts import Known, keep, parse_host

    host = parse_host(url)
    ca = os.path.abspath(ca_file) if ca_file else os.environ.get("GPUYARD_CA") or None
    token = _asked(host.url)
    user = _checked(Client(host=host.url, token=token, ca=ca, say=output.say))
    path = keep(host, Known(token, ca))
    output.say(f"you are {user} at {host.url}; the token is in {path}, for nobody else to read")
    output.say(f"now --host {host.url}, or GPUYARD_HOST={host.url}, reaches it: gpuyard ps --host {host.url}")


def logout(url: Url) -> None:
    """Forget the token for a daemon elsewhere."""
    from gpuyard.hosts import forget, parse_host

    host = parse_host(url)
    if not forget(host):
        raise UserError(f"there is no token for {host.url} here; nothing is to be forgotten")
    output.say(f"the token for {host.url} is forgotten here; gpuyard token revoke, run there, makes it worthless")


def _asked(url: str) -> str:
    """A token, typed without being seen, or from a pipe."""
    if sys.stdin.isatty():
        import getpass

        token = getpass.getpass(f"Token for {url} (gpuyard token create, run there, makes one): ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise UserError("no token was given; type it, or pipe it in, as in: gpuyard login URL < FILE")
    return token.strip()


def _checked(client: Client) -> str:
    """Whose token it is; it is not stored if the daemon does not take it."""
    try:
        return str(client.who_am_i()["user"])
    except Refused as error:
        if error.status != 404:
            raise
    except KeyError as error:
        raise GpuyardError(f"what answers at {client.host} is not gpuyard's daemon; check the address") from error
    client.status()  # an older daemon, which does not tell
    return "known"
