"""`gpuyard token`: who may come in by TCP."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.quick import QuickCommand, QuickGroup
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError

app = typer.Typer(
    cls=QuickGroup, help="Make, list and revoke tokens, by which people use the queue over the network.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip


class Role(StrEnum):
    """What a token allows at most."""

    viewer = "viewer"
    user = "user"
    admin = "admin"


@app.command("create", cls=QuickCommand)
@shared
def create(
    yard: Yard,
    user: Annotated[
        str | None, typer.Argument(metavar="[USER]", show_default=False, help="Whose it is; yours, if not said.")
    ] = None,
    role: Annotated[
        Role, typer.Option("--role", help="viewer: look only; user: jobs of one's own; admin: everything.")
    ] = Role.user,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="How long it is good, as in 90d; for ever, if not said."),
    ] = None,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="What it is for.")] = "",
    json: Json = False,
) -> None:
    """Make a token and print it; it is not shown again."""
    client = yard.client()
    made = client.make_token(user, role=role.value, expires=_seconds(expires), label=label)
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


@app.command("list", cls=QuickCommand)
@shared
def list_tokens(
    yard: Yard,
    all: Annotated[bool, typer.Option("--all", "-a", help="Also those that have expired or were revoked.")] = False,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only of this user.")] = None,
    json: Json = False,
) -> None:
    """List your tokens, or, for an admin, everybody's; never what is secret of them."""
    from gpuyard.cli.table import clock, print_rows, print_table

    tokens = [token for token in yard.client().tokens(user=user) if all or token["state"] == "active"]
    if json:
        print_rows(tokens)
        return
    heads = ("ID", "USER", "ROLE", "STATE", "CREATED", "EXPIRES", "LAST USED", "LABEL")
    rows = [
        (
            token["id"], token["user"], token["role"], token["state"], clock(token["created_at"]),
            clock(token["expires_at"]) if token["expires_at"] else "never", clock(token["last_used_at"]),
            token["label"] or "-",
        )
        for token in tokens
    ]  # fmt: skip
    print_table(heads, rows)
    if not tokens:
        output.say("there is no token; gpuyard token create makes one")


@app.command("revoke", cls=QuickCommand)
@shared
def revoke(
    yard: Yard,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The tokens' ids, as gpuyard token list shows them.")],
    json: Json = False,
) -> None:
    """Let tokens be good for nothing from now on, and pages that were opened with them neither."""
    client = yard.client()
    found = [client.revoke_token(_id(text)) for text in ids]
    if json:
        output.print_json(found)
        return
    for token in found:
        print(f"token {token['id']} of {token['user']} is revoked")


def _seconds(text: str | None) -> float | None:
    from gpuyard.units import parse_duration

    if text is None or text == "never":
        return None
    seconds = parse_duration(text)
    if not 0 < seconds < float("inf"):
        raise UserError(f"--expires must be above 0, not {text}")
    return seconds


def _id(text: str) -> str:
    """A token's id; who gives the whole token means it, too, and its secret goes nowhere."""
    return text.split("_")[1] if text.startswith("gy_") and text.count("_") > 1 else text


def _advice(made: dict[str, Any]) -> str:
    from gpuyard.cli.table import clock

    until = f"until {clock(made['expires_at'])}" if made["expires_at"] else "until it is revoked"
    said = f"this is {made['user']}'s {made['role']} token {made['id']}, good {until}; keep it, it is not shown again"
    runs_as = made["runs_as"]
    return said if runs_as in (None, made["user"]) else f"{said}; its jobs run as {runs_as}, as all do here"
