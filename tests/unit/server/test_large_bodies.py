"""Bodies with more than there can be are refused by their first parts: no request holds others up for seconds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request

from gpuyard.errors import UserError, suggest
from gpuyard.server import problems
from gpuyard.server.requests import JsonRequest, checked, read_json
from gpuyard.server.routes.batches import read_batch
from gpuyard.server.routes.submissions import MOST_ROWS, Batch, PolicyChoice, Submission

JOB: dict[str, Any] = {"command": ["true"], "directory": "/"}
UNKNOWN = {f"f{number}": 1 for number in range(10_000)}


def parts(model: Any, given: Any) -> list[Any]:
    with pytest.raises(RequestValidationError) as found:
        checked(model, read_json(json.dumps(given).encode()))
    return list(found.value.errors())


def test_of_thousands_of_unknown_fields_the_first_are_told() -> None:
    assert len(parts(Submission, UNKNOWN)) <= 501
    assert len(parts(Submission, {**JOB, "row": UNKNOWN})) <= 501
    assert len(parts(Batch, {"jobs": [UNKNOWN] * 3})) <= 501
    many = {"environment": dict.fromkeys(UNKNOWN, "x")}
    assert read_json(json.dumps(many).encode()) == many, "a user may have many variables"
    with pytest.raises(UserError, match="environment has at most 50,000 variables"):
        read_json(json.dumps({"environment": dict.fromkeys(map(str, range(50_001)), "x")}).encode())


def test_a_script_may_hold_a_table() -> None:
    given = {**JOB, "command": ["mine.sh"], "script": "#!/bin/sh\n" + "1," * 500_000}
    assert checked(Submission, read_json(json.dumps(given).encode())).script == given["script"]


def test_a_list_is_refused_at_its_first_wrong_entry() -> None:
    for field in ("command", "tags", "from", "notify"):
        assert len(parts(Submission, {**JOB, field: [{}] * 1000})) == 1
    assert [part["type"] for part in parts(Submission, {**JOB, "command": ["x"] * 100_000})] == ["too_long"]
    assert [part["type"] for part in parts(Batch, {"jobs": [JOB] * (MOST_ROWS + 1)})] == ["too_long"]


def test_what_fastapi_reads_is_no_more() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(UNKNOWN).encode(), "more_body": False}

    request: Request = JsonRequest({"type": "http", "method": "POST", "headers": []}, receive)
    assert len(asyncio.run(request.json())) == 500


def test_a_batch_is_read_some_rows_at_a_time() -> None:
    turns = 0

    async def read(rows: list[Any]) -> Batch:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        try:
            return await read_batch({"jobs": rows, "environment": {"A": "1"}})
        finally:
            task.cancel()

    found = asyncio.run(read([{**JOB, "name": str(number)} for number in range(1050)]))
    assert [job.name for job in found.complete()] == [str(number) for number in range(1050)]
    assert turns >= 10
    with pytest.raises(RequestValidationError) as wrong:
        asyncio.run(read([*[JOB] * 1001, {"command": []}]))
    assert wrong.value.errors()[0]["loc"] == ("jobs", 1001, "command")


def test_what_is_long_is_not_written_or_compared_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [part["type"] for part in parts(PolicyChoice, {"policy": "x" * 20_000})] == ["too_long"]
    assert suggest("sjf" * 10**6, ["sjf" * 30]) == f"; did you mean '{'sjf' * 30}'?"
    monkeypatch.setattr(json, "dumps", lambda *_, **__: pytest.fail("written in full"))
    part = {"type": "int_type", "loc": (), "input": [0] * 100}
    assert problems.error_message(part) == "must be a whole number, as in 2"
