"""`gpuyard quota` and `gpuyard share`: what people may have, and what they deserve."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuyard.cli import output
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
    _show(yard.client().set_quota(name, gpus=gpus, gpu_hours=gpu_hours), json)


@quota.command("clear", cls=QuickCommand)
@shared
def clear_quota(yard: Yard, name: Name, json: Json = False) -> None:
    """Lift a quota."""
    _show(yard.client().set_quota(name, gpus=0, gpu_hours=0.0), json)


@share.command("set", cls=QuickCommand)
@shared
def set_share(
    yard: Yard,
    name: Name,
    weight: Annotated[float, typer.Argument(metavar="WEIGHT", help="Relative to the others' 1.")],
    json: Json = False,
) -> None:
    """Say what share a user, a group or everybody else deserves."""
    _show(yard.client().set_share(name, weight), json)


def _show(found: dict[str, Any], json: bool) -> None:
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
    else:
        output.say("nobody has submitted anything yet, and nobody has a quota")
    if found["half_life"] and rows:
        after = format_duration(found["half_life"])
        output.say(f"LATELY is what fair shares go by: GPU-hours, which count half after {after}")


def _number(value: int | None) -> str:
    return "any" if value is None else str(value)


def _hours(value: float | None) -> str:
    return "any" if value is None else f"{value:.4g} h"
