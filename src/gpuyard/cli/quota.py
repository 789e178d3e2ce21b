"""`gpuyard quota` and `gpuyard share`: what people may have, and what they deserve."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.accounts import warn_of_unknown
from gpuyard.cli.quick import QuickCommand, QuickGroup
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError

Name = Annotated[str, typer.Argument(metavar="NAME", help="A user, a group as @name, or * for everybody else.")]

quota = typer.Typer(
    cls=QuickGroup, help="Show or set what people may have: GPUs at once, GPU-hours a week.",
    invoke_without_command=True, rich_markup_mode=None,
)  # fmt: skip
share = typer.Typer(
    cls=QuickGroup, help="Show or set what share of the GPUs people deserve.", invoke_without_command=True,
    rich_markup_mode=None,
)  # fmt: skip


@quota.callback()
@share.callback()
@shared
def _root(context: typer.Context, yard: Yard, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        _show(yard.client().rules(), json)


@quota.command("set", cls=QuickCommand)
@shared
def set_quota(
    yard: Yard,
    name: Name,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=0, metavar="N", help="GPUs at once; 0: any.")] = None,
    gpu_hours: Annotated[
        float | None, typer.Option("--gpu-hours", min=0, metavar="H", help="GPU-hours in any seven days; 0: any.")
    ] = None,
    json: Json = False,
) -> None:
    """Limit what a user, a group or everybody else may have."""
    if gpus is None and gpu_hours is None:
        raise UserError("say what the quota is: --gpus 2, --gpu-hours 40, or both")
    client = yard.client()
    found = client.set_quota(name, gpus=gpus, gpu_hours=gpu_hours)
    warn_of_unknown(client, [name])
    said = [f"{output.many(gpus, 'GPU') if gpus else 'any number of GPUs'} at once"] if gpus is not None else []
    said += [f"{f'{gpu_hours:g}' if gpu_hours else 'any number of'} GPU-hours a week"] if gpu_hours is not None else []
    _show(found, json, f"{_called(name)} may have {' and '.join(said)} from now on")


@quota.command("clear", cls=QuickCommand)
@shared
def clear_quota(yard: Yard, name: Name, json: Json = False) -> None:
    """Lift a quota."""
    found = yard.client().set_quota(name, gpus=0, gpu_hours=0.0)
    _show(found, json, f"{_called(name)} has no quota of its own any more")


@share.command("set", cls=QuickCommand)
@shared
def set_share(
    yard: Yard,
    name: Name,
    weight: Annotated[float, typer.Argument(metavar="WEIGHT", help="Relative to the others' 1.")],
    json: Json = False,
) -> None:
    """Say what share a user, a group or everybody else deserves."""
    client = yard.client()
    found = client.set_share(name, weight)
    warn_of_unknown(client, [name])
    _show(found, json, f"{_called(name)} has a share of {weight:g} from now on, where others have 1")


@share.command("clear", cls=QuickCommand)
@shared
def clear_share(yard: Yard, name: Name, json: Json = False) -> None:
    """Take a share back, so that it is as everybody's."""
    found = yard.client().set_share(name, 1.0)
    _show(found, json, f"{_called(name)} has no share of its own any more")


def _called(name: str) -> str:
    """Whom a rule is for, in words."""
    if name == "*":
        return "everybody else"
    return f"group {name[1:]}" if name.startswith("@") else name


def _show(found: dict[str, Any], json: bool, done: str = "") -> None:
    from gpuyard.cli.table import print_table
    from gpuyard.units import format_duration

    if json:
        output.print_json(found)
        return
    heads = ("NAME", "GROUP", "SHARE", "GPUS", "MAY HAVE", "WEEK", "MAY USE", "LATELY")
    rows = [
        (
            user["name"], user["group"] or "-", f"{user['weight']:g}",
            str(user["gpus"]), _number(user["quota_gpus"]),
            _hours(user["week_gpu_hours"]), _hours(user["quota_gpu_hours"]), _hours(user["faded_gpu_hours"]),
        )
        for user in found["users"]
    ]  # fmt: skip
    if rows:
        print_table(heads, rows)
    elif not done:
        output.say("nobody has submitted anything yet, and nobody has a quota")
    if done:
        output.say(done)
    elif found["half_life"] and rows:
        after = format_duration(found["half_life"])
        output.say(f"LATELY is what fair shares go by: GPU-hours, which count half after {after}")


def _number(value: int | None) -> str:
    return "any" if value is None else str(value)


def _hours(value: float | None) -> str:
    """GPU-hours, of which a tenth is as exact as anybody needs."""
    if value is None:
        return "any"
    return f"{value:.1f} h" if value < 1000 else f"{value:,.0f} h"
