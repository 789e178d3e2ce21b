"""Batches and estimates where users share a daemon of root: nobody meddles with those of others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.users import Desk

from gpuyard.client.client import Client
from gpuyard.client.transport import Refused


def _batch(client: Client) -> Any:
    job = {"command": ["sleep", "60"], "directory": "/", "environment": {}, "hold": True}
    rows = [{**job, "row": {"number": n, "wave": 1}} for n in (1, 2)]
    return client._ask("POST", "/jobs/batch", {"jobs": rows, "batch": {"name": "a.csv", "key": "same"}})


def test_a_batch_is_its_users_own(a: Desk, b: Desk) -> None:
    anns = a.ask(_batch)
    bobs = b.ask(_batch)
    assert anns["batch"] != bobs["batch"]  # though the file is the same
    with pytest.raises(Refused) as refused:
        b.ask(lambda client: client._ask("POST", f"/batches/{anns['batch']}/cancel", {}))
    assert refused.value.status == 403
    assert a.ask(lambda client: client._get(f"/batches/{anns['batch']}"))["states"] == {"held": 2}
    gone = a.ask(lambda client: client._ask("POST", f"/batches/{anns['batch']}/cancel", {}))
    assert gone["states"] == {"cancelled": 2}
    assert b.ask(lambda client: client._get(f"/batches/{bobs['batch']}"))["states"] == {"held": 2}


def test_nobody_learns_from_anothers_runs_or_forgets_them(a: Desk, b: Desk) -> None:
    a.run("true", "of ann", gpu_memory="auto", simulate_use="2G")
    known, *_ = a.ask(lambda client: client._get(f"/estimates?user={a.user.name}"))["estimates"]
    assert known["memory"]
    bobs = b.ask(lambda client: client._ask("POST", "/estimates", {"command": ["true", "of ann"], "directory": "/"}))
    assert (bobs["memory"], bobs["runs"]) == (None, [])
    with pytest.raises(Refused) as refused:
        b.ask(lambda client: client._ask("DELETE", f"/estimates/{known['signature']}", {}))
    assert refused.value.status == 403


def test_a_signature_tells_nothing_of_a_file_behind_a_closed_door(a: Desk, b: Desk) -> None:
    script = a.user.home / "secret.py"
    wish = {"command": ["python", str(script)], "directory": "/"}

    def signature(desk: Desk) -> str:
        return str(desk.ask(lambda client: client._ask("POST", "/estimates", wish))["signature"])

    none = signature(a), signature(b)
    a.user.do(lambda: script.write_text("print(1)"))
    script.chmod(0o644)
    assert signature(a) != none[0]
    assert signature(b) == none[1]  # root could read it
