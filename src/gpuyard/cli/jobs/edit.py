"""`gpuyard edit`, `clone` and `retry`: change a job, or queue it again with changes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuyard.cli.common_options import DaemonOptions, JobId, SomeJobIds, option_groups
from gpuyard.cli.jobs.cancel import Selection
from gpuyard.cli.jobs.job_options import Edits, Options
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.spec.fields import option_fields

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NONE = "none"
_SHOWN_FIRST = (
    "name", "tags", "gpus", "from", "gpu_memory", "priority", "estimate", "time_limit", "grace", "preemptible",
    "adaptive", "signal", "notice", "requeue",
)  # fmt: skip
"""The order in which changes are reported; others follow in the order of the options."""


@option_groups
def edit(yard: DaemonOptions, job: JobId, edits: Edits, json: Json = False) -> None:
    """Change what a job asks for (none takes something back); without options, in your editor."""
    client = yard.client()

    def apply(changes: dict[str, Any]) -> bool:
        found = client.edit(job, **changes)
        if json:
            output.print_json(found)
        else:
            output.say(f"job {job}: changed {', '.join(changes).replace('_', ' ')}")
        return True

    if changes := changes_of(edits):
        apply(changes)
        return
    from gpuyard.cli.jobs.editor import in_editor

    if not in_editor(client.job(job), apply):
        output.say(f"job {job}: nothing changed")


def changes_of(edits: Edits) -> dict[str, Any]:
    """What is to change, as the API takes it; `none` takes a field back."""
    cleared: dict[str, Any] = {}
    for field in option_fields(edits=True):
        if field.clears and getattr(edits, field.attribute) in (_NONE, [_NONE]):
            cleared[field.name] = field.blank
            edits = edits.changed(**{field.attribute: None})
    body = edits.body()
    first = [name for name in _SHOWN_FIRST if name in body]
    return {**{name: body.pop(name) for name in first}, **body, **cleared}


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
def retry(yard: DaemonOptions, selection: Selection, jobs: SomeJobIds = None, json: Json = False) -> None:
    """Queue jobs that are over once more; of an array, the tasks that did not succeed."""
    client = yard.client()
    if not selection.given_by_options:
        for job in selection.ids(jobs or ()):
            _print(client.retry(job), json)
        return
    found = selection.change(client, jobs or (), "retry")
    for id in found["ids"]:
        _print(id, json)
    output.say(f"{output.many(found['changed'], 'job')} queued again" if found["matched"] else "no job fits")


@option_groups
def requeue(yard: DaemonOptions, job: JobId, json: Json = False) -> None:
    """Stop a running job, and let it wait again; it keeps its id."""
    found = yard.client().requeue(job)
    waits = found["state"] in ("queued", "held")
    said = "waits already" if waits else "asked to end, and waits again then"
    output.print_either(json, found, lambda: output.say(f"job {job}: {said}"))


def _print(id: str, json: bool) -> None:
    output.print_either(json, {"id": id}, lambda: print(id))
