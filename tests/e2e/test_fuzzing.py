"""schemathesis over the whole API, with the token of a user and of an admin: what it invents, good and bad, alone and
in sequence, is answered as is described.

`make test` takes the examples of the document and a few sequences; `make test-system` what the schema just allows and
forbids, and one more example for each route, the same every time. `GPUYARD_FUZZ_EXAMPLES=500 GPUYARD_FUZZ_SEED=7` looks
longer, and elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.yard import Yard

FEW = "1"
EXAMPLES = int(os.environ.get("GPUYARD_FUZZ_EXAMPLES", FEW))
SEED = os.environ.get("GPUYARD_FUZZ_SEED", "1")
BRIEF = """
[[operations]]  # the first two take what PATCH takes; the others start a process each time
include-operation-id = ["cloneJob", "retryJob", "subscribe", "testSubscription"]
phases.coverage.enabled = false
"""
HERE = REPOSITORY / "tests" / "fuzzing"


def _fuzz(url: str, place: Path, role: str, token: str, phases: str) -> subprocess.CompletedProcess[str]:
    config = place / "schemathesis.toml"
    template = (HERE / "schemathesis.toml").read_text() + (BRIEF if str(EXAMPLES) == FEW else "")
    config.write_text(template.replace("EXAMPLES", str(EXAMPLES)).replace("WALKS", str(10 * EXAMPLES)))
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config),
        "run", f"{url}/api/v1/openapi.json", "--phases", phases,
        "--checks", "all", "--exclude-checks", "ignored_auth",  # after a few wrong tokens the answer is 429
        "--seed", SEED, "--header", f"Authorization: Bearer {token}",
        *(("--exclude-path", "/api/v1/shutdown") if role == "admin" else ()),
        "--continue-on-failure", "--suppress-health-check", "all",
        "--generation-database", "none", "--no-color", "--warnings", "off",
    ]  # fmt: skip
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")},
        "SCHEMATHESIS_HOOKS": "tests.fuzzing.hooks",
        "GPUYARD_FUZZ_PLACE": str(place),
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}",
    }
    return subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=3600)


SHORT, LONG = "examples,stateful", "coverage,fuzzing"
RUNS = [("user", SHORT), ("admin", SHORT), pytest.param("admin", LONG, marks=pytest.mark.system)]
"""Who asks what; by default a user does not ask all that an admin asks."""
if str(EXAMPLES) != FEW:
    RUNS.append(pytest.param("user", LONG, marks=pytest.mark.system))


@pytest.mark.slow
@pytest.mark.parametrize(("role", "phases"), RUNS)
def test_the_api_is_as_it_is_described(own_yard: Yard, tmp_path: Path, role: str, phases: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    own_yard.environment["GPUYARD_TOKENS"] = "required"
    own_yard.serve("--port", "0")
    token = own_yard.client.make_token(role=role)["token"]
    found = _fuzz(own_yard.client.status()["url"], place, role, token, phases)
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-2000:]
    for phase in phases.split(","):
        assert f"✅ {phase.title()}" in found.stdout, found.stdout[-3000:]
    assert own_yard.is_up()
    log = (own_yard.data_dir / "daemon.log").read_text()
    assert "Traceback" not in log, log[-5000:]
    states = own_yard.client.status()["jobs"]
    assert sum(states.values()) > 6, states  # that many were taken, so it was not refusals only
