"""`gpuyard drain` and `gpuyard resume`: GPUs that are to be left alone."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError
from gpuyard.units import parse_indices

What = Annotated[
    list[str] | None,
    typer.Argument(metavar="[gpu 3]", show_default=False, help="gpu and indices, as in: gpu 3, or gpu 0-1; none: all."),
]


@shared
def drain(
    yard: Yard,
    what: What = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    json: Json = False,
) -> None:
    """Let nothing more start on some GPUs, or on the whole machine; what runs goes on."""
    client = yard.client()
    gpus = _read(what)
    drained = client.drain(gpus, reason)
    if json:
        output.print_json({"drained": drained})
        return
    wanted = drained if gpus is None else gpus
    running = [job for job in client.jobs(state="running") if set(job["gpus"]) & set(wanted)]
    still = [f"job {job['id']} (GPU {', '.join(map(str, job['gpus']))})" for job in running]
    rest = f"; still running: {', '.join(still)}" if still else ""
    output.say(f"nothing starts on GPU {', '.join(map(str, wanted))} until gpuyard resume{rest}")


@shared
def resume(yard: Yard, what: What = None, json: Json = False) -> None:
    """Let drained GPUs be used again."""
    left = yard.client().resume(_read(what))
    if json:
        output.print_json({"drained": left})
    else:
        output.say(f"still drained: GPU {', '.join(map(str, left))}" if left else "no GPU is drained")


def _read(what: list[str] | None) -> list[int] | None:
    """The GPUs that words like `gpu 3` mean; None: all of them."""
    words = list(what or ())
    if words and words[0].lower() in ("gpu", "gpus"):
        words = words[1:]
        if not words:
            raise UserError("which GPU? write its index, as in: gpuyard drain gpu 3; gpuyard drain alone means all")
    if not words or [word.lower() for word in words] in (["all"], ["node"]):
        return None
    return parse_indices(",".join(words))
