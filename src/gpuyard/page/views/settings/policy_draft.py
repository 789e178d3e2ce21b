"""A policy as the viewer composes it: its text and settings, and its effect in words. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuyard.errors import UserError
from gpuyard.page.api import Facts
from gpuyard.page.parts import sentence
from gpuyard.page.views.settings.controls import Cell, Row, job_cell, row
from gpuyard.spec.notation import LEARNED
from gpuyard.units import parse_duration

KnownPolicies = Mapping[str, Facts]  # policies by name, as the API lists them
CHOICES = {"arrivals": ("last", "first")}  # settings that take one of some words
PREEMPTIVE = ("skip", "strict")  # disciplines that work with preemptive policies
HINTS = {
    "ageing": "what an hour of waiting adds to the priority",
    "fairness": "what a GPU-hour that the user had takes from it",
    "power": "how much more long waits count",
    "quantum": "seconds that a job runs before it can be stopped for another",
    "queues": "GPU-seconds at which a job drops to the next queue, ascending, with / in between",
    "arrivals": "where a new job joins the round",
}


@dataclass(frozen=True, slots=True)
class Draft:
    """A policy that the viewer is about to choose."""

    name: str
    discipline: str
    placement: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """As written; settings that equal their defaults are omitted."""

    @property
    def text(self) -> str:
        """As the command line and the API take it."""
        written = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}{':' if written else ''}{written}@{self.discipline}@{self.placement}"

    def with_part(self, part: str, name: str) -> Draft:
        """Another `discipline`, `placement`, or policy (`name`) with its default settings."""
        if part == "discipline":
            return replace(self, discipline=name)
        if part == "placement":
            return replace(self, placement=name)
        return self if name == self.name else replace(self, name=name, settings={})

    def with_setting(self, key: str, value: str, usual: Any) -> Draft:
        text = checked_setting(key, value, usual)
        settings = {name: old for name, old in self.settings.items() if name != key}
        return replace(self, settings=settings if text == setting_text(usual) else {**settings, key: text})


def parse_policy(text: str, discipline: str = "", placement: str = "") -> Draft:
    """Parse a policy's text; missing parts are as given."""
    main, *rest = text.split("@")
    if main.startswith(LEARNED):
        discipline, placement = (*(part for part in rest), *(discipline, placement)[len(rest) :])[:2]
        return Draft(main, discipline, placement)
    head, is_file, tail = main.partition(".py:")
    name, _, settings = tail.partition(":") if is_file else main.partition(":")
    pairs = (part.partition("=") for part in settings.split(",") if part)
    found = {key.strip(): value.strip() for key, _, value in pairs}
    discipline, placement = (*(part for part in rest), *(discipline, placement)[len(rest) :])[:2]
    return Draft(f"{head}.py:{name}" if is_file else name, discipline, placement, found)


def with_valid_discipline(draft: Draft, known: KnownPolicies) -> Draft:
    """A preemptive policy cannot reserve places, so other disciplines become `skip`."""
    preemptive = known.get(draft.name, {}).get("preemptive", False)
    return replace(draft, discipline="skip") if preemptive and draft.discipline not in PREEMPTIVE else draft


def barred_disciplines(name: str, known: KnownPolicies, disciplines: Iterable[str]) -> list[str]:
    return [one for one in disciplines if with_valid_discipline(Draft(name, one, ""), known).discipline != one]


def discipline_note(draft: Draft, wanted: str) -> str:
    """Why a draft has another discipline than the wanted one; else empty."""
    if draft.discipline == wanted:
        return ""
    return (
        f"{draft.name} may stop jobs, and cannot keep places free as {wanted} does: with it, it is {draft.discipline}."
    )


def setting_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "/".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def checked_setting(key: str, text: str, usual: Any) -> str:
    text = text.strip()
    if not text:
        return setting_text(usual)
    if key in CHOICES:
        if text not in CHOICES[key]:
            raise UserError(f"{key} takes {' or '.join(CHOICES[key])}, not '{text}'")
        return text
    if isinstance(usual, list | tuple):
        numbers = [_number_setting(key, part) for part in text.replace(",", "/").replace(" ", "/").split("/") if part]
        if numbers != sorted(numbers):
            raise UserError(f"{key} takes ascending numbers, as in {setting_text(usual)}")
        return setting_text(numbers)
    if key == "quantum":
        return setting_text(parse_duration(text))
    return setting_text(_number_setting(key, text)) if isinstance(usual, float | int) else text


def _number_setting(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{key} takes a number, not '{text}'")
    return number


MOST_NAMED = 8  # jobs that a sentence names


def preview_sentences(preview: Facts) -> list[str]:
    starts, stops = preview["starts"], preview["stops"]
    waiting, moved = preview["waiting"], preview["moved"]
    found = [
        f"{_jobs(starts)} would start at once: {_named(starts)}." if starts else "Nothing would start at once.",
        f"{_jobs(stops)} would be stopped, and wait again: {_named(stops)}." if stops else "Nobody would be stopped.",
    ]
    if not waiting:
        found.append("No job waits, so there is no order to change.")
    elif not moved:
        found.append(f"The order of the {waiting:,} waiting jobs would stay as it is." if waiting > 1 else
                     "The one job that waits would stay where it is.")  # fmt: skip
    else:
        found.append(f"{moved:,} of {waiting:,} waiting jobs would change places.")
    note = preview.get("note")
    return [*found, sentence(note)] if note else found


def order_rows(preview: Facts) -> list[Row]:
    """The head of the queue in its new order; empty if nothing moves."""
    if not preview["moved"]:
        return []
    return [
        row(one["id"], str(one["place"]), _moved(one["place"], one.get("was")), job_cell(one["id"]), one["name"],
            one["user"])
        for one in preview["order"]
    ]  # fmt: skip


def _moved(place: int, was: int | None) -> Cell:
    if was is None:
        return "new here"
    if place == was:
        return {"text": "as now", "soft": True}
    return {
        "text": f"↑ up from {was}" if place < was else f"↓ down from {was}",
        "chip": "gy-succeeded" if place < was else "gy-held",
    }


def _jobs(ids: Sequence[str]) -> str:
    return "1 job" if len(ids) == 1 else f"{len(ids):,} jobs"


def _named(ids: Sequence[str]) -> str:
    named = ", ".join(ids[:MOST_NAMED])
    return named if len(ids) <= MOST_NAMED else f"{named} and {len(ids) - MOST_NAMED:,} more"
