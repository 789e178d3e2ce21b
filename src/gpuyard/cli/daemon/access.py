"""`gpuyard token`, `audit`, `login` and `logout`: access over the network, and the record of changes."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated, Any

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, option_groups, past_time, subcommand
from gpuyard.cli.jobs.job_options import duration
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.client.transport import Refused
from gpuyard.errors import GpuyardError, UserError

token_app = command_group("Make, list and revoke tokens, by which people use the queue over the network.")


class Role(StrEnum):
    viewer = "viewer"
    user = "user"
    admin = "admin"


@subcommand(token_app, "create")
def create(
    daemon: DaemonOptions,
    user: Annotated[str | None, argument("[USER]", "Whose it is; yours, if not said.", show_default=False)] = None,
    role: Annotated[
        Role, option("--role", "viewer: look only; user: jobs of one's own; admin: everything.")
    ] = Role.user,
    expires: Annotated[
        str | None, option("--expires", "TIME", "How long it is good, as in 90d; for ever, if not said.")
    ] = None,
    label: Annotated[str, option("--label", "TEXT", "What it is for.")] = "",
    json: Json = False,
) -> None:
    """Make a token and print it; it is not shown again."""
    client = daemon.client()
    good = None if expires == "never" else expires
    made = client.make_token(user, role=role.value, expires=duration("--expires", good, none=False), label=label)
    if json:
        output.print_json(made)
        return
    print(made["token"])
    url = client.status().get("url")
    output.say(_advice(made))
    if url:
        output.say(f"use it by GPUYARD_HOST={url} GPUYARD_TOKEN=..., or send it as Authorization: Bearer ...")
    else:
        output.say("the daemon does not listen on TCP, so it is of no use yet; see gpuyard serve --port")


@subcommand(token_app, "list")
def list_tokens(
    daemon: DaemonOptions,
    all: Annotated[bool, option("--all", "-a", "Also those that have expired or were revoked.")] = False,
    user: Annotated[str | None, option("--user", "USER", "Only of this user.")] = None,
    json: Json = False,
) -> None:
    """List your tokens, or, for an admin, everybody's; never what is secret of them."""
    from gpuyard.cli.terminal.text_table import print_list

    tokens = [token for token in daemon.client().tokens(user=user) if all or token["state"] == "active"]
    heads = ("ID", "USER", "ROLE", "STATE", "CREATED", "EXPIRES", "LAST USED", "LABEL")
    empty = "there is no token; gpuyard token create makes one"
    print_list(tokens, json, heads, _token_row, empty, heads_if_empty=True)


def _token_row(token: dict[str, Any]) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock

    expires = clock(token["expires_at"]) if token["expires_at"] else "never"
    times = clock(token["created_at"]), expires, clock(token["last_used_at"])
    return token["id"], token["user"], token["role"], token["state"], *times, token["label"] or "-"


@subcommand(token_app, "revoke")
def revoke(
    daemon: DaemonOptions,
    ids: Annotated[list[str], argument("ID", "The tokens' ids, as gpuyard token list shows them.")],
    json: Json = False,
) -> None:
    """Let tokens be good for nothing from now on, and pages that were opened with them neither."""
    client = daemon.client()
    found = [client.revoke_token(_id(text)) for text in ids]
    if json:
        output.print_json(found)
        return
    for token in found:
        print(f"token {token['id']} of {token['user']} is revoked")


def _id(text: str) -> str:
    """A token's id; of a whole token its id, and the secret is not sent."""
    return text.split("_")[1] if text.startswith("gy_") and text.count("_") > 1 else text


def _advice(made: dict[str, Any]) -> str:
    from gpuyard.cli.terminal.text_table import clock

    until = f"until {clock(made['expires_at'])}" if made["expires_at"] else "until it is revoked"
    said = f"this is {made['user']}'s {made['role']} token {made['id']}, good {until}; keep it, it is not shown again"
    runs_as = made["runs_as"]
    return said if runs_as in (None, made["user"]) else f"{said}; its jobs run as {runs_as}, as all do here"


@option_groups
def audit(
    daemon: DaemonOptions,
    user: Annotated[str | None, option("--user", "-u", "USER", "Only of this user.")] = None,
    since: Annotated[str | None, option("--since", "WHEN", "Since: a date, a time, or 24h for a day ago.")] = None,
    limit: Annotated[int, option("--limit", "-n", "N", "At most so many.", min=1, max=100_000)] = 50,
    json: Json = False,
) -> None:
    """List who changed what through the API, and who was refused, the latest first; for admins."""
    from gpuyard.cli.terminal.text_table import print_list

    begin = None if since is None else past_time(since).isoformat()
    entries = daemon.client().audit(user=user, since=begin, limit=limit)
    heads = ("AT", "USER", "VIA", "ADDRESS", "STATUS", "JOB", "TIMES", "WHAT")
    print_list(entries, json, heads, _audit_row, "nothing of that kind has happened", heads_if_empty=True)


def _audit_row(entry: dict[str, Any]) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock

    return (
        clock(entry["at"], seconds=True),
        entry["user"] or "-",
        entry["via"],
        entry["address"] or "-",
        str(entry["status"]),
        entry["job"] or "-",
        str(entry["times"]),
        f"{entry['method'] or ''} {entry['path']}".strip(),
    )


Url = Annotated[str, argument("URL", "Where the daemon listens, as in https://box:62333.")]


def login(
    url: Url,
    ca_file: Annotated[
        str | None, option("--ca-file", "FILE", "Trust these certificates there, and remember that.")
    ] = None,
) -> None:
    """Store a token for a daemon elsewhere, so that --host reaches it."""
    from gpuyard.client.hosts import Known, keep, parse_host

    host = parse_host(url)
    ca = os.path.abspath(ca_file) if ca_file else os.environ.get("GPUYARD_CA") or None
    token = _read_token(host.url)
    user = _check_token(Client(host=host.url, token=token, ca=ca, say=output.say))
    path = keep(host, Known(token, ca))
    output.say(f"you are {user} at {host.url}; the token is in {path}, for nobody else to read")
    output.say(f"now --host {host.url}, or GPUYARD_HOST={host.url}, reaches it: gpuyard ps --host {host.url}")


def logout(url: Url) -> None:
    """Forget the token for a daemon elsewhere."""
    from gpuyard.client.hosts import forget, parse_host

    host = parse_host(url)
    if not forget(host):
        raise UserError(f"there is no token for {host.url} here; nothing is to be forgotten")
    output.say(f"the token for {host.url} is forgotten here; gpuyard token revoke, run there, makes it worthless")


def _read_token(url: str) -> str:
    """Read a token without an echo, or from a pipe."""
    if sys.stdin.isatty():
        import getpass

        token = getpass.getpass(f"Token for {url} (gpuyard token create, run there, makes one): ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise UserError("no token was given; type it, or pipe it in, as in: gpuyard login URL < FILE")
    return token.strip()


def _check_token(client: Client) -> str:
    """The token's user; it is not stored if the daemon refuses it."""
    try:
        return str(client.who_am_i()["user"])
    except Refused as error:
        if error.status != 404:
            raise
    except KeyError as error:
        raise GpuyardError(f"what answers at {client.host} is not gpuyard's daemon; check the address") from error
    client.status()  # an older daemon, which does not tell
    return "known"
