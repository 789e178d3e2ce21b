"""A policy as the viewer composes it: its text and settings, and its effect in words. Pure functions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nicegui import ui
from nicegui.element import Element

from gpuyard.errors import UserError
from gpuyard.page.api import Facts, Refused, Unavailable
from gpuyard.page.parts import button, command, doc_sentence, fact, heading, sentence, tagged
from gpuyard.page.views.settings.controls import Cell, Choices, Row, Rows, job_cell, mark, row
from gpuyard.page.visit import Permission, Visit, may
from gpuyard.spec.notation import LEARNED, describe_learned
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
    name: str
    discipline: str
    placement: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """As written; settings that equal their defaults are omitted."""

    @property
    def text(self) -> str:
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
    discipline, placement = (*rest, *(discipline, placement)[len(rest) :])[:2]
    if main.startswith(LEARNED):
        return Draft(main, discipline, placement)
    head, is_file, tail = main.partition(".py:")
    name, _, settings = tail.partition(":") if is_file else main.partition(":")
    pairs = (part.partition("=") for part in settings.split(",") if part)
    found = {key.strip(): value.strip() for key, _, value in pairs}
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


_AGAIN = 5.0  # seconds after which the preview is requested again, if something happened
_PARTS = {"name": "Policy", "discipline": "Discipline", "placement": "Placement"}
_OWN = "A policy of one's own is set on the daemon's machine: gpuyard policy set ./mine.py:my_policy"


class PolicySection:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Permission.SET_POLICY)
        self.present: Draft | None = None
        self._since = self._warning = ""
        self._trained = ""  # description of a trained policy
        self.draft: Draft | None = None
        self.discipline = ""  # the one in force, or chosen since; remembered while a policy cannot have it
        self.wrong: dict[str, str] = {}
        self._asked: tuple[str, int, float] = ("", -1, 0.0)

    async def build(self) -> None:
        answer = await self.visit.feed.ask("/policies", 300.0, until_event=False)
        self.known: KnownPolicies = {one["name"]: one for one in answer["policies"]}
        self.docs = {
            "name": {name: one["doc"].replace("`", "") for name, one in self.known.items()},
            "discipline": answer["disciplines"],
            "placement": answer["placements"],
        }
        self.draft = self._wanted()
        self.discipline = self.draft.discipline if self.draft else ""
        self._in_force = ui.element("div").classes("gy-card gy-in-force")
        with ui.element("div").classes("gy-set-policy"):
            with ui.element("div").classes("gy-set-policy-choices"):
                self._choices(answer)
            if self.free:
                self._changes()
        self._others(answer["aliases"])
        await self.show()  # the policy in force must be known before the viewer chooses
        self.visit.live(self.show)

    def _wanted(self) -> Draft | None:
        if not self.free:
            return None
        draft = parse_policy(self.visit.query.get("policy", "")[:200])
        known = all(getattr(draft, part) in docs for part, docs in self.docs.items())
        return draft if known and set(draft.settings) <= set(self.known[draft.name]["settings"]) else None

    def _choices(self, answer: dict[str, Any]) -> None:
        policies = [
            {
                "name": name,
                "doc": doc_sentence(self.docs["name"][name]),
                "mark": "may stop jobs" if one["preemptive"] else "",
            }
            for name, one in self.known.items()
        ]
        lists = {
            "name": policies,
            "discipline": _listed(answer["disciplines"]),
            "placement": _listed(answer["placements"]),
        }
        titles = {
            "name": "Policy: who is next", "discipline": "Discipline: who may go ahead",
            "placement": "Placement: on which GPUs",
        }  # fmt: skip
        self._lists = {
            part: Choices(titles[part], options, self._chooser(part) if self.free else None)
            for part, options in lists.items()
        }

    def _chooser(self, part: str) -> Any:
        async def choose(name: str) -> None:
            if self.draft is None:
                return
            if part == "discipline":
                self.discipline = name
            wanted = self.draft.with_part(part, name).with_part("discipline", self.discipline)
            await self._drafted(with_valid_discipline(wanted, self.known))

        return choose

    def _changes(self) -> None:
        with (
            ui.element("div")
            .classes("gy-card gy-set-change")
            .props('aria-live=polite aria-label="Your choice" role=region')
        ):
            heading("Your choice", 3)
            self._forced = ui.label().classes("gy-set-forced")
            self._settings = ui.element("div").classes("gy-set-fields")
            self._command = ui.element("div")
            heading("What it would change", 3)
            self._effects = ui.element("ul").classes("gy-set-told").props("aria-live=polite")
            self._order = Rows(
                "The first of the queue in the new order", ("Place", "Now", "Job", "Name", "User"), cards=False
            )
            with ui.element("div").classes("gy-buttons"):
                self._back = button("Leave it as it is", self._reset)
                self._use = button("Use it", self._apply, kind="primary")

    def _others(self, aliases: dict[str, dict[str, str]]) -> None:
        heading("Known by other names", 3)
        with ui.element("ul").classes("gy-set-told"):
            for name, one in aliases.items():
                tagged("li", f"{name} ({one['policy']}): {doc_sentence(one['doc'])}")
        ui.label(_OWN).classes("gy-soft")

    async def show(self) -> None:
        answer = await self.visit.feed.ask("/policy")
        present = parse_policy(answer["policy"])
        since = self.visit.when(answer["since"])
        trained = describe_learned(answer["learned"]) if answer.get("learned") else ""
        facts = present, since, trained, answer.get("warning") or ""
        if self.draft is None or facts != (self.present, self._since, self._trained, self._warning):
            if self.draft in (None, self.present):
                self.draft, self.discipline = present, present.discipline
            moved = present != self.present
            self.present, self._since, self._trained, self._warning = facts
            self._show_in_force(present, since)
            if moved:
                self._show_draft()
        await self._preview()

    def _show_in_force(self, present: Draft, since: str) -> None:
        self._in_force.clear()
        with self._in_force:
            tagged("p", f"{present.text} decides since {since}.").classes("gy-set-lead")
            if self._warning:
                tagged("p", sentence(self._warning)).classes("gy-set-warning")
            with ui.element("dl").classes("gy-set-facts"):
                for part, docs in self.docs.items():
                    name = getattr(present, part)
                    doc = docs.get(name, self._trained or "A policy of this yard's own.")
                    fact(f"{_PARTS[part]} {name}", doc_sentence(doc))

    async def _drafted(self, draft: Draft) -> None:
        self.draft, self.wrong = draft, {}
        self._show_draft()
        await self._preview()

    async def _reset(self) -> None:
        if self.present is not None:
            self.discipline = self.present.discipline
            await self._drafted(self.present)

    def _show_draft(self) -> None:
        draft, present = self.draft, self.present
        if draft is None or present is None:
            return
        for part, choices in self._lists.items():
            barred = barred_disciplines(draft.name, self.known, self.docs[part]) if part == "discipline" else []
            choices.put(getattr(draft, part), getattr(present, part), barred)
        if self.free:
            note = discipline_note(draft, self.discipline)
            self._forced.set_text(note)
            self._forced.set_visibility(bool(note))
            self._show_settings(draft)
            self._show_command(draft)

    def _show_command(self, draft: Draft) -> None:
        self._command.clear()
        with self._command:
            command(f"gpuyard policy set {draft.text}")

    def _show_settings(self, draft: Draft) -> None:
        usual = self.known.get(draft.name, {}).get("settings", {})
        self._settings.clear()
        with self._settings:
            if not usual:
                ui.label(f"{draft.name} has nothing to set.").classes("gy-soft")
            for key, value in usual.items():
                self._field(key, draft.settings.get(key, setting_text(value)), value)

    def _field(self, key: str, text: str, usual: Any) -> Element:
        async def changed(event: Any) -> None:
            await self._set(key, str(event.value or ""), usual, field)

        field: Any
        if key in CHOICES:
            field = ui.select(list(CHOICES[key]), label=key, value=text, on_change=changed)
        else:
            field = ui.input(key, value=text, on_change=changed).props("debounce=400")
        hint = HINTS.get(key, "")
        field._props["hint"] = f"{hint}; usually {setting_text(usual)}" if hint else f"usually {setting_text(usual)}"
        return field.props("outlined dense")  # type: ignore[no-any-return]

    async def _set(self, key: str, text: str, usual: Any, field: Any) -> None:
        if self.draft is None:
            return
        try:
            self.draft = self.draft.with_setting(key, text, usual)
        except UserError as error:
            self.wrong[key] = str(error)
        else:
            self.wrong.pop(key, None)
        mark(field, self.wrong.get(key))
        self._show_command(self.draft)
        await self._preview()

    async def _preview(self) -> None:
        """Request the effect of the draft, if it is not known already."""
        if not self.free or self.draft is None:
            return
        changed = self.draft != self.present and not self.wrong
        self._use.set_visibility(changed)
        self._back.set_visibility(self.draft != self.present or bool(self.wrong))
        if not changed:
            self._tell(["Put right what is marked above." if self.wrong else "Choose another, and see it here first."])
            self._asked = ("", -1, 0.0)
            return
        text, happened, at = self._asked
        now, fresh = time.monotonic(), self.visit.feed.happened
        if text == self.draft.text and (happened == fresh or now - at < _AGAIN):
            return
        self._asked = (self.draft.text, fresh, now)
        await self._ask(self.draft.text)

    async def _ask(self, text: str) -> None:
        try:
            answer = await self.visit.api.post("/policy/preview", {"policy": text})
        except Refused as error:
            self._use.set_visibility(False)
            self._tell([f"This cannot be used: {error}"])
            return
        except Unavailable:
            return  # the banner says so
        if self.draft is not None and self.draft.text == text:
            self._tell(preview_sentences(answer))
            self._order.put(order_rows(answer))

    def _tell(self, lines: list[str]) -> None:
        self._order.put([])
        self._effects.clear()
        with self._effects:
            for line in lines:
                tagged("li", line)

    async def _apply(self) -> None:
        if self.draft is not None and not self.wrong:
            text = self.draft.text
            setting = self.visit.api.ask("PUT", "/policy", {"policy": text})
            if await self.visit.do(setting, f"{text} decides from now on."):
                self.draft = None  # will be read again, as the daemon writes it


def _listed(docs: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "doc": doc_sentence(doc)} for name, doc in docs.items()]
