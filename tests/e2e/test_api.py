"""The API as scripts meet it: pages, what there is, and refusals that say what to do, whatever is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from tests.web import Reply, ask
from tests.yard import Yard, opened, until

JOB: dict[str, Any] = {"command": ["true"], "directory": "/"}
HELD = {**JOB, "hold": True}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """One that is reached by TCP."""
    with opened(tmp_path_factory.mktemp("api")) as found:
        found.serve("--port", "0")
        yield found


@pytest.fixture(scope="module")
def url(yard: Yard) -> str:
    return f"{yard.client.status()['url']}/api/v1"


@pytest.fixture(scope="module")
def document(url: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(url, "GET", "/openapi.json").json
    return found


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path.removeprefix("/api/v1"), operation


def _with_body(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Routes that take something, with names that could be there."""
    found = [(method, path) for method, path, operation in _operations(document) if "requestBody" in operation]
    return [(method, path.replace("{job}", "1").replace("{name}", "ann")) for method, path in found]


# -- the document --------------------------------------------------------------------------------------


def test_every_route_is_described_in_full(document: dict[str, Any]) -> None:
    operations = list(_operations(document))
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(set(ids)) == len(ids) > 30
    for method, path, operation in operations:
        label = f"{method} {path}"
        assert operation["summary"], label
        assert operation["description"], label
        assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}, label
        assert all(parameter["description"] for parameter in operation.get("parameters", [])), label
        assert {"401", "403"} < operation["responses"].keys(), label
        for content in operation.get("requestBody", {"content": {}})["content"].values():
            assert content["examples"], label
        good = next(answer for code, answer in operation["responses"].items() if code.startswith("2"))
        json_alone = [content for kind, content in good.get("content", {}).items() if kind == "application/json"]
        assert all("example" in content for content in json_alone), label
        for link in good.get("links", {}).values():
            assert link["operationId"] in ids, label


def test_examples_are_what_the_schemas_say(document: dict[str, Any]) -> None:
    def check(schema: dict[str, Any], example: Any) -> None:
        jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(example)

    for answer in document["components"]["responses"].values():
        [content] = answer["content"].values()
        check(content["schema"], content["example"])
    for _, _, operation in _operations(document):
        for content in operation.get("requestBody", {"content": {}})["content"].values():
            for example in content["examples"].values():
                check(content["schema"], example["value"])
        for answer in operation["responses"].values():
            for content in answer.get("content", {}).values():
                if "example" in content:
                    check(content["schema"], content["example"])


def test_only_probes_are_described_besides(document: dict[str, Any]) -> None:
    besides = {path: methods["get"] for path, methods in document["paths"].items() if not path.startswith("/api/v1/")}
    assert besides.keys() == {"/healthz", "/readyz", "/metrics"}
    for path in ("/healthz", "/readyz"):
        assert {"200", "503"} < besides[path]["responses"].keys()
        assert besides[path]["security"] == []
    assert "security" not in besides["/metrics"]
    assert "application/json" not in besides["/metrics"]["responses"]["200"]["content"]


def test_nothing_is_fetched_from_elsewhere(url: str, document: dict[str, Any]) -> None:
    assert "http" not in json.dumps(document["servers"])
    for path in ("/docs", "/redoc", "/../../docs"):
        assert ask(url, "GET", path).status == 404


# -- what there is -------------------------------------------------------------------------------------


def test_policies(url: str) -> None:
    found = ask(url, "GET", "/policies").json
    known = {policy["name"]: policy for policy in found["policies"]}
    assert known["priority"]["settings"] == {"ageing": 1.0}
    assert known["rr"]["settings"]["quantum"] == 10.0
    assert known["sjf"]["doc"].startswith("Shortest job first")
    assert found["aliases"]["fifo"]["policy"] == "fcfs"
    assert {"easy", "skip"} <= found["disciplines"].keys()
    assert {"pack", "fgd"} <= found["placements"].keys()


def test_one_gpu(url: str) -> None:
    one, same = ask(url, "GET", "/gpus/3").json, ask(url, "GET", "/gpus").json["gpus"][3]
    lively = {"utilization", "temperature", "power"}  # these may change in between
    assert {name: one[name] for name in one.keys() - lively} == {name: same[name] for name in same.keys() - lively}
    refused = ask(url, "GET", "/gpus/4")
    assert refused.status == 404
    assert refused.detail == "there is no GPU 4 here: this machine has 4 GPUs (gpuyard gpus lists them)"


def test_what_is_new_has_a_place(yard: Yard, url: str) -> None:
    job = ask(url, "POST", "/jobs", HELD, headers={"Idempotency-Key": "placed"})
    again = ask(url, "POST", "/jobs", HELD, headers={"Idempotency-Key": "placed"})
    copy = ask(url, "POST", f"/jobs/{job.json['id']}/clone", {})
    lease = ask(url, "POST", "/leases", {"heartbeat": 60})
    for kind, made in (("jobs", job), ("jobs", again), ("jobs", copy), ("leases", lease)):
        assert made.headers["Location"] == f"/api/v1/{kind}/{made.json['id']}"
        assert ask(url, "GET", made.headers["Location"].removeprefix("/api/v1")).json["id"] == made.json["id"]
    wish = {"gpus": [0], "begin": 4102444800, "end": 4102452000, "name": "a?b"}
    place = ask(url, "POST", "/reservations", wish).headers["Location"]
    assert place == "/api/v1/reservations/a%3Fb"
    assert ask(url, "DELETE", place.removeprefix("/api/v1")).status == 200
    yard.clear()


def test_heads(url: str) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/api/v1/jobs", "/api/v1/gpus/3", "/api/v1/openapi.json"):
        whole, head = (ask(url.removesuffix("/api/v1"), method, path) for method in ("GET", "HEAD"))
        assert (head.status, head.body) == (200, b""), path
        assert head.headers["Content-Type"] == whole.headers["Content-Type"], path
        assert path == "/metrics" or head.headers["Content-Length"] == str(len(whole.body)), path
    for path in ("/jobs/987654", "/nothing", "/jobs?bogus=1"):
        assert ask(url, "HEAD", path).status == ask(url, "GET", path).status
    assert ask(url, "HEAD", "/shutdown").status == 405
    followed = ask(url, "HEAD", "/events", headers={"Accept": "text/event-stream"})  # which ends
    assert (followed.status, followed.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")


def test_leases(yard: Yard, url: str) -> None:
    lease = yard.client.ask_for_lease(gpus=1)
    job = ask(url, "POST", "/jobs", HELD).json["id"]
    found = ask(url, "GET", "/leases").json
    assert [(one["id"], one["kind"]) for one in found["jobs"]] == [(lease, "lease")]
    assert (found["total"], found["next"]) == (1, None)
    assert ask(url, "GET", f"/leases/{lease}").json["id"] == lease
    refused = ask(url, "GET", f"/leases/{job}")
    assert (refused.status, refused.detail) == (404, f"there is no lease {job} (gpuyard ps --all lists them)")
    yard.client.give_back_lease(lease)
    assert ask(url, "GET", "/leases").json["jobs"] == []
    assert ask(url, "GET", f"/leases/{lease}").json["state"] == "succeeded"
    yard.clear()


# -- pages ---------------------------------------------------------------------------------------------


def _pages(url: str, path: str) -> Iterator[Reply]:
    while path:
        found = ask(url, "GET", path)
        following = found.json["next"]
        link = found.headers["Link"]
        assert link == (f'<{following}>; rel="next"' if following else None)
        yield found
        path = (following or "").removeprefix("/api/v1")


def test_jobs_come_in_pages(yard: Yard, url: str) -> None:
    ids = ask(url, "POST", "/jobs/batch", {"jobs": [{**HELD, "tags": ["a b&c"]}] * 7}).json["ids"]
    pages = list(_pages(url, f"/jobs?limit=3&tag={quote('a b&c')}"))
    assert [[job["id"] for job in page.json["jobs"]] for page in pages] == [ids[:3], ids[3:6], ids[6:]]
    assert {page.json["total"] for page in pages} == {7}
    tables = list(_pages(url, "/jobs?limit=3&columns=true"))
    assert [table.json["columns"]["id"] for table in tables] == [ids[:3], ids[3:6], ids[6:]]
    assert len(list(_pages(url, "/jobs?limit=7"))) == 1
    assert ask(url, "GET", "/jobs?offset=9").json["jobs"] == []
    refused = ask(url, "GET", "/jobs?limit=10001")
    assert refused.status == 422
    assert refused.detail.startswith("limit is 10000 at most: a page says where the next one is")
    yard.clear()


def test_a_page_ends_early_where_jobs_say_much(yard: Yard, url: str) -> None:
    long = {**HELD, "name": "long", "command": ["x" * 131_000] * 16}
    ids = [ask(url, "POST", "/jobs", long).json["id"] for _ in range(5)]
    found = [[job["id"] for job in page.json["jobs"]] for page in _pages(url, "/jobs?name=long")]
    assert found == [ids[:4], ids[4:]]
    yard.clear()
    ended = [job["id"] for page in _pages(url, "/history?name=long") for job in page.json["jobs"]]
    assert (len(list(_pages(url, "/history?name=long"))), sorted(ended)) == (2, sorted(ids))
    events = ask(url, "GET", "/events?kind=Submitted&limit=10000").json
    more = ask(url, "GET", f"/events?kind=Submitted&after={events['last']}").json
    assert [event["job"] for event in [*events["events"], *more["events"]]][-5:] == ids
    assert more["events"]


def test_the_history_comes_in_pages_that_nothing_moves(yard: Yard, url: str) -> None:
    def end(count: int) -> list[str]:
        """Jobs that end at one instant, or nearly so."""
        ids: list[str] = ask(url, "POST", "/jobs/batch", {"jobs": [{**HELD, "name": "ending"}] * count}).json["ids"]
        yard.clear()
        return ids

    ids = end(7)
    pages = _pages(url, "/history?limit=2&name=ending")
    told = [job["id"] for job in next(pages).json["jobs"]]
    end(3)  # which come before all others
    told += [job["id"] for page in pages for job in page.json["jobs"]]
    assert sorted(told) == sorted(ids)
    assert len(told) == 7
    for cursor in ("x", "0x1p3_", "1_2_3", "0x1p99999_1"):
        refused = ask(url, "GET", f"/history?cursor={cursor}")
        assert refused.status == 422
        assert "is no cursor; take the one in `next`" in refused.detail


# -- refusals ------------------------------------------------------------------------------------------


def test_what_is_not_there(url: str) -> None:
    refused = ask(url, "GET", "/nothing")
    assert (refused.status, refused.detail) == (
        404, "GET /api/v1/nothing: there is nothing here; GET /api/v1/openapi.json tells what there is",
    )  # fmt: skip
    assert ask(url, "GET", "/jobs/").status == 404
    for kind in ("application/json", "text/event-stream"):
        for path in ("/jobs/987654", "/events?job=987654"):
            refused = ask(url, "GET", path, headers={"Accept": kind})
            assert (refused.status, "there is no job 987654" in refused.detail) == (404, True)


def test_another_method(url: str) -> None:
    for method, path, allowed in (
        ("DELETE", "/jobs", "GET, POST"), ("PUT", "/jobs/1", "GET, PATCH"), ("GET", "/gpus/drain", "POST"),
        ("OPTIONS", "/jobs/batch", "POST"), ("POST", "/policy", "GET, PUT"),
    ):  # fmt: skip
        refused = ask(url, method, path)
        assert (refused.status, refused.headers["Allow"]) == (405, allowed), (method, path)
        assert refused.detail == f"{method} /api/v1{path}: this can be asked with {allowed} only"


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b"[" * 100_000, {400}),
        (b'{"a":' * 100_000, {400}),
        (b"[" * 100_000 + b"]" * 100_000, {400, 422}),
        (b'{"command": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {400, 422}),
        (b"{", {400}),
        (b"\xff\xfe", {400}),
        (b'{"command": ["\xff"]}', {400}),
        (b"[]", {422}),
        (b'"text"', {422}),
        (b"1" * 5000, {400}),
        (b'{"priority": NaN, "weight": NaN, "gpus": NaN, "grace": NaN, "begin": NaN, "policy": NaN}', {422}),
        (b'{"priority": 1e999, "weight": Infinity, "gpus": 1e999, "grace": -Infinity, "policy": 1}', {422}),
        (b'{"gpus": 1' + b"0" * 400 + b', "weight": 1' + b"0" * 400 + b', "grace": "x", "policy": 1}', {422}),
        (b'{"name": "\\ud800", "reason": "\\ud800", "policy": "\\ud800", "grace": "\\ud800"}', {422}),
        (b'{"name": "\\u0000", "reason": "\\u0000", "policy": "\\u0000", "grace": "\\u0000"}', {422}),
    ],
    ids=[
        "open brackets", "open braces", "closed brackets", "deep inside", "cut off", "no text", "no UTF-8", "a list",
        "a text", "a long number", "NaN", "infinity", "huge", "half a character", "NUL",
    ],
)  # fmt: skip
def test_bodies_that_make_no_sense(
    url: str, yard: Yard, document: dict[str, Any], body: bytes, statuses: set[int]
) -> None:
    routes = _with_body(document)
    assert len(routes) > 10
    for method, path in routes:
        refused = ask(url, method, path, body)
        wanted = statuses | ({404} if path.startswith("/jobs/1") else set())
        assert refused.status in wanted, (method, path, refused)
        assert refused.detail
    assert yard.is_up()


def test_a_body_that_is_too_long(url: str, document: dict[str, Any]) -> None:
    for method, path in _with_body(document):
        refused = ask(url, method, path, b" " * 10 * 2**20)
        assert refused.status == 413, (method, path)
        assert "8388608 bytes at most" in refused.detail


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", "/jobs", {**JOB, "from": [9]}, "this job can never run here: it wants GPU 9"),
        ("POST", "/jobs", {**JOB, "from": [-1]}, "from.0: must be a list of GPU indices, as in [0, 1, 3], not -1"),
        ("POST", "/jobs", {**JOB, "gpus": 5}, "it wants 5 GPUs, this machine has 4"),
        ("POST", "/jobs", {**JOB, "gpus": 0}, "gpus: must be a whole number of 1 or more, as in 1, not 0"),
        ("POST", "/jobs", {**JOB, "gpus": "2"}, "gpus: must be a whole number of 1 or more, as in 1, not \"2\""),
        ("POST", "/jobs", {**JOB, "from": []}, "from: names no GPU; leave it out if any will do"),
        ("POST", "/jobs", {**JOB, "gpu_memory": 6}, "gpu_memory: 6 bytes of a GPU's memory are too few; write a unit"),
        ("POST", "/jobs", {**JOB, "gpu_memory": "x"}, "gpu_memory: must be a number of bytes of 1,048,576 or"),
        ("POST", "/jobs", {**JOB, "time_limit": "90m"}, "time_limit: must be a number of seconds above 0, as in 14400"),
        ("POST", "/jobs", {**JOB, "begin": "12"}, "begin: must be a time in ISO-8601"),
        ("POST", "/jobs", {**JOB, "begin": 3e10}, "begin: must be a time: seconds since the epoch"),
        ("POST", "/jobs", {**JOB, "deadline": "9999-12-31T23:59:59Z"}, "deadline: must be a time between 1970 and"),
        ("POST", "/jobs", {**JOB, "environment": {"A=B": "1"}}, "environment: a variable's name must not be empty"),
        ("POST", "/jobs", {**JOB, "command": []}, "command: must not be empty"),
        ("POST", "/jobs", {**JOB, "gpu": 2}, "gpu: there is no such field; did you mean 'gpus'?"),
        ("POST", "/jobs", {**JOB, "form": [0]}, "form: there is no such field; did you mean 'from'?"),
        ("POST", "/jobs", [], "the body must be an object, as in {...}"),
        ("POST", "/leases", "text", "the body must be an object, as in {...}"),
        ("POST", "/jobs", {**JOB, "open_mode": "x"}, "open_mode: must be one of append, truncate, as in"),
        ("POST", "/jobs/batch", {"jobs": [JOB, {**JOB, "gpu": 2}]}, "jobs.1.gpu: there is no such field; did you mean"),
        ("POST", "/jobs/batch", {"jobs": [3]}, "jobs.0: must be an object"),
        ("PUT", "/rules/shares/ann", {"weigth": 2}, "weigth: there is no such field; did you mean 'weight'?"),
        ("GET", "/jobs/1?for=ever", None, "for: is one of over, start"),
        ("POST", "/jobs", {"directory": "/"}, "command: is required"),
        ("POST", "/leases", {"name": "x" * 201, "heartbeat": 60}, "name: must have at most 200 characters"),
        ("POST", "/tokens", {"user": "ann", "role": "boss"}, "role: is one of viewer, user, admin"),
        ("POST", "/jobs/batch", {"jobs": []}, "jobs: must not be empty"),
        ("POST", "/jobs/batch", {"jobs": [JOB, {**JOB, "gpus": 9}]}, "job 2 of 2"),
        ("PUT", "/policy", {"policy": "sfj"}, "unknown policy 'sfj'; did you mean 'sjf'? (gpuyard policies lists"),
        ("PUT", "/policy", {"policy": "sjf@esay"}, "did you mean 'easy'?"),
        ("POST", "/gpus/drain", {"gpus": [7]}, "there is no GPU 7"),
        ("POST", "/gpus/drain", {"gpus": []}, "gpus: must not be empty"),
        ("POST", "/reservations", {"gpus": [0], "begin": 1e12, "end": 2e12}, "begin: must be a number of at most"),
        ("POST", "/reservations", {"gpus": [0], "begin": 1e9, "end": 2e9, "name": "a b"}, "name: must be one word, "),
        ("GET", "/jobs?sate=queued", None, "there is no parameter 'sate'; did you mean 'state'? (there are all, arr"),
        ("GET", "/gpus?bogus=1", None, "there is no parameter 'bogus' (there are none here)"),
        ("GET", "/jobs/1/log?ofset=3", None, "did you mean 'offset'?"),
        ("GET", "/events?jobs=3", None, "did you mean 'job'?"),
        ("GET", "/jobs?state=runing", None, "there is no state 'runing'; did you mean 'running'? (the states are run"),
        ("GET", "/jobs?state=queued,hold", None, "there is no state 'hold'; did you mean 'held'?"),
        ("GET", "/history?state=done", None, "there is no state 'done'"),
        ("GET", "/history?since=soon", None, "since: must be a time in ISO-8601"),
        ("GET", "/jobs/5_[9-1]", None, "9-1 goes backwards; write 1-9"),
        ("GET", "/jobs/5_[" + "0-99999," * 3000 + "1]", None, "has more than 100,000 tasks"),
        ("POST", "/jobs", {**JOB, "dependency": "afterok:\ud800"}, "dependency: must not hold half a character"),
        ("POST", "/jobs", {**JOB, "dependency": "afterok:@" + "9" * 5000}, "there is no job @999"),
        ("POST", "/jobs", {**JOB, "dependency": "afterok" + ":5_[0-99999]" * 8000}, "more than 200,000 tasks are"),
        ("POST", "/jobs/bulk", {"action": "hold", "jobs": ["5_[0-99999]"] * 9999}, "more than 200,000 tasks are"),
        ("POST", "/jobs", {**JOB, "variables": {f"v{n}": "" for n in range(50_001)}}, "variables has at most 50,000"),
        ("PUT", "/policy", {"policy": "f" * 10_001}, "policy: must have at most 10000 characters"),
        ("PUT", "/policy", {"policy": "f" * 4000}, "unknown policy 'fff"),
        ("GET", "/audit?before=99999999999999999999", None, "before: must be a number of at most"),
        ("GET", "/jobs/1?wait=31", None, "wait: must be a number of at most 30, as in 30"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(url: str, method: str, path: str, body: Any, told: str) -> None:
    refused = ask(url, method, path, body)
    assert refused.status == 422, refused
    assert told in refused.detail


def test_a_wrong_token_to_log_in_with(url: str) -> None:
    refused = ask(url, "POST", "/session", {"token": "gy_a_b"})
    told = "this token is wrong, has expired or was revoked; gpuyard token create makes another"
    assert (refused.status, refused.detail) == (401, told)


def test_a_whole_number_is_whole_however_it_is_written(url: str) -> None:
    job = ask(url, "POST", "/jobs", b'{"command": ["true"], "directory": "/", "gpus": 2.0, "from": [0.0, 1e0]}')
    assert job.status == 201
    assert ask(url, "GET", f"/jobs/{job.json['id']}").json["gpu_count"] == 2


def test_a_refusal_tells_where(url: str) -> None:
    refused = ask(url, "POST", "/jobs", {**JOB, "gpus": 0, "retries": -1})
    assert [error["where"] for error in refused.json["errors"]] == ["gpus", "retries"]
    assert all(error["message"] for error in refused.json["errors"])


def test_the_daemon_ends_when_it_is_told_to(own_yard: Yard) -> None:
    own_yard.serve("--port", "0")
    answer = ask(own_yard.client.status()["url"], "POST", "/api/v1/shutdown", {})
    assert (answer.status, answer.json) == (202, {"running": 0})
    until(lambda: not own_yard.is_up(), "the daemon's end")
    log = (own_yard.data_dir / "daemon.log").read_text()
    assert "ended; jobs go on running" in log
    assert "server process" not in log  # which uvicorn would tell of twice
    assert "Shutting down" not in log


def test_the_tasks_of_one_array_are_listed(yard: Yard, url: str) -> None:
    one, _ = (ask(url, "POST", "/jobs", {**HELD, "array": "0-2"}).json["id"] for _ in range(2))
    found = ask(url, "GET", f"/jobs?all=true&array={one}").json
    assert [job["id"] for job in found["jobs"]] == [f"{one}_{task}" for task in range(3)]
    assert found["total"] == 3
    yard.clear()
