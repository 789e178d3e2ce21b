"""`gpuyard edit`, `clone` and `retry`: change a job, or queue it again with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import DaemonOptions, JobId, option_groups
from gpuyard.cli.jobs.job_options import Edits, Options
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.api.types import Wishes

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NONE = "none"
_CLEARED = {
    "from_": "among", "gpu_memory": "gpu_memory", "name": "name", "time": "time_limit", "estimate": "estimate",
    "begin": "begin", "deadline": "deadline", "dependency": "dependency", "grace": "grace", "output": "output",
    "error": "error", "open_mode": "open_mode", "retry_delay": "retry_delay", "tag": "tags", "notify_on": "notify_on",
    "profile": "profile", "simulate_use": "simulate_use",
}  # fmt: skip
"""Options that can be taken back, and what the client calls them."""


@option_groups
def edit(yard: DaemonOptions, job: JobId, edits: Edits, json: Json = False) -> None:
    """Change what a job asks for (none takes something back); without options, in your editor."""
    client = yard.client()

    def apply(changes: Wishes) -> bool:
        found = client.edit(job, **changes)
        if json:
            output.print_json(found)
        else:
            output.say(f"job {job}: changed {', '.join(_spelled(name) for name in changes)}")
        return True

    if changes := changes_of(edits):
        apply(changes)
        return
    from gpuyard.cli.jobs.editor import in_editor

    if not in_editor(client.job(job), apply):
        output.say(f"job {job}: nothing changed")


def changes_of(edits: Edits) -> Wishes:
    """What is to change; `none` takes a wish back."""
    from dataclasses import replace

    cleared: dict[str, Any] = {}
    for name, wish in _CLEARED.items():
        value = getattr(edits, name)
        if value == _NONE or value == [_NONE]:
            cleared[wish] = [] if wish == "tags" else None
            edits = replace(edits, **{name: None})
    return {**edits.wishes(), **cleared}  # type: ignore[typeddict-item]


def _spelled(name: str) -> str:
    return {"among": "from"}.get(name, name).replace("_", " ")


@option_groups
def clone(
    yard: DaemonOptions,
    words: Annotated[
        list[str],
        typer.Argument(metavar="ID [-- COMMAND ARGS]", show_default=False, help="The job, and what to run instead."),
    ],
    options: Options,
    json: Json = False,
) -> None:
    """Queue the same command once more, with the same environment, and with changes."""
    id, *command = words
    if options.env or options.export:
        raise UserError("a clone has the environment of the job that it is a copy of; submit it anew for another one")
    client = yard.client()
    directory = options.directory() if options.chdir and client.host is None else options.chdir
    new = client.clone(id, command or None, directory=directory, **changes_of(options))
    _print(new, json)


@option_groups
def retry(yard: DaemonOptions, job: JobId, json: Json = False) -> None:
    """Queue a job that is over once more; of an array, the tasks that did not succeed."""
    _print(yard.client().retry(job), json)


def _print(id: str, json: bool) -> None:
    if json:
        output.print_json({"id": id})
    else:
        print(id)
