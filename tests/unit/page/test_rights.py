"""Who sees which button, role by role."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gpuyard.page.views.settings import SECTIONS, section_named, sections_for
from gpuyard.page.visit import Permission, Viewer, may


class Somebody(NamedTuple):
    role: str
    via: str


ADMINS = [Somebody("admin", via) for via in ("loopback", "session")]
OWN = {Permission.SUBMIT, Permission.REVOKE_TOKEN, Permission.SUBSCRIBE}
ALLOWED = {
    **{admin: set(Permission) for admin in ADMINS},
    Somebody("user", "loopback"): OWN | {Permission.MAKE_TOKEN},
    Somebody("user", "session"): OWN,
    Somebody("viewer", "session"): set(),
    Somebody("anonymous", "nobody"): set(),
}


@pytest.mark.parametrize("who", ALLOWED, ids=lambda who: f"{who.role} by {who.via}")
def test_each_role_may_do_what_is_its_own(who: Somebody) -> None:
    assert {deed for deed in Permission if may(Viewer({"user": "ann", **who._asdict()}), deed)} == ALLOWED[who]


@pytest.mark.parametrize(("role", "hidden"), [("admin", set()), ("user", {"audit"}), ("viewer", {"audit"})])
def test_sections_that_are_refused_are_not_listed(role: str, hidden: set[str]) -> None:
    viewer = Viewer({"user": "ann", "role": role, "via": "session"})
    assert {one.name for one in SECTIONS} - {one.name for one in sections_for(viewer)} == hidden


def test_a_link_names_a_section_and_any_other_name_leads_to_the_first() -> None:
    sections = sections_for(Viewer({"user": "ann", "role": "user", "via": "session"}))
    assert section_named(sections, "access").title == "Access and tokens"
    for name in ("", "nothing", "audit"):
        assert section_named(sections, name) is sections[0]
