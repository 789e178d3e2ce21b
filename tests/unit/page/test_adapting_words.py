"""How a job adapts, in the words of its page."""

from __future__ import annotations

from typing import Any

from gpuyard.page.views.job_facts import event_text
from gpuyard.page.views.job_sections import adaptation_facts, decision_text, loan_text
from gpuyard.page.views.overview import tile

FOUND: dict[str, Any] = {
    "budget": 1200.0, "deadline": 2200.0, "granted": [1], "grants": [], "decisions": [], "times": [], "standing": "",
    "report": {"step_seconds": 0.12, "gain_per_second": 1.3e-4, "parameters": 19914},
}  # fmt: skip
DECIDED: dict[str, Any] = {
    "at": 5.0, "decision": "grew at features.1", "reason": "expects +1.2 points", "accepted": True,
    "parameters_before": 10602, "parameters": 19914, "cost_ratio": 1.4, "predicted_gain": 0.012,
}  # fmt: skip
NOTHING = dict.fromkeys(("accepted", "parameters_before", "parameters", "cost_ratio", "predicted_gain"))


def when(at: float | None) -> str:
    return f"<{at:g}>" if at else ""


def test_budget_and_report() -> None:
    assert list(adaptation_facts(FOUND, when)) == [
        ("Budget", "20m 00s"), ("To be done by", "<2200>"), ("On loan", "GPU 1"),
        ("One more GPU brings", "0.78 points per minute"), ("A step takes", "120 ms"), ("Parameters", "19,914"),
    ]  # fmt: skip
    without = {**FOUND, "budget": None, "deadline": None, "granted": [], "report": None}
    assert [pair for pair in adaptation_facts(without, when) if pair[1]] == [("Budget", "as long as it likes")]


def test_a_decision_and_its_reason() -> None:
    assert decision_text(DECIDED) == (
        "Accepted: grew at features.1", "Expects +1.2 points.",
        "10,602 to 19,914 parameters, steps take 1.4 times as long, +1.2 points expected.",
    )  # fmt: skip
    assert decision_text({**DECIDED, **NOTHING, "reason": ""}) == ("Decided: grew at features.1", "", "")
    assert decision_text({**DECIDED, **NOTHING, "accepted": False, "parameters": 9})[::2] == (
        "Declined: grew at features.1", "9 parameters.",
    )  # fmt: skip


def test_a_loan_and_its_end() -> None:
    lent: dict[str, Any] = {"gpu": 1, "since": 10.0, "until": None, "why": "nobody waits for it"}
    assert loan_text(lent, when) == ("GPU 1 since <10>", "Given since nobody waits for it.", "")
    told = {**lent, "told": 15.0, "ended": "job 4 needs it"}
    assert loan_text(told, when)[::2] == ("GPU 1 since <10>, told to leave at <15>", "Taken back: job 4 needs it.")
    assert loan_text({**told, "until": 20.0}, when)[0] == "GPU 1 from <10> to <20> (10s)"
    assert loan_text({**lent, "until": 20.0, "ended": "it gave it back"}, when)[2] == "It gave it back."


def test_what_happened() -> None:
    event = {"attempt": 1, "at": "x"}
    assert (
        event_text({**event, "kind": "Granted", "gpus": [1], "why": "nobody waits"}) == "Was lent GPU 1: nobody waits"
    )
    assert (
        event_text({**event, "kind": "Reclaimed", "gpus": [1], "why": "job 4 needs it"})
        == "Told to leave GPU 1: job 4 needs it"
    )
    assert event_text({**event, "kind": "Returned", "gpus": [1]}) == "Left GPU 1"
    assert event_text({**event, "kind": "Adapted", "decision": "grew", "reason": "it pays", "accepted": True}) == (
        "Accepted: grew: it pays"
    )
    assert event_text({**event, "kind": "Adapted", "decision": "grew"}) == "Decided: grew"


def test_a_tile_tells_whose_loan_it_is() -> None:
    gpu: dict[str, Any] = {
        "index": 1, "name": "x", "simulated": True, "memory_total": 2**34, "state": "ours", "why": "lent",
        "drained": False,
        "jobs": ["3"], "processes": [], "reservation": None, "reserved_from": None, "reserved_until": None,
        "memory_promised": 0, "memory_left": 0, "granted": "3",
    }  # fmt: skip
    job: dict[str, Any] = {
        "id": "3", "name": "grows", "user": "ann", "kind": "job", "progress": None, "gpu_memory": None, "gpus": [0],
        "started_at": None, "expected_end_at": None, "expected_by": None, "adaptive": True, "reason": "grew: it pays",
    }  # fmt: skip
    [there] = tile(gpu, {"3": job}, 0.0)["jobs"]
    assert (there["loan"], there["note"]) == (True, "grew: it pays")
    [own] = tile({**gpu, "granted": None}, {"3": {**job, "adaptive": False}}, 0.0)["jobs"]
    assert (own["loan"], own["note"]) == (False, "")
