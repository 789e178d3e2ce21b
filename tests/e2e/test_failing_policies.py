"""A policy of somebody's own that fails: at once, or later. The queue goes on, and everybody is told."""

from __future__ import annotations

from tests.yard import Yard, until

MINE = """
import os, time
def boom(submit): return submit * (1 / 0)
def gives_up(submit): raise SystemExit(3)
def interrupts(submit): raise KeyboardInterrupt
class Odd(BaseException):
    def __str__(self): raise Odd
def odd(submit): raise Odd
def forever(submit): return forever(submit)
def no_number(submit): return submit * float("nan")
def two_each(submit): return [[0, 1] for _ in submit]
def words(submit): return ["first"] * len(submit)
def endless(submit):
    while True: pass
def slow(submit):
    time.sleep(1.1)
    return submit
def later(submit):
    if os.path.exists({flag!r}):
        raise KeyboardInterrupt("the moon\\x1b[2J is full")
    return -submit
"""


def test_a_policy_that_fails_is_refused_or_gives_way_to_the_one_before_it(own_yard: Yard) -> None:
    yard, client = own_yard, own_yard.client
    yard.serve()
    flag = yard.cwd / "fail"
    (yard.cwd / "mine.py").write_text(MINE.format(flag=str(flag)))
    for name, why in (
        ("boom", "ZeroDivisionError"), ("gives_up", "SystemExit"), ("interrupts", "KeyboardInterrupt"), ("odd", "Odd"),
        ("forever", "RecursionError"), ("no_number", "not a number"), ("two_each", "(50, 2)"),
        ("words", "one number per job"),
    ):  # fmt: skip
        refused = yard("policy", "set", f"./mine.py:{name}")  # nothing waits: it is tried on made-up queues
        assert (refused.code, why in refused.err) == (2, True), refused
    (yard.cwd / "odd.py").write_text("raise KeyboardInterrupt")
    assert "KeyboardInterrupt" in yard("policy", "set", "./odd.py:any").err
    assert client.policy()["policy"] == "multifactor@easy@pack"
    yard("policy", "set", "sjf", "--discipline", "skip", "--placement", "spread")
    yard.submit("--gpus", "4", "--", "sleep", "1000")
    waiting = [yard.submit("--gpus", "4", "--", "true") for _ in range(2)]
    for name in ("boom", "interrupts", "odd", "slow", "endless"):
        assert "fails on this queue" in yard("policy", "set", f"./mine.py:{name}").err
    assert yard("policy", "set", "./mine.py:later@strict").code == 0
    flag.touch()
    more = yard.submit("--gpus", "4", "--", "true")  # so that there is something to plan, and to explain
    for command in (("ps",), ("explain", more), ("explain", waiting[1]), ("policy", "set", "fcfs", "--dry-run")):
        done = yard(*command)
        assert done.code == 0, (command, done)
    until(lambda: client.policy()["policy"] == "sjf@skip@spread", "the policy before")
    failed = f"policy {yard.cwd}/mine.py:later@strict@pack failed (KeyboardInterrupt: the moon [2J is full)"
    told = f"{failed}, so sjf@skip@spread decides"
    assert told in yard("policy").out
    assert told in yard("status").out
    (event,) = [
        one for one in client.events(limit=1000)["events"] if one["kind"] == "PolicySet" and one.get("in_place_of")
    ]
    assert (event["policy"], event["because"]) == ("sjf@skip@spread", "KeyboardInterrupt: the moon [2J is full")
    yard.end(9)
    yard.serve()
    assert told in str(client.policy()["warning"]), "a restart does not make it well"
    yard("policy", "set", "multifactor")
    assert client.policy()["policy"] == "multifactor@easy@pack"
    assert client.policy()["warning"] is None


def test_after_a_restart_it_gives_way_to_the_one_before_it_too(own_yard: Yard) -> None:
    """Where it fails then, and where its file is gone or cannot be read any more."""
    yard, client = own_yard, own_yard.client
    yard.serve()
    flag, file = yard.cwd / "fail", yard.cwd / "mine.py"
    file.write_text(MINE.format(flag=str(flag)))
    yard.submit("--gpus", "4", "--", "sleep", "1000")
    waiting = [yard.submit("--gpus", "4", "--", "true") for _ in range(2)]
    yard("policy", "set", "sjf", "--discipline", "skip", "--placement", "spread")
    for harm, why in (
        (flag.touch, "KeyboardInterrupt"),
        (lambda: file.write_text("def later(submit:"), "SyntaxError"),
        (lambda: file.write_text("raise KeyboardInterrupt('odd')"), "KeyboardInterrupt: odd"),
        (file.unlink, "there is no file"),
    ):
        flag.unlink(missing_ok=True)
        file.write_text(MINE.format(flag=str(flag)))
        assert yard("policy", "set", "./mine.py:later@strict").code == 0
        yard.end(9)
        if why == "KeyboardInterrupt":
            yard.serve()
            assert client.policy()["policy"].endswith("later@strict@pack")
            harm()
            assert yard("explain", waiting[1]).code == 0
        else:
            harm()
            yard.serve()
        until(lambda: client.policy()["policy"] == "sjf@skip@spread", "the policy before")
        for told in (yard("policy").out, yard("status").out):
            assert f"{file}:later@strict@pack" in told
            assert why in told
        yard.end(9)
        yard.serve()
        assert why in str(client.policy()["warning"])
        event = [one for one in client.events(limit=1000)["events"] if one["kind"] == "PolicySet"][-1]
        assert (event["policy"], event["in_place_of"]) == ("sjf@skip@spread", f"{file}:later@strict@pack")
