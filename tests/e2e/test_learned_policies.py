"""Trained policies in a real daemon: who may decide, what is remembered, and what becomes of them when files change."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.yard import Yard

from gpuyard.client.transport import Refused, Request, UnixTransport, send
from gpuyard.policies.features import NAMES
from gpuyard.policies.network import Network, parameter_count
from gpuyard.policies.trained_policy import Learned

PASSED = {
    "passed": True, "ratio": 0.9, "ratio_low": 0.85, "ratio_high": 0.95, "mean_ratio": 0.91, "p99_ratio": 0.99,
    "best_heuristic": "saf", "reasons": [],
}  # fmt: skip
FAILED = PASSED | {"passed": False, "ratio": 1.04, "ratio_high": 1.1, "reasons": ["no better than saf"]}
WIDE = np.full(len(NAMES), 100.0)


def save(file: Path, gate: dict[str, Any] | None = None, *, seed: int = 0, wide: bool = True) -> str:
    """A trained policy in a file; the digits of its hash that people are told."""
    parameters = np.random.default_rng(seed).normal(0.0, 0.1, parameter_count(8))
    high = WIDE if wide else WIDE - 90
    low = -WIDE if wide else WIDE - 91
    made = Learned(Network("saf", 8, 1e6, parameters), low, high, "easy", {}, gate or {})
    made.save(file)
    return made.hash[:12]


def details(yard: Yard) -> list[dict[str, Any]]:
    """What the log says of policies that were set, the latest first."""
    with sqlite3.connect(yard.data_dir / "gpuyard.db") as connection:
        rows = connection.execute("SELECT data FROM events WHERE kind = 'PolicySet' ORDER BY seq DESC").fetchall()
    found = [json.loads(row[0]) for row in rows]
    return [{"policy": one["policy"], **one.get("details", {})} for one in found]


def scraped(yard: Yard, series: str) -> float:
    """The number that a scrape shows."""
    text = send(UnixTransport(str(yard.data_dir / "gpuyard.sock")), Request("GET", "/metrics")).body.decode()
    return next(float(line.removeprefix(series)) for line in text.splitlines() if line.startswith(series + " "))


@pytest.fixture
def served(own_yard: Yard) -> Yard:
    own_yard.serve()
    return own_yard


def test_set_refused_and_forced(served: Yard) -> None:
    file = served.cwd / "p.json"
    save(file)
    done = served("policy", "set", "learned:./p.json")
    assert done.code == 2
    assert "nobody has evaluated it" in done.err
    assert f"gpuyard learn evaluate {file} TRACE --record" in done.err
    hash = save(file, FAILED)
    done = served("policy", "set", "learned:p.json")
    assert done.code == 2
    assert "its gate is not passed (1.04 times saf, 0.85 to 1.1): no better than saf" in done.err
    assert "--force" in done.err
    assert served.client.policy()["policy"] == "multifactor@easy@pack"
    assert served.client.policy()["learned"] is None
    assert len(details(served)) == 1

    assert served("policy", "set", "learned:p.json", "--dry-run").code == 0  # to look is free
    done = served("policy", "set", "learned:p.json", "--force")
    assert (done.code, done.out) == (0, "")
    assert f"learned:{file}@easy@pack decides, though its gate is not passed" in done.err
    told = served.json("policy")["learned"]
    assert (told["file"], told["hash"], told["base"], told["forced"]) == (str(file), hash, "saf", True)
    assert told["gate"] == FAILED
    assert served.json("status")["learned"]["hash"] == hash
    assert hash in served("status").out
    assert "it was forced" in served("policy").out
    assert details(served)[0]["learned"] == {"hash": hash, "base": "saf", "forced": True}
    assert details(served)[0]["by"]


def test_over_the_api(served: Yard) -> None:
    file = served.cwd / "p.json"
    save(file, FAILED)
    with pytest.raises(Refused, match="its gate is not passed") as refused:
        served.client.set_policy(f"learned:{file}")
    assert refused.value.status == 422
    assert served.client.set_policy(f"learned:{file}", force=True)["learned"]["forced"] is True
    save(file, PASSED)
    told = served.client.set_policy(f"learned:{file}", discipline="skip")
    assert (told["discipline"], told["learned"]["forced"], told["learned"]["gate"]) == ("skip", False, PASSED)
    with pytest.raises(Refused, match="there is no trained policy nosuch"):
        served.client.set_policy("learned:nosuch", force=True)


def test_what_was_loaded_decides_until_another_is_set(served: Yard) -> None:
    file = served.cwd / "p.json"
    hash = save(file, PASSED)
    served.client.set_policy(f"learned:{file}")
    other = save(file, PASSED, seed=1)
    assert other != hash
    assert served.client.policy()["learned"]["hash"] == hash
    file.unlink()
    assert served.wait(served.submit("--", "true"))["exit_code"] == 0
    assert served.client.policy()["learned"]["hash"] == hash


def test_jobs_run_and_are_counted(served: Yard) -> None:
    file = served.cwd / "p.json"
    save(file, PASSED, wide=False)  # trained on nothing like this
    served.client.set_policy(f"learned:{file}")
    for id in [served.submit("--gpus", "3", "--", "true") for _ in range(4)]:
        assert served.wait(id)["exit_code"] == 0
    told = served.client.policy()["learned"]
    assert 0 < told["fallbacks"]["unusual"] == told["plans"]
    assert scraped(served, 'gpuyard_learned_fallbacks_total{kind="unusual"}') >= told["fallbacks"]["unusual"]
    log = (served.data_dir / "daemon.log").read_text()
    assert log.count("far from what it was trained on") == 1
    save(file, PASSED)
    served.client.set_policy(f"learned:{file}")
    assert served.client.policy()["learned"]["fallbacks"]["unusual"] == 0
    assert served.wait(served.submit("--", "true"))["exit_code"] == 0
    told = served.client.policy()["learned"]
    assert told["plans"] > 0
    assert sum(told["fallbacks"].values()) == 0
    before = scraped(served, 'gpuyard_learned_fallbacks_total{kind="unusual"}')
    assert before > 0  # what the former policy did still counts
    assert scraped(served, "gpuyard_learned_plans_total") >= before + told["plans"]


def test_a_forced_policy_comes_up_again_and_one_that_is_gone_does_not_keep_the_daemon_down(served: Yard) -> None:
    file = served.cwd / "p.json"
    hash = save(file, FAILED)
    served("policy", "set", "learned:p.json", "--force")
    served.end()
    served.serve()
    told = served.client.policy()
    assert (told["policy"], told["learned"]["hash"]) == (f"learned:{file}@easy@pack", hash)
    assert told["learned"]["forced"]
    served.end()
    passed = save(file, PASSED)
    served.serve()
    assert served.client.policy()["learned"]["hash"] == passed
    assert details(served)[0]["learned"] == {"hash": passed, "base": "saf", "forced": False}
    served.end()
    file.write_text(file.read_text()[:-100])
    served.serve()
    assert served.client.policy()["policy"] == "multifactor@easy@pack"
    assert "cannot be used any more" in served("status").out
    assert "is damaged" in (served.data_dir / "daemon.log").read_text()
    served("policy", "set", "sjf")
    assert served.client.status()["warnings"] == []


@pytest.mark.slow
def test_a_configured_policy_needs_its_gate_unless_it_is_forced(own_yard: Yard) -> None:
    file = own_yard.cwd / "p.json"
    save(file, FAILED)
    own_yard.environment["GPUYARD_CONFIG"] = str(own_yard.cwd / "config.toml")
    (own_yard.cwd / "config.toml").write_text(f'policy = "learned:{file}"\nsimulate_gpus = "4x16G"\n')
    done = own_yard.process("up")
    assert (done.code, done.out) == (1, "")
    assert "its gate is not passed (1.04 times saf" in done.err
    (own_yard.cwd / "config.toml").write_text('simulate_gpus = "4x16G"\n')
    done = own_yard.process("up", "--policy", "learned:nosuch.json")
    assert "there is no trained policy" in done.err
    own_yard.environment["PYTHONPROFILEIMPORTTIME"] = "1"  # every import is told of, into the daemon's log
    done = own_yard.process("up", "--policy", "learned:p.json", "--force")
    assert done.code == 0, done.err
    del own_yard.environment["PYTHONPROFILEIMPORTTIME"]
    try:
        status = own_yard.json("status")
        assert status["learned"]["forced"]
        assert own_yard.wait(own_yard.submit("--", "true"))["exit_code"] == 0
        log = (own_yard.data_dir / "daemon.log").read_text()
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines() if "|" in line}
        assert {"numpy", "gpuyard"} <= imported
        assert not imported & {"torch", "numba", "llvmlite", "gymnasium"}
        maps = Path(f"/proc/{status['pid']}/maps").read_text()
        assert "numpy" in maps
        assert not any(heavy in maps for heavy in ("/torch/", "/numba/", "/llvmlite/"))
    finally:
        own_yard("down")
    file.unlink()
    done = own_yard.process("up", "--policy", f"learned:{file}")  # it decided before: the queue goes on without it
    assert done.code == 0, done.err
    try:
        assert "cannot be used any more, so saf@easy@pack decides" in done.err
        assert own_yard.client.policy()["policy"] == "saf@easy@pack"
        assert details(own_yard)[0]["in_place_of"] == f"learned:{file}@easy@pack"
    finally:
        own_yard("down")
    assert own_yard.process("up", "--policy", f"learned:{file}").code == 0  # and again
    own_yard("down")
    save(file, PASSED)
    done = own_yard.process("up", "--policy", f"learned:{file}")
    try:
        assert own_yard.client.policy()["policy"] == f"learned:{file}@easy@pack"
        assert (done.code, done.err) == (0, "")
    finally:
        own_yard("down")


def test_what_people_chose_outlives_a_configured_policy_that_is_gone(own_yard: Yard) -> None:
    file = own_yard.cwd / "p.json"
    save(file, PASSED)
    own_yard.environment["GPUYARD_POLICY"] = f"learned:{file}"
    own_yard.serve()
    assert own_yard.client.policy()["learned"]["gate"] == PASSED
    own_yard("policy", "set", "sjf")
    own_yard.end()
    file.unlink()
    own_yard.serve()
    assert own_yard.client.policy()["policy"] == "sjf@easy@pack"
    own_yard.end()
    save(file, PASSED)
    own_yard.serve()
    assert own_yard.client.policy()["policy"] == "sjf@easy@pack"


def test_a_batch_in_a_yard_of_its_own(own_yard: Yard) -> None:
    save(own_yard.cwd / "p.json", FAILED)
    (own_yard.cwd / "go.py").write_text("")
    head = "Directory,Executable,Filename,Epochs,Priority"
    (own_yard.cwd / "jobs.csv").write_text(f"{head}\n.,{sys.executable},go.py,1,1\n")
    batch = ("batch", "jobs.csv", "--policy", "learned:p.json", "--simulate-gpus", "2x16G", "--no-plots", "--out", "o")
    done = own_yard.process(*batch)
    assert done.code == 2
    assert "its gate is not passed" in done.err
    assert not (own_yard.cwd / "o").exists()
    done = own_yard.process(*batch, "--force")
    assert done.code == 0, done.err
