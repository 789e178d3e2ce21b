"""A request with a key is done once, however often it is sent, whoever dies meanwhile."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from tests.web import Reply, ask
from tests.yard import Yard, until

JOB: dict[str, Any] = {"command": ["true"], "directory": "/", "name": "once"}
OTHER = {**JOB, "name": "twice"}


@pytest.fixture
def url(own_yard: Yard) -> str:
    own_yard.serve("--port", "0")
    return str(own_yard.client.status()["url"])


def _keyed(url: str, key: str, path: str = "/jobs", body: Any = JOB) -> Reply:
    return ask(f"{url}/api/v1", "POST", path, body, headers={"Idempotency-Key": key})


def test_the_same_answer_and_one_job(own_yard: Yard, url: str) -> None:
    first = _keyed(url, "a")
    assert (first.status, first.headers["Idempotent-Replayed"]) == (201, None)
    as_people_write = b'{"name": "once",\n "directory": "/", "command": ["true"]}'
    for body in (JOB, as_people_write):
        again = _keyed(url, "a", body=body)
        assert (again.status, again.headers["Idempotent-Replayed"], again.json) == (201, "true", first.json)
    assert _keyed(url, "b").json != first.json
    assert ask(url, "POST", "/api/v1/jobs", JOB).json != first.json
    assert len(own_yard.client.jobs(all=True)) == 3


def test_a_key_is_for_one_request(url: str) -> None:
    assert _keyed(url, "a").status == 201
    for path, body in (("/jobs", OTHER), ("/jobs/batch", {"jobs": [JOB]})):
        refused = _keyed(url, "a", path, body)
        assert refused.status == 422
        assert refused.detail == (
            "the Idempotency-Key 'a' came with another request before; give every request a key of its own"
        )
    for key in ("", "a b", "x" * 256, "ü"):
        refused = _keyed(url, key)
        assert refused.status == 422
        assert "1 to 255 visible characters" in refused.detail


def test_everything_that_makes_jobs_takes_a_key(own_yard: Yard, url: str) -> None:
    batch = _keyed(url, "batch", "/jobs/batch", {"jobs": [JOB, OTHER]})
    assert _keyed(url, "batch", "/jobs/batch", {"jobs": [JOB, OTHER]}).json == batch.json
    [job, _] = batch.json["ids"]
    own_yard.wait(job)
    for path in ("clone", "retry"):
        first = _keyed(url, path, f"/jobs/{job}/{path}", {"priority": 1})
        again = _keyed(url, path, f"/jobs/{job}/{path}", {"priority": 1})
        assert (first.status, again.json, again.headers["Idempotent-Replayed"]) == (201, first.json, "true")
    assert len(own_yard.client.jobs(all=True)) == 4


def test_what_was_refused_may_be_sent_again(url: str) -> None:
    assert _keyed(url, "a", body={**JOB, "gpus": 5}).status == 422
    assert _keyed(url, "a").headers["Idempotent-Replayed"] is None


def test_an_answer_is_given_again_also_where_it_could_not_be_done_now(own_yard: Yard, url: str) -> None:
    job = _keyed(url, "held", body={**JOB, "hold": True}).json["id"]
    ask(url, "POST", f"/api/v1/jobs/{job}/cancel", {})
    first = _keyed(url, "retry", f"/jobs/{job}/retry", {"hold": True})
    assert first.status == 201
    ask(url, "PUT", "/api/v1/rules/quotas/*", {"gpus": 1})
    wide = _keyed(url, "wide", body={**JOB, "gpus": 2})
    assert wide.status == 422, wide
    assert _keyed(url, "retry", f"/jobs/{job}/retry", {"hold": True}).json == first.json


def test_many_at_once_make_one_job(own_yard: Yard, url: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: _keyed(url, "a"), range(64)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert sum(answer.headers["Idempotent-Replayed"] is None for answer in answers) == 1
    assert len(own_yard.client.jobs(all=True)) == 1


@pytest.mark.parametrize("point", ["store:events", "store:views", "store:committed"])
def test_a_daemon_that_dies_before_it_answers(own_yard: Yard, point: str) -> None:
    own_yard.environment["GPUYARD_FAULT"] = (
        f"{point}:3"  # before that it begins, and tells what of its GPUs is kept free
    )
    own_yard.serve("--port", "0")
    send = partial(_keyed, key="a", body={**JOB, "hold": True})
    try:
        first = send(_url_from_log(own_yard)).json
    except (HTTPException, OSError):
        first = None  # it died before it could
    until(lambda: not own_yard.is_up(), "the daemon's death")
    assert own_yard.daemon is not None
    assert own_yard.daemon.returncode == -signal.SIGKILL
    del own_yard.environment["GPUYARD_FAULT"]
    own_yard.serve("--port", "0")
    url = str(own_yard.client.status()["url"])
    again = send(url)
    assert again.status == 201
    assert first in (None, again.json)
    assert (again.headers["Idempotent-Replayed"] == "true") is (point == "store:committed")
    assert [job["id"] for job in own_yard.client.jobs()] == [again.json["id"]]


def _url_from_log(yard: Yard) -> str:
    """Where the daemon is, without asking it: an answer may be its last."""
    words = (Path(yard.data_dir) / "daemon.log").read_text().split("the API is at ")[-1]
    return words.split()[0]
