"""`gpuyard policy`: show or change the scheduling policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.common_options import DaemonOptions, Json, option_groups
from gpuyard.cli.parser import QuickCommand, QuickGroup
from gpuyard.cli.terminal import output
from gpuyard.spec.notation import absolute, describe_learned

if TYPE_CHECKING:
    from gpuyard.api.types import PolicyPreview

app = typer.Typer(
    cls=QuickGroup,
    help="Show or change the policy that decides which job is next.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
@option_groups
def policy(context: typer.Context, yard: DaemonOptions, json: Json = False) -> None:
    """Show or change the policy that decides which job is next."""
    if context.invoked_subcommand is None:
        _show(yard, json)


@app.command("show", cls=QuickCommand)
@option_groups
def show(yard: DaemonOptions, json: Json = False) -> None:
    """Show the policy that decides."""
    _show(yard, json)


@app.command("set", cls=QuickCommand)
@option_groups
def set_(
    yard: DaemonOptions,
    text: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="name[:key=value,...][@discipline[@placement]], ./mine.py:my_policy or learned:./trained.json.",
        ),
    ],
    discipline: Annotated[str | None, typer.Option("--discipline", metavar="D", help="Who may go ahead.")] = None,
    placement: Annotated[str | None, typer.Option("--placement", metavar="P", help="Which GPUs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: tell what would change now.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also a trained policy that has not passed its gate.")] = False,
    json: Json = False,
) -> None:
    """Let another policy decide from now on."""
    client = yard.client()
    wanted = absolute(text) if client.host is None else text
    if dry_run:
        _show_preview(client.preview_policy(wanted, discipline=discipline, placement=placement), json)
        return
    client.set_policy(wanted, discipline=discipline, placement=placement, force=force)
    now = client.policy()
    if json:
        output.print_json(now)
    else:
        forced = ", though its gate is not passed" if (now.get("learned") or {}).get("forced") else ""
        output.say(f"from now on, {now['policy']} decides{forced}")


def _show_preview(found: PolicyPreview, json: bool) -> None:
    from gpuyard.cli.terminal.text_table import print_table

    if json:
        output.print_json(dict(found))
        return
    output.say(f"nothing is changed; with {found['policy']} now:")
    output.say(f"would start: {', '.join(found['starts']) or 'nobody'}")
    output.say(f"would be stopped, to wait again: {', '.join(found['stops']) or 'nobody'}")
    output.say(f"{found['moved']} of {output.many(found['waiting'], 'waiting job')} would have another place")
    if found["note"]:
        output.say(f"note: {found['note']}")
    if found["order"]:
        rows = [(str(one["place"]), str(one["was"]), one["id"], one["name"], one["user"]) for one in found["order"]]
        print_table(("PLACE", "WAS", "ID", "NAME", "USER"), rows)


def _show(yard: DaemonOptions, json: bool) -> None:
    from gpuyard.cli.terminal.text_table import clock

    now = yard.client().policy()
    if json:
        output.print_json(now)
    else:
        by = "; GPU memory is given away by usage" if now.get("admission") == "usage" else ""
        print((f"{now['policy']} (since {clock(now['since'])})" if now.get("since") else now["policy"]) + by)
        if now.get("learned"):
            print(f"trained: {describe_learned(now['learned'])}")
