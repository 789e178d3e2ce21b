"""`gpuyard estimates`: what is expected of a job by what similar jobs used, and how accurate that was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, option_groups
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.api.access_types import Estimate, Expectation, PredictionError
    from gpuyard.client.client import Client

_LISTED = 10  # runs that are shown; the JSON has them all
Words = Annotated[
    list[str] | None,
    argument(
        "JOB | -- COMMAND ARGS | forget SIGNATURE",
        "What is expected of a job, or of a command; or what to forget.",
        show_default=False,
    ),
]


@option_groups
def estimates(
    context: typer.Context,
    daemon: DaemonOptions,
    words: Words = None,
    user: Annotated[str | None, option("--user", "-u", "USER", "Only of this user's jobs.")] = None,
    gpus: Annotated[int, option("--gpus", "-g", "N", "Of a command: how many GPUs.", min=1)] = 1,
    tag: Annotated[list[str] | None, option("--tag", "TAG", "Of a command: its tags.")] = None,
    json: Json = False,
) -> None:
    """Tell what is known of jobs by what their like used and took, and how right that was."""
    client, given = daemon.client(), list(words or ())
    command = _after_dashes(context, given)
    if not given:
        _list(client.estimates(user), json)
    elif given[0] == "forget" and not command:
        _forget(client, given[1:], json)
    elif len(given) == 1 and not command:
        _print_expectation(client.estimate(given[0]), json)
    else:
        directory = os.getcwd() if client.host is None else None
        _print_expectation(client.guess(given, directory, gpus=gpus, tags=list(tag or ())), json)


def _after_dashes(context: typer.Context, words: list[str]) -> bool:
    """Whether the words are a command: -- stands before them."""
    line = context.meta.get("gpuyard.line", [])
    return bool(words) and len(line) > len(words) and line[-len(words) - 1] == "--"


def _forget(client: Client, signatures: list[str], json: bool) -> None:
    if not signatures:
        raise UserError("say which signature to forget; gpuyard estimates lists them")
    counts = {signature: client.forget_estimate(signature) for signature in signatures}
    if json:
        output.print_json(counts)
    for signature, count in counts.items() if not json else ():
        output.say(f"{output.many(count, 'run')} of {signature} forgotten")


def _list(found: list[Estimate], json: bool) -> None:
    from gpuyard.cli.terminal.text_table import clock, print_rows, print_table

    if json:
        print_rows(found)
        return
    if not found:
        output.say("nothing is known yet: jobs are measured as they run")
        return
    heads = ("SIGNATURE", "USER", "RUNS", "EXPECTED", "TIME", "MEMORY ERROR", "TIME ERROR", "LAST", "COMMAND")
    rows = [
        (
            one["signature"], one["user"], f"{one['runs']:,}",
            "-" if one["memory"] is None else (one["evidence"] or "").partition(": ")[2],
            output.duration(one["seconds"]) + (" an epoch" if one["per_epoch"] else ""),
            _error(one["memory_error"]), _error(one["time_error"]), clock(one["last_at"]), one["command"],
        )
        for one in found
    ]  # fmt: skip
    print_table(heads, rows)
    output.say("an error is how far predictions were off: the median, the worst and the mean; + is too much")


def _print_expectation(found: Expectation, json: bool) -> None:
    from gpuyard.cli.terminal.text_table import clock, print_table, visible
    from gpuyard.units import format_duration, format_size

    if json:
        output.print_json(found)
        return
    memory, seconds = found["memory"], found["seconds"]
    print(f"{visible(found['command'])} (signature {found['signature']})")
    if memory is None:
        print("memory: nothing is known; with --gpu-memory auto it gets a GPU alone, and is measured")
    else:
        print(f"memory: {format_size(memory)} on each GPU ({found['evidence']})")
    print(f"run time: {'nothing is known' if seconds is None else f'about {format_duration(seconds)}'}")
    if runs := found["runs"][:_LISTED]:
        rows = [
            (
                run["job"], clock(run["ended_at"]), run["outcome"],
                output.size(run["peak"]), output.size(run["predicted_peak"]),
                output.duration(run["seconds"]), output.duration(run["predicted_seconds"]),
            )
            for run in runs
        ]  # fmt: skip
        print_table(("JOB", "ENDED", "OUTCOME", "PEAK", "EXPECTED", "RAN", "EXPECTED"), rows)


def _error(error: PredictionError | None) -> str:
    if error is None:
        return "-"
    return f"{100 * error['median']:.1f}%, {100 * error['worst']:+.1f}%, {100 * error['bias']:+.1f}%"
