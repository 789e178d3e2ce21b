"""`gpuyard kubernetes dashboard`: the cluster as pages in a browser, to look at."""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.kubernetes.asking import USUAL, scheduler_at
from gpuyard.errors import UserError

_LISTEN = "127.0.0.1:10261"


def dashboard(
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="URL", help="Where the scheduler listens (its --listen).")
    ] = USUAL,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve the pages; port 0: any that is free.")
    ] = _LISTEN,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen beyond this machine: all who reach it may look.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="A name by which browsers may ask for it, as behind a proxy."
        ),
    ] = None,
) -> None:
    """Show the cluster in a browser: nodes with their GPUs, the queue, pods; nothing can be changed there."""
    from gpuyard.kubernetes.serving import address_of

    url = scheduler_at(scheduler)
    host, port = address_of(listen)
    with _listening(host, port) as listener:
        address, port = listener.getsockname()[:2]
        local = _is_loopback(address)
        if not local and not allow_anyone:
            raise UserError(
                f"--listen {listen} is reached from beyond this machine, and all who reach it could see the names of "
                "nodes, namespaces and pods; add --allow-anyone if they may, or listen at 127.0.0.1 and use "
                "kubectl port-forward, ssh -L or a proxy with a login"
            )
        names = [*(allowed_host or ()), *([] if local else [os.uname().nodename])]
        anywhere = address in ("0.0.0.0", "::")
        shown = os.uname().nodename if anywhere else f"[{host}]" if ":" in host else host
        output.say(f"the cluster is at http://{shown}:{port}/, until Ctrl-C; it is asked for at {url}")
        if not local:
            output.say("gpuyard: warning: all who reach that address may look, without a token and in clear text")
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-s", "-P", "-m", "gpuyard.page.cluster", "--fd", str(listener.fileno())]
        command += ["--scheduler", url, *(word for name in names for word in ("--host", name))]
        os.execv(sys.executable, [*command, *([] if local else ["--addresses"])])  # NiceGUI is no part of this process


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"there is no address {host} to listen at; write for example --listen {_LISTEN}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(
            f"{host}:{port} cannot be listened at ({error.strerror}); choose another with --listen, port 0 takes any"
        ) from error
    return listener


def _is_loopback(address: str) -> bool:
    from ipaddress import ip_address

    return ip_address(address.partition("%")[0]).is_loopback
