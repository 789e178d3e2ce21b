"""Who sees which button, role by role."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gpuyard.page.rights import Deed, may
from gpuyard.page.views.settings import SECTIONS, chosen, shown_to
from gpuyard.page.visit import Viewer


class Somebody(NamedTuple):
    role: str
    via: str


ADMINS = [Somebody("admin", via) for via in ("loopback", "session")]
OWN = {Deed.SUBMIT, Deed.REVOKE_TOKEN, Deed.SUBSCRIBE}
ALLOWED = {
    **{admin: set(Deed) for admin in ADMINS},
    Somebody("user", "loopback"): OWN | {Deed.MAKE_TOKEN},
    Somebody("user", "session"): OWN,
    Somebody("viewer", "session"): set(),
    Somebody("anonymous", "nobody"): set(),
}


@pytest.mark.parametrize("who", ALLOWED, ids=lambda who: f"{who.role} by {who.via}")
def test_each_role_may_do_what_is_its_own(who: Somebody) -> None:
    assert {deed for deed in Deed if may(who, deed)} == ALLOWED[who]


@pytest.mark.parametrize(("role", "hidden"), [("admin", set()), ("user", {"audit"}), ("viewer", {"audit"})])
def test_sections_that_are_refused_are_not_listed(role: str, hidden: set[str]) -> None:
    viewer = Viewer({"user": "ann", "role": role, "via": "session"})
    assert {one.name for one in SECTIONS} - {one.name for one in shown_to(viewer)} == hidden


def test_a_link_names_a_section_and_any_other_name_leads_to_the_first() -> None:
    sections = shown_to(Viewer({"user": "ann", "role": "user", "via": "session"}))
    assert chosen(sections, "access").title == "Access and tokens"
    for name in ("", "nothing", "audit"):
        assert chosen(sections, name) is sections[0]
