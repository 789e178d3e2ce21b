"""A policy of somebody's own that fails: at once, or later. The queue goes on, and everybody is told."""

from __future__ import annotations

from tests.yard import Yard, until

MINE = """
import os
def boom(submit): return submit * (1 / 0)
def gives_up(submit): raise SystemExit(3)
def later(submit):
    if os.path.exists({flag!r}):
        raise RuntimeError("the moon is full")
    return -submit
"""


def test_a_policy_that_fails_is_refused_or_gives_way_to_the_one_before_it(own_yard: Yard) -> None:
    yard, client = own_yard, own_yard.client
    yard.serve()
    flag = yard.cwd / "fail"
    (yard.cwd / "mine.py").write_text(MINE.format(flag=str(flag)))
    for name, why in (("boom", "ZeroDivisionError"), ("gives_up", "SystemExit")):
        refused = yard("policy", "set", f"./mine.py:{name}")  # nothing waits: it is tried on made-up queues
        assert (refused.code, why in refused.err) == (2, True), refused
    assert client.policy()["policy"] == "multifactor@easy@pack"
    yard("policy", "set", "sjf", "--discipline", "skip", "--placement", "spread")
    yard.submit("--gpus", "4", "--", "sleep", "1000")
    waiting = [yard.submit("--gpus", "4", "--", "true") for _ in range(2)]
    assert "fails on this queue" in yard("policy", "set", "./mine.py:boom").err
    assert yard("policy", "set", "./mine.py:later@strict").code == 0
    flag.touch()
    more = yard.submit("--gpus", "4", "--", "true")  # so that there is something to plan, and to explain
    for command in (("ps",), ("explain", more), ("explain", waiting[1]), ("policy", "set", "fcfs", "--dry-run")):
        done = yard(*command)
        assert done.code == 0, (command, done)
    until(lambda: client.policy()["policy"] == "sjf@skip@spread", "the policy before")
    failed = f"policy {yard.cwd}/mine.py:later@strict@pack failed (RuntimeError: the moon is full)"
    told = f"{failed}, so sjf@skip@spread decides"
    assert told in yard("policy").out
    assert told in yard("status").out
    (event,) = [
        one for one in client.events(limit=1000)["events"] if one["kind"] == "PolicySet" and one.get("in_place_of")
    ]
    assert (event["policy"], event["because"]) == ("sjf@skip@spread", "RuntimeError: the moon is full")
    yard.end(9)
    yard.serve()
    assert told in str(client.policy()["warning"]), "a restart does not make it well"
    yard("policy", "set", "multifactor")
    assert client.policy()["policy"] == "multifactor@easy@pack"
    assert client.policy()["warning"] is None
