"""The page shows each role the buttons that the daemon lets it press, and no others: the daemon itself is asked."""

from __future__ import annotations

import os

import pytest
from tests.doors import JOB, Door

from gpuyard.engines.local.accounts import name_of
from gpuyard.page.visit import Permission, Viewer, may

ME = name_of(os.geteuid())
TRIES: dict[Permission, tuple[str, str, object]] = {
    Permission.SUBMIT: ("POST", "/v1/jobs", JOB),
    Permission.SET_POLICY: ("PUT", "/v1/policy", {"policy": "nonsense"}),
    Permission.DRAIN: ("POST", "/v1/gpus/drain", {"gpus": [99]}),
    Permission.RESERVE: ("POST", "/v1/reservations", {"gpus": [0], "begin": 0, "end": 1}),
    Permission.SET_RULES: ("PUT", "/v1/rules/quotas/@", {"gpus": 1}),
    Permission.MAKE_TOKEN: ("POST", "/v1/tokens", {}),
    Permission.MAKE_ANY_TOKEN: ("POST", "/v1/tokens", {"user": "carol"}),
    Permission.REVOKE_TOKEN: ("DELETE", "/v1/tokens/{own}", {}),
    Permission.REVOKE_ANY_TOKEN: ("DELETE", "/v1/tokens/{other}", {}),
    Permission.READ_AUDIT: ("GET", "/v1/audit", None),
    Permission.READ_DELIVERIES: ("GET", "/v1/notifications?all=true", None),
    Permission.SUBSCRIBE: ("POST", "/v1/notifications/subscriptions", {"url": "nonsense"}),
}
"""Something that only this right allows. Most of it is nonsense, which who may is told of, and who may not is not."""


@pytest.mark.parametrize("role", ["admin", "user", "viewer", "anonymous"])
def test_the_page_offers_what_the_daemon_allows(door: Door, wide: Door, role: str) -> None:
    place = wide if role == "anonymous" else door
    headers = place.login(place.token(ME, role)) if role != "anonymous" else {}
    told = place("GET", "/v1/session", headers=headers).json
    viewer = Viewer(told)
    assert viewer.role == role
    assert set(TRIES) == set(Permission)
    for deed, (method, path, body) in TRIES.items():
        ids = {"own": place.token(ME).split("_")[1], "other": place.token("dora").split("_")[1]}
        reply = place(method, path.format(**ids), body, headers=headers)
        gone = (
            deed in (Permission.REVOKE_TOKEN, Permission.REVOKE_ANY_TOKEN) and reply.status == 404
        )  # others' are not told of
        assert (reply.status not in (401, 403) and not gone) == may(viewer, deed), (deed, reply)
