"""Quotas and shares: what people may have, deserve and have had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.page.parts import button, empty, span
from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings.forms import ask, fields, number_field, text_field
from gpuyard.page.views.settings.tables import Cell, Row, Rows, act, bar_cell, row
from gpuyard.page.visit import Visit

_HEADS = ("Who", "Group", "GPUs now", "GPU-hours in 7 days", "Share", "Lately")
Wish = dict[str, Any]


async def build(visit: Visit) -> None:
    """Make the section."""
    _Rules(visit).build()


class _Rules:
    """The table as one viewer sees it."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.free = may(visit.viewer, Deed.SET_RULES)
        self._users: dict[str, Mapping[str, Any]] = {}

    def build(self) -> None:
        """Make the elements."""
        self._says = ui.label("").classes("gy-soft")
        self._rows = Rows("Quotas, shares and use", _HEADS, self._act if self.free else None)
        self._none = empty(
            "Nobody has submitted anything yet, and nobody has a quota. An admin sets one like this:",
            "gpuyard quota set ann --gpus 4 --gpu-hours 200", "gpuyard share set @vision 2",
        )  # fmt: skip
        self._none.set_visibility(False)
        if self.free:
            with ui.element("div").classes("gy-buttons gy-set-left"):
                button("Set a quota or a share", lambda: self._change(""), kind="primary")
        self.visit.live(self.show)

    async def show(self) -> None:
        """Show how everybody stands."""
        told = await self.visit.feed.ask("/rules", 10.0)
        users = told["users"]
        self._users = {one["name"]: one for one in users}
        self._says.set_text(says(told))
        self._rows.put([rule_row(one, users, acts=_ACTS if self.free else ()) for one in users])
        self._none.set_visibility(not users)

    async def _act(self, name: str, act: str) -> None:
        await self._change(name)

    async def _change(self, name: str) -> None:
        known = self._users.get(name)
        title = f"What may {called(name)} have?" if name else "Set a quota or a share"
        wish = await ask(title, lambda: _fields(name, known), "Set it")
        if not wish:
            return
        if not (who := wish["name"]):
            ui.notify("Say whom it is for: a user, a group as @name, or * for everybody else.", type="negative")
            return
        await self.visit.do(self._put(who, wish), f"That holds for {called(who)} from now on.")

    async def _put(self, who: str, wish: Wish) -> None:
        path, changed = quote(who, safe=""), changes(self._users.get(who), wish)
        if quota := {key: changed[key] for key in ("gpus", "gpu_hours") if key in changed}:
            await self.visit.api.ask("PUT", f"/rules/quotas/{path}", quota)
        if "weight" in changed:
            await self.visit.api.ask("PUT", f"/rules/shares/{path}", {"weight": changed["weight"]})


_ACTS = (act("change", "Change"),)


def _fields(name: str, known: Mapping[str, Any] | None) -> Callable[[], Wish]:
    """The fields of a rule, and what reads them."""
    known = known or {"quota_gpus": None, "quota_gpu_hours": None, "weight": 1.0}
    with fields():
        who = text_field("For whom", "a user, a group as @name, or * for everybody else") if not name else None
        gpus = number_field("GPUs at once", "empty: any number", known["quota_gpus"])
        hours = number_field("GPU-hours in any 7 days", "empty: any number", known["quota_gpu_hours"])
        weight = number_field("Share", "relative to the others' 1", known["weight"], 0.01)
    return lambda: {
        "name": name or str(who.value if who is not None else "").strip(),
        "gpus": int(gpus.value or 0),
        "gpu_hours": float(hours.value or 0),
        "weight": float(weight.value or 1),
    }


def changes(known: Mapping[str, Any] | None, wish: Wish) -> Wish:
    """What differs from how it stands: what comes from a rule for everybody is not made somebody's own by a look."""
    before = {
        "gpus": (known or {}).get("quota_gpus") or 0,
        "gpu_hours": (known or {}).get("quota_gpu_hours") or 0,
        "weight": (known or {}).get("weight", 1.0),
    }
    return {key: wish[key] for key, value in before.items() if wish[key] != value}


def called(name: str) -> str:
    """Whom a rule is for, in words."""
    if name == "*":
        return "everybody else"
    return f"the group {name[1:]}" if name.startswith("@") else name


def says(told: Mapping[str, Any]) -> str:
    """What the numbers are."""
    half = told["half_life"]
    fades = f"count half after {span(half)}" if half else "never fade"
    stops = "Preemptible jobs are stopped" if told["preempts"] else "No job is stopped"
    return f"Lately is what fair shares go by: GPU-hours, which {fades}. {stops} for others."


def rule_row(one: Mapping[str, Any], everybody: list[Mapping[str, Any]], acts: Any = ()) -> Row:
    """What somebody deserves, may have and has had."""
    most_gpus, most_hours, week = one["quota_gpus"], one["quota_gpu_hours"], one["week_gpu_hours"]
    gpus = f"{one['gpus']} of {most_gpus}" if most_gpus else f"{one['gpus']}, no quota"
    hours = f"{week:,.1f} of {most_hours:,.0f}" if most_hours else f"{week:,.1f}, no quota"
    return row(
        one["name"], one["name"] if one["name"] != "*" else "* (everybody else)", one["group"] or "",
        bar_cell(one["gpus"], most_gpus, gpus), bar_cell(week, most_hours, hours),
        f"{one['weight']:g}", lately(one, everybody), acts=acts,
    )  # fmt: skip


def lately(one: Mapping[str, Any], everybody: list[Mapping[str, Any]]) -> Cell:
    """What somebody had lately, and how that is to what they deserve among those who had something."""
    used = [other for other in everybody if other["faded_gpu_hours"] > 0]
    hours = one["faded_gpu_hours"]
    if one not in used:
        return f"{hours:,.1f} h"
    part = hours / sum(other["faded_gpu_hours"] for other in used)
    due = one["weight"] / sum(other["weight"] for other in used)
    return {"text": f"{hours:,.1f} h: {100 * part:.0f} %, where {100 * due:.0f} % is fair", "bar": round(part, 3)}
