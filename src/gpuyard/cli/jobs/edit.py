"""`gpuyard edit`, `clone` and `retry`: change a job, or queue it again with changes."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuyard.cli.common_options import DaemonOptions, JobId, SomeJobIds, option_groups
from gpuyard.cli.jobs.cancel import Selection
from gpuyard.cli.jobs.job_options import Edits, Options
from gpuyard.cli.terminal import output
from gpuyard.errors import GpuyardError, UserError, suggest
from gpuyard.spec.fields import FIELDS, option_fields
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import DURATION, INDICES, NUMBER, SHARE, SIGNAL, Moment
from gpuyard.units import format_number

if TYPE_CHECKING:
    from gpuyard.api.types import Job

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NONE = "none"
_SHOWN_FIRST = (
    "name", "tags", "gpus", "from", "gpu_memory", "priority", "estimate", "time_limit", "grace", "preemptible",
    "adaptive", "signal", "notice", "requeue",
)  # fmt: skip
"""The order in which changes are reported; others follow in the order of the options."""
_EDITED = {field.key: field for field in sorted(FIELDS, key=lambda field: field.editor) if field.editor}


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


# -- a job's description in the user's editor ---------------------------------------------------------


def in_editor(job: Job, apply: Callable[[dict[str, Any]], T]) -> T | None:
    """Apply the changes that the user makes to a job's description in an editor; None if there are none.

    What they wrote is kept where it cannot be used.
    """
    import yaml  # here, because few need it

    before = described(job)
    handle, path = tempfile.mkstemp(".yaml", f"gpuyard-{job['id']}-")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(f"# Job {job['id']}: change what you like, and leave the editor. null takes something back.\n")
        file.write(yaml.safe_dump(before, sort_keys=False, allow_unicode=True))
    try:
        _edit(path)
    except UserError:  # the edit failed: no changes to keep
        os.unlink(path)
        raise
    try:
        changes = _changes(before, _parsed(Path(path).read_text(encoding="utf-8")))
        done = apply(changes) if changes else None
    except GpuyardError:
        output.say(f"what you wrote is kept in {path}")
        raise
    os.unlink(path)
    return done


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    unknown = [key for key in after if key not in before]
    if unknown:
        raise UserError(f"there is no '{unknown[0]}' to be changed{suggest(unknown[0], before)}; nothing was changed")
    changed = {key: after.get(key) for key in before if _text(after.get(key)) != _text(before[key])}
    if "from" in changed:  # by itself it would mean all of these GPUs, but how many there are to be stands there too
        changed["gpus"] = after.get("gpus") or before["gpus"]
    return _body(changed)


def described(job: Job) -> dict[str, Any]:
    return {key: _described(field, job) for key, field in _EDITED.items()}


def _described(field: JobField, job: Mapping[str, Any]) -> Any:
    value = job[field.json_key]
    if field.kind is DURATION:
        return _seconds(value)
    if field.kind is INDICES:
        return field.kind.format(value or ()) or None
    if field.kind is SHARE:
        return "auto" if job["gpu_memory_asked"] == "auto" else _plain(value)
    if field.kind is SIGNAL:
        return value + (f"@{_seconds(job['notice'])}" if job["notice"] else "")
    return _plain(value) if field.kind is NUMBER else value


def _plain(value: float | None) -> float | None:
    return int(value) if value is not None and float(value).is_integer() else value


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{format_number(value)}s"


def _edit(path: str) -> None:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        code = subprocess.run([*editor, path], check=False).returncode
    except OSError as error:
        raise UserError(f"the editor {editor[0]} cannot be started ({error.strerror}); set EDITOR") from error
    if code:
        raise UserError(f"the editor ended with code {code}, so nothing was changed")


def _parsed(text: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.load(text, Loader=yaml.BaseLoader)  # texts only: 16:00 is no number
    except yaml.YAMLError as error:
        raise UserError(f"this is not YAML any more, so nothing was changed: {error}") from error
    if not isinstance(found, dict):
        raise UserError("these are not keys and values any more, so nothing was changed")
    return {key: None if value in ("null", "", "~") else value for key, value in found.items()}


def _text(value: Any) -> Any:
    """A value as the file has it: numbers come back as texts."""
    if isinstance(value, list):
        return [str(part) for part in value] or None
    if value is None or value == "[]":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return format_number(value) if isinstance(value, int | float) else str(value)


def _body(changed: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    cleared: dict[str, Any] = {}
    for key, value in changed.items():
        field = _EDITED[key]
        if value is None:
            cleared[field.name] = field.blank
        elif field.kind.option is list:
            options[field.attribute] = value if isinstance(value, list) else [str(value)]
        else:
            options[field.attribute] = _parsed_option(field, str(value))
    return {**changes_of(Edits(**options)), **cleared}


def _parsed_option(field: JobField, text: str) -> Any:
    if field.kind.option is str:
        return text
    try:
        return field.kind.parse(text, Moment(0.0))
    except UserError:
        raise UserError(f"{field.complaint(text, field.key)}; nothing was changed") from None
