"""The table of a job's fields, and that everything which is derived from it, or has to agree with it, does."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gpuyard.api.types import Job, Wishes
from gpuyard.cli.jobs.job_options import Edits, Options
from gpuyard.cli.jobs.job_script import read_options
from gpuyard.errors import UserError
from gpuyard.notify.subscriptions import EVENTS, TASKS
from gpuyard.page.views.job_form import read_field
from gpuyard.server.routes.submissions import Changes, Submission
from gpuyard.spec import kinds
from gpuyard.spec.fields import FIELD, FIELDS, FORM_GROUPS, MAIN
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import KINDS, Kind, Moment
from gpuyard.spec.reference import updated
from gpuyard.spec.work import DEFAULTS

NOW = Moment(1_794_823_200.0)
SAMPLES: dict[Kind, list[Any]] = {
    kinds.SWITCH: [True, False], kinds.WHOLE: [0, 7], kinds.NUMBER: [0.0, -2.5, 1e6], kinds.TEXT: ["a b"],
    kinds.DURATION: [0.0, 0.5, 90.0, 5400.0, 172_800.0, 100_000.0], kinds.INSTANT: [1_794_823_260.5],
    kinds.SHARE: ["auto", 6 * 2**30, 2**20 + 1], kinds.PATH: ["run-%j.log"], kinds.CHOICE: ["append"],
    kinds.SIGNAL: ["USR1"], kinds.DEPENDENCY: ["afterok:12:13,afterany:x"], kinds.ARRAY: ["0-99%4"],
    kinds.INDICES: [[0, 1, 3]], kinds.WORDS: [["a", "b"]], kinds.LIST: [["start", "finish"]],
    kinds.VARIABLES: [{"A": "1", "B": "x=y"}], kinds.NAMES: ["A,B=1"],
}  # fmt: skip


def once(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def test_no_name_stands_for_two_fields() -> None:
    assert once([field.name for field in FIELDS])
    assert once([flag for field in FIELDS if field.option for flags in field.option.flags for flag in flags.split("/")])
    assert once([field.attribute for field in FIELDS if field.option])
    assert once([key for field in FIELDS for key in set(field.all_keys)])
    assert once([field.slurm for field in FIELDS if field.slurm])
    assert once([field.json_key for field in FIELDS if field.json_key])


def test_no_two_fields_have_the_same_place() -> None:
    assert once([field.editor for field in FIELDS if field.editor])
    assert once([field.show.place for field in FIELDS if field.show])
    assert once([field.dialog.place for field in FIELDS if field.dialog])
    for group in (MAIN, *FORM_GROUPS):
        places = [field.form.place for field in FIELDS if field.form and field.form.group is group]
        assert places
        assert once(places)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_kind_writes_it_reads_back(kind: Kind) -> None:
    for value in SAMPLES[kind]:
        assert kind.parse(kind.format(value), NOW) == value


def test_defaults_are_within_limits_and_survive_being_written() -> None:
    for field in FIELDS:
        if field.default not in (None, [], {}):
            assert field.kind.parse(field.kind.format(field.default), NOW) == field.default
        if field.editable and field.default not in (None, []):
            assert field.blank == field.default, field.name  # what takes it back is what it is without being said


def test_work_keeps_what_the_table_says() -> None:
    assert {field.name for field in FIELDS if field.stored} <= DEFAULTS.keys()
    assert all(field.json_key in (field.name, "") for field in FIELDS if field.stored)


def test_what_can_change_while_a_job_runs_can_change_while_it_waits() -> None:
    assert all(field.editable for field in FIELDS if field.while_running or field.editor or field.dialog)


def test_the_command_line_and_the_api_have_the_fields() -> None:
    edits = set(Edits.names())
    assert edits == {f.attribute for f in FIELDS if f.option and f.option.edits and f.editable}
    assert set(Options.names()) == {f.attribute for f in FIELDS if f.option}
    changes = {name.removesuffix("_") for name in Changes.model_fields}
    assert changes == {field.name for field in FIELDS if field.editable}
    own = {"command", "environment", "umask", "script", "own_id", "row", "attach"}
    taken = {name.removesuffix("_") for name in Submission.model_fields}
    assert taken == own | {field.name for field in FIELDS} - {"export"}
    for name, model in {**Submission.model_fields, **Changes.model_fields}.items():
        if name not in own | {"tags"}:
            assert model.default == FIELD[name.removesuffix("_")].default, name


BASES: dict[str, Any] = {"boolean": bool, "integer": int, "number": float, "string": str}
TAKEN: dict[Kind, Any] = {
    kinds.INDICES: Sequence[int], kinds.WORDS: Sequence[str], kinds.LIST: Sequence[str], kinds.SHARE: int | str,
    kinds.DURATION: float | str, kinds.INSTANT: float | str,
}  # fmt: skip
GIVEN: dict[Kind, Any] = {
    kinds.INDICES: list[int],
    kinds.WORDS: list[str],
    kinds.LIST: list[str],
    kinds.SHARE: int,
    kinds.INSTANT: str,
}


def bare(kind: Any) -> set[Any]:
    """The parts of a union, without None."""
    parts = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return set(parts) - {type(None)}


def test_the_typed_client_takes_the_fields() -> None:
    hints = typing.get_type_hints(Wishes)
    named = {"among" if field.name == "from" else field.name: field for field in FIELDS}
    for name in ("directory", "variables", "export"):  # parameters of their own, or of the command line only
        del named[name]
    assert hints.keys() - {"script"} == named.keys()
    for name, field in named.items():
        assert bare(hints[name]) == bare(TAKEN.get(field.kind) or BASES[field.kind.json]), name


def test_the_typed_client_gives_the_fields() -> None:
    hints = typing.get_type_hints(Job)
    for field in FIELDS:
        if field.json_key:
            assert bare(hints[field.json_key]) == {GIVEN.get(field.kind) or BASES[field.kind.json]}, field.name


def beyond(field: JobField) -> Iterator[tuple[str, Any]]:
    """Texts and values that the limits of a field exclude."""
    unit = "s" if field.kind is kinds.DURATION else ""
    if field.least is not None:
        yield f"{field.least - 1:.0f}{unit}", field.least - 1
    if field.above is not None:
        yield f"{field.above:.0f}{unit}", field.above
    if field.most is not None:
        yield f"{field.most + 1:.0f}{unit}", field.most + 1
    if field.longest:
        yield "x" * (field.longest + 1), "x" * (field.longest + 1)
    if field.most_items:
        words = [field.choices[0] if field.choices else f"w{n}" for n in range(field.most_items + 1)]
        if once(words):
            yield " ".join(words), words
    if field.kind is kinds.CHOICE:
        yield "nonsense", "nonsense"


BEYOND = [(field.name, text, value) for field in FIELDS for text, value in beyond(field)]


@pytest.mark.parametrize(("name", "text", "value"), BEYOND)
def test_a_value_beyond_a_limit_is_refused_everywhere(name: str, text: str, value: Any) -> None:
    field = FIELD[name]
    for model, needed in ((Submission, {"command": ["x"], "directory": "/"}), (Changes, {})):
        with pytest.raises(ValidationError):
            model.model_validate({**needed, name: value})
    with pytest.raises(UserError):
        read_field(field, text, NOW)
    if not field.option or field.option.local:
        return
    several = text.split() if field.kind.option is list else [text]
    with pytest.raises((UserError, ValidationError)):  # by the command line itself, or by the daemon
        Changes.model_validate(read_options([f"{field.flag}={one}" for one in several], "here").body())


@pytest.mark.parametrize("field", [f for f in FIELDS if f.least is not None or f.most], ids=lambda field: field.name)
def test_a_limit_itself_is_allowed_everywhere(field: JobField) -> None:
    for value in filter(None, (field.least, field.most)):
        if field.kind is kinds.WHOLE:
            value = int(value)
        assert getattr(Submission.model_validate({"command": ["x"], field.name: value}), field.name) == value
        assert read_field(field, field.kind.format(value), NOW) == {field.name: value}
        if field.option:
            asked = read_options([f"{field.flag}={field.kind.format(value)}"], "here")
            assert asked.body() == {field.name: value}


def test_what_may_be_told_of_is_what_notifications_know() -> None:
    assert FIELD["notify_on"].choices == (*EVENTS, TASKS)


def test_the_documented_table_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "queue.md"
    text = page.read_text()
    assert updated(text) == text, f"run: python -m gpuyard.spec.reference {page}"
