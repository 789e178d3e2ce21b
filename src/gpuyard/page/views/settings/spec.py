"""Policies as text, `name[:key=value,...]@discipline@placement`: taken apart for the form, and put together again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuyard.errors import UserError
from gpuyard.policytext import LEARNED
from gpuyard.units import parse_duration

Known = Mapping[str, Mapping[str, Any]]
"""Policies by name, as the API lists them."""
CHOICES = {"arrivals": ("last", "first")}
"""Settings that take one of some words."""
PREEMPTIVE = ("skip", "strict")
"""The disciplines that policies which may stop jobs can have."""
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
    """A policy as somebody is about to choose it."""

    name: str
    discipline: str
    placement: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """As they are written; those that are as usual are left out."""

    @property
    def text(self) -> str:
        """All of it, as the command line and the API take it."""
        written = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}{':' if written else ''}{written}@{self.discipline}@{self.placement}"

    def with_part(self, part: str, name: str) -> Draft:
        """Another `discipline` or `placement`, or another policy (`name`), with its usual settings."""
        if part == "discipline":
            return replace(self, discipline=name)
        if part == "placement":
            return replace(self, placement=name)
        return self if name == self.name else replace(self, name=name, settings={})

    def with_setting(self, key: str, value: str, usual: Any) -> Draft:
        """A setting changed; UserError says what is wrong with it."""
        text = checked(key, value, usual)
        settings = {name: old for name, old in self.settings.items() if name != key}
        return replace(self, settings=settings if text == written(usual) else {**settings, key: text})


def parse(text: str, discipline: str = "", placement: str = "") -> Draft:
    """A policy's text, taken apart; what it does not say is as given."""
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


def fitting(draft: Draft, known: Known) -> Draft:
    """The same, with a discipline that the policy can have: those that may stop jobs cannot keep places free."""
    preemptive = known.get(draft.name, {}).get("preemptive", False)
    return replace(draft, discipline="skip") if preemptive and draft.discipline not in PREEMPTIVE else draft


def barred(name: str, known: Known, disciplines: Iterable[str]) -> list[str]:
    """The disciplines that a policy cannot have."""
    return [one for one in disciplines if fitting(Draft(name, one, ""), known).discipline != one]


def forced(draft: Draft, wanted: str) -> str:
    """A line that says why a draft has another discipline than is wanted; empty if it has that."""
    if draft.discipline == wanted:
        return ""
    return (
        f"{draft.name} may stop jobs, and cannot keep places free as {wanted} does: with it, it is {draft.discipline}."
    )


def written(value: Any) -> str:
    """A setting's value, as it is written."""
    if isinstance(value, list | tuple):
        return "/".join(map(written, value))
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def checked(key: str, text: str, usual: Any) -> str:
    """A setting as it is to be written; UserError says what is wrong with it."""
    text = text.strip()
    if not text:
        return written(usual)
    if key in CHOICES:
        return _one_of(key, text)
    if isinstance(usual, list | tuple):
        numbers = [_number(key, part) for part in text.replace(",", "/").replace(" ", "/").split("/") if part]
        if numbers != sorted(numbers):
            raise UserError(f"{key} takes ascending numbers, as in {written(usual)}")
        return written(numbers)
    if key == "quantum":
        return written(parse_duration(text))
    return written(_number(key, text)) if isinstance(usual, float | int) else text


def _one_of(key: str, text: str) -> str:
    if text not in CHOICES[key]:
        raise UserError(f"{key} takes {' or '.join(CHOICES[key])}, not '{text}'")
    return text


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{key} takes a number, not '{text}'")
    return number
