"""Policies as the form has them, and what another would change in words."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.core.loops.backfill import DISCIPLINES
from gpuyard.core.policies import POLICIES
from gpuyard.errors import UserError
from gpuyard.page.views.settings.policy_settings import (
    CHOICES,
    HINTS,
    Draft,
    barred_disciplines,
    checked_setting,
    discipline_note,
    order_rows,
    parse_policy,
    preview_sentences,
    setting_text,
    with_valid_discipline,
)
from gpuyard.policies.resolver import make_planner


@pytest.mark.parametrize(
    "text",
    ["fcfs@easy@pack", "multifactor:ageing=2,fairness=0.5@skip@spread", "las:queues=10/20@skip@first",
     "./mine.py:mine:power=2@easy@pack", "learned:/srv/a=b,c.json@easy@pack"],
)  # fmt: skip
def test_a_policy_is_taken_apart_and_put_together_again(text: str) -> None:
    assert parse_policy(text).text == text


def test_parts_that_a_text_leaves_out_are_as_given() -> None:
    assert parse_policy("sjf@skip", "easy", "pack").text == "sjf@skip@pack"
    assert parse_policy("sjf", "easy", "pack").text == "sjf@easy@pack"


def test_another_policy_begins_with_its_usual_settings() -> None:
    draft = parse_policy("multifactor:ageing=2@easy@pack")
    assert draft.with_part("name", "wfp3").text == "wfp3@easy@pack"
    assert draft.with_part("name", "multifactor") == draft
    assert (
        draft.with_part("discipline", "skip").with_part("placement", "first").text == "multifactor:ageing=2@skip@first"
    )


def test_a_setting_that_is_as_usual_is_not_written() -> None:
    draft = parse_policy("wfp3:power=2@easy@pack")
    assert draft.with_setting("power", "3.0", 3.0).settings == {}
    assert draft.with_setting("power", "", 3.0).settings == {}
    assert draft.with_setting("power", " 4 ", 3.0).text == "wfp3:power=4@easy@pack"


@pytest.mark.parametrize(
    ("key", "text", "usual", "said"),
    [("power", "much", 3.0, "takes a number"), ("power", "nan", 3.0, "takes a number"),
     ("queues", "20/10", [1.0, 2.0], "ascending"), ("arrivals", "middle", "last", "last or first"),
     ("quantum", "soon", 10.0, "soon")],
)  # fmt: skip
def test_what_is_wrong_with_a_setting_is_said(key: str, text: str, usual: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        checked_setting(key, text, usual)


def test_all_settings_of_all_policies_can_be_written_so_that_the_daemon_takes_them() -> None:
    for policy in POLICIES.values():
        usual = dict(policy.defaults) | ({"quantum": policy.quantum} if policy.preemptive else {})
        assert set(usual) <= set(HINTS)
        for key, value in usual.items():
            other = _other(key, value)
            draft = Draft(policy.name, "skip", "first").with_setting(key, other, value)
            assert draft.settings, (policy.name, key)
            assert parse_policy(make_planner(draft.text).text).settings == draft.settings


def test_each_policy_can_be_chosen_whatever_the_discipline_was() -> None:
    known = {policy.name: {"preemptive": policy.preemptive} for policy in POLICIES.values()}
    for discipline in DISCIPLINES:
        for name in POLICIES:
            draft = with_valid_discipline(parse_policy(f"fcfs@{discipline}@first").with_part("name", name), known)
            assert make_planner(draft.text).text == draft.text
            assert draft.discipline == discipline or POLICIES[name].preemptive


def test_a_policy_that_cannot_have_the_discipline_says_so() -> None:
    known = {policy.name: {"preemptive": policy.preemptive} for policy in POLICIES.values()}
    draft = with_valid_discipline(parse_policy("srtf@easy@pack"), known)
    assert (
        discipline_note(draft, "easy")
        == "srtf may stop jobs, and cannot keep places free as easy does: with it, it is skip."
    )
    assert discipline_note(draft, "skip") == ""
    assert "easy" in barred_disciplines("srtf", known, DISCIPLINES)
    assert not {"skip", "strict"} & set(barred_disciplines("srtf", known, DISCIPLINES))
    assert barred_disciplines("fcfs", known, DISCIPLINES) == []


def _other(key: str, value: Any) -> str:
    if key in CHOICES:
        return next(choice for choice in CHOICES[key] if choice != value)
    return "1 2,3" if isinstance(value, tuple) else setting_text(value + 1)


def _told(**more: Any) -> dict[str, Any]:
    return {"starts": [], "stops": [], "order": [], "moved": 0, "waiting": 0, "note": None, **more}


def test_changes_are_told_as_sentences() -> None:
    assert preview_sentences(_told()) == [
        "Nothing would start at once.", "Nobody would be stopped.", "No job waits, so there is no order to change.",
    ]  # fmt: skip
    told = _told(starts=["7"], stops=[str(n) for n in range(10)], moved=3, waiting=5000, note="drawn by lot")
    assert preview_sentences(told) == [
        "1 job would start at once: 7.",
        "10 jobs would be stopped, and wait again: 0, 1, 2, 3, 4, 5, 6, 7 and 2 more.",
        "3 of 5,000 waiting jobs would change places.",
        "Drawn by lot.",
    ]


def test_the_new_order_says_who_moves_where() -> None:
    order = [
        {"id": "9", "name": "<img src=x>", "user": "ann", "place": 1, "was": 3},
        {"id": "7", "name": "b", "user": "bob", "place": 2, "was": 2},
        {"id": "8", "name": "c", "user": "bob", "place": 3, "was": 1},
    ]
    rows = order_rows(_told(order=order, moved=2, waiting=3))
    assert [row["cells"][1]["text"] for row in rows] == ["↑ up from 3", "as now", "↓ down from 1"]
    assert rows[0]["cells"][3] == "<img src=x>"
    assert order_rows(_told(order=order, waiting=3)) == []
