"""What the settings say, and what they make of what is typed in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.errors import UserError
from gpuyard.page.feed import drain_reasons
from gpuyard.page.views.settings.access_settings import (
    by_name,
    changes,
    rule_row,
    subject_text,
    token_text,
    tunnel,
    who_am_i,
)
from gpuyard.page.views.settings.daemon_settings import facts, status_text, warnings
from gpuyard.page.views.settings.gpu_settings import (
    blocking_jobs,
    drain_text,
    format_local,
    parse_gpus,
    parse_local,
    parse_users,
    reserved_text,
    usual_span,
)
from gpuyard.page.views.settings.notification_settings import delivery_test_text, events_text
from gpuyard.server.routes.health import STATUS
from gpuyard.server.routes.jobs import JOB
from gpuyard.server.routes.limits import RULES
from gpuyard.server.routes.notifications import DELIVERY, SUBSCRIPTION
from gpuyard.server.routes.tokens import NEW_TOKEN

KATHMANDU = ZoneInfo("Asia/Kathmandu")


def test_gpus_are_those_of_the_machine() -> None:
    assert parse_gpus("3,0-1", 4) == [0, 1, 3]
    for text in ("", "x", "0-4", "4"):
        with pytest.raises(UserError):
            parse_gpus(text, 4)


def test_times_are_of_the_viewers_zone() -> None:
    at = datetime(2026, 11, 16, 8, 15, tzinfo=UTC)
    assert format_local(at, KATHMANDU) == "2026-11-16T14:00"
    assert parse_local("2026-11-16T14:00", KATHMANDU) == at.timestamp()
    with pytest.raises(UserError):
        parse_local("", KATHMANDU)
    begin, end = usual_span(at)
    assert (begin.hour, begin.minute, end.hour) == (9, 0, 13)


def test_a_reservation_is_for_whom_is_named() -> None:
    assert parse_users("ann, bob") == ["ann", "bob"]
    assert parse_users(" ") is None


def test_jobs_are_in_the_way_that_may_still_run_and_that_nobody_stops() -> None:
    running = {**JOB, "state": "running", "gpus": [0, 1], "started_at": "2026-11-16T09:00:00+00:00", "time_limit": 3600}
    begin = datetime(2026, 11, 16, 9, 30, tzinfo=UTC).timestamp()
    assert blocking_jobs([running], [1, 2], begin) == ["17"]
    assert blocking_jobs([{**running, "time_limit": None}], [1], begin + 9e9) == ["17"]
    assert blocking_jobs([running], [2], begin) == []
    assert blocking_jobs([running], [1], begin + 1801) == []
    assert blocking_jobs([{**running, "preemptible": True}], [1], begin) == []


def test_the_latest_reason_for_draining_counts() -> None:
    events: list[dict[str, Any]] = [
        {"gpus": [0, 1], "by": "root", "reason": "new fans"}, {"gpus": [1], "by": "ann"}, {"gpus": [2]},
    ]  # fmt: skip
    assert {gpu: drain_text(drain) for gpu, drain in drain_reasons(events).items()} == {
        0: "new fans (root)",
        1: "by ann",
        2: "",
    }


def test_only_what_was_changed_becomes_somebodys_own_rule() -> None:
    ann = RULES["users"][0]
    wish = {"name": "ann", "gpus": 4, "gpu_hours": 0, "weight": 2.0}
    assert changes(ann, wish) == {}
    assert changes(ann, {**wish, "gpus": 0, "weight": 1.0}) == {"gpus": 0, "weight": 1.0}
    assert changes(None, {**wish, "name": "bob"}) == {"gpus": 4, "weight": 2.0}


def test_use_is_shown_against_quota_and_share() -> None:
    ann = RULES["users"][0]
    bob = {**ann, "name": "*", "weight": 1.0, "faded_gpu_hours": 36.75, "gpus": 4, "group": None}
    cells = rule_row(ann, [ann, bob])["cells"]
    assert cells[2] == {"text": "2 of 4", "bar": 0.5, "full": False}
    assert cells[3] == "31.5, no quota"
    assert cells[5] == {"text": "12.2 h: 25 %, where 67 % is fair", "bar": 0.25}
    assert rule_row(bob, [ann, bob])["cells"][2]["full"]
    assert rule_row(bob, [ann, bob])["cells"][0] == "* (everybody else)"
    assert (subject_text("*"), subject_text("@vision"), subject_text("ann")) == (
        "everybody else",
        "the group vision",
        "ann",
    )


def test_how_a_test_went_is_a_sentence() -> None:
    assert delivery_test_text("hook", {**DELIVERY, "error": "Connection refused"}) == (
        "hook could not be reached: Connection refused.", False,
    )  # fmt: skip
    said, good = delivery_test_text("hook", DELIVERY)
    assert good
    assert said.startswith("hook was told (slack://T...)")


def test_a_subscription_says_when_it_tells() -> None:
    assert events_text({**SUBSCRIPTION, "events": ["failure", "long-wait"], "long_wait": 5400.0}) == (
        "it fails, it waits long (over 1h 30m)"
    )


def test_who_looks_is_told_who_they_are() -> None:
    assert who_am_i("ann", "viewer", "session") == (
        "You are ann, known by the token that you logged in with. Your role is viewer: who has it may look, and change "
        "nothing."
    )
    assert who_am_i("anonymous", "anonymous", "nobody").startswith("You are not known here")


def test_a_new_token_says_what_it_is_good_for() -> None:
    assert token_text(NEW_TOKEN, "16 Feb, 9:30") == "It is ann's, with the role user, good until 16 Feb, 9:30."
    assert token_text({**NEW_TOKEN, "runs_as": "root"}, "").endswith(
        "until it is revoked. Its jobs run as root, as all do here."
    )


def test_the_trail_says_how_it_went() -> None:
    assert status_text(200, 1)["text"] == "done"
    assert status_text(403, 1200)["text"] == "refused: may not, 1,200 times"
    assert status_text(503, 1)["text"] == "failed (503)"


def test_the_daemon_says_what_it_is_and_what_is_wrong() -> None:
    told = dict(facts(STATUS, "9:30"))
    assert told["GPUs"] == "3 free, 1 in use"
    assert told["Jobs"] == "1 running, 7 waiting, 950 succeeded"
    assert told["Runs since"] == "9:30, as process 812"
    assert told["Trained"].startswith("9f2b6c01d4aa, on top of saf; its gate is passed (0.91 times saf, 0.88 to 0.95)")
    assert "Trained" not in dict(facts({**STATUS, "learned": None}, "9:30"))
    assert warnings(STATUS) == []
    failing = {**STATUS, "warnings": ["no TLS"], "store": {"state": "failing", "problem": "the disk is full"}}
    assert warnings(failing) == ["What happens cannot be written down: the disk is full", "No TLS"]


def test_a_new_token_says_how_the_daemon_is_reached_from_elsewhere() -> None:
    assert tunnel("http://127.0.0.1:62333", "box") == "ssh -N -L 62333:127.0.0.1:62333 box"
    assert tunnel("http://[::1]:7", "box") == "ssh -N -L 7:[::1]:7 box"
    assert tunnel("https://0.0.0.0:62333", "box") == tunnel("https://192.0.2.7:1", "box") == ""
    assert by_name("https://0.0.0.0:62333") == "This machine's name stands in place of 0.0.0.0."
    assert by_name("http://127.0.0.1:62333") == by_name("https://192.0.2.7:1") == ""


@pytest.mark.parametrize(("gpus", "said"), [([3], "GPU 3 is reserved"), ([0, 1, 3], "GPUs 0-1,3 are reserved")])
def test_one_gpu_is_and_many_are_reserved(gpus: list[int], said: str) -> None:
    assert reserved_text(gpus) == said
