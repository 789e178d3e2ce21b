"""What the admission webhook says to a review, and how its server takes what is none."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Certificate, certificate
from tests.web import Reply, ask
from tests.yard import until

from gpuyard.errors import UserError
from gpuyard.kubernetes import admission_webhook
from gpuyard.kubernetes.admission_webhook import BadReview, Rules, Webhook, answer, patch

LINE = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpuyard.dev/gpu-indices']"}},
}
SHARE = {"annotations": {"gpuyard.dev/gpu-memory": "6994Mi"}}


def pod(metadata: dict[str, Any] = SHARE, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"schedulerName": "gpuyard", "containers": list(containers) or [{}], **spec}}


def limited(resource: str, value: str) -> dict[str, Any]:
    return {"resources": {"limits": {resource: value}}}


def review(found: Any = None, version: str = "v1", **more: Any) -> dict[str, Any]:
    request = {
        "uid": "u1", "operation": "CREATE", "namespace": "team",
        "kind": {"group": "", "version": "v1", "kind": "Pod"}, "object": found or pod(), **more,
    }  # fmt: skip
    return {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "request": request}


# -- patches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sharing",
    [
        pod(),
        pod({"labels": {"gpuyard.dev/gpu-memory": "6994Mi"}}),
        pod({"labels": {"GPU_MEM_REQ": "6994"}}),
        pod({}, limited("aliyun.com/gpu-mem", "7")),
        pod({}, {"resources": {"requests": {"aliyun.com/gpu-mem": 7}}}),
        pod({"annotations": None}, limited("nvidia.com/gpu", "0"), limited("aliyun.com/gpu-mem", "7")),
    ],
)
def test_all_who_share_get_the_variable(sharing: dict[str, Any]) -> None:
    wanted = [
        {"op": "add", "path": f"/spec/containers/{position}/env", "value": [LINE]}
        for position in range(len(sharing["spec"]["containers"]))
    ]
    assert patch(sharing, Rules()) == wanted


@pytest.mark.parametrize(
    "other",
    [
        pod(schedulerName="default-scheduler"),
        pod(schedulerName="gpuyard-too"),
        {"metadata": SHARE, "spec": {"containers": [{}]}},
        pod({}),
        pod({}, limited("nvidia.com/gpu", "1")),
        pod(SHARE, limited("nvidia.com/gpu", "1")),
        pod(SHARE, {"env": [LINE]}),
        pod(SHARE, {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
    ],
)
def test_others_are_left_alone(other: dict[str, Any]) -> None:
    assert patch(other, Rules()) == []


def test_each_container_that_says_nothing_itself() -> None:
    mine = pod(initContainers=[{"env": [{"name": "A", "value": "1"}]}])
    mine["spec"]["containers"] = [{"env": [LINE]}, {"env": []}, {"env": [{"name": "A"}]}]
    assert patch(mine, Rules()) == [
        {"op": "add", "path": "/spec/initContainers/0/env/-", "value": LINE},
        {"op": "add", "path": "/spec/containers/1/env", "value": [LINE]},
        {"op": "add", "path": "/spec/containers/2/env/-", "value": LINE},
    ]


def test_a_scheduler_of_another_name() -> None:
    assert patch(pod(schedulerName="second"), Rules("second"))
    assert not patch(pod(), Rules("second"))


def test_pods_that_say_how_much_memory_can_be_made_ours() -> None:
    rules = Rules(set_scheduler=True)
    for said in ("default-scheduler", ""):
        changes = patch(pod(schedulerName=said), rules)
        assert changes[0] == {"op": "add", "path": "/spec/schedulerName", "value": "gpuyard"}
        assert changes[1]["path"] == "/spec/containers/0/env"
    whole = pod(SHARE, limited("nvidia.com/gpu", "1"), schedulerName="default-scheduler")
    assert [one["path"] for one in patch(whole, rules)] == ["/spec/schedulerName"]
    for other in (
        pod(schedulerName="volcano"),
        pod({}, limited("nvidia.com/gpu", "1"), schedulerName="default-scheduler"),
        pod({"labels": {"GPU_MEM_REQ": "9"}}, schedulerName="default-scheduler"),
        pod(schedulerName="default-scheduler", nodeName="n1"),
    ):
        assert not patch(other, rules)


# -- reviews --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_answer_is_of_the_version_that_was_asked(version: str) -> None:
    found = answer(review(version=version), Rules())
    assert (found["apiVersion"], found["kind"]) == (f"admission.k8s.io/{version}", "AdmissionReview")
    response = found["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u1", True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == patch(pod(), Rules())


@pytest.mark.parametrize(
    "more",
    [
        {"object": pod(schedulerName="default-scheduler")},
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "binding"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": {"group": "", "version": "v1", "kind": "Binding"}},
    ],
)
def test_what_does_not_concern_us_is_allowed_as_it_is(more: dict[str, Any]) -> None:
    assert answer(review(**more), Rules())["response"] == {"uid": "u1", "allowed": True}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (None, "no AdmissionReview"),
        ([], "no AdmissionReview"),
        ({"kind": "Pod"}, "no AdmissionReview"),
        (review(version="v2"), "neither admission.k8s.io/v1 nor"),
        ({**review(), "request": None}, "no uid"),
        ({**review(), "request": []}, "'request' is no object"),
        (review(uid=""), "no uid"),
        (review(uid=7), "no uid"),
        (review(kind="Pod"), "'kind' is no object"),
        (review(object=None), "no object"),
        (review(object=[1]), "'object' is no object"),
        (review(object={"spec": "x"}), "'spec' is no object"),
        (review(pod({"annotations": ["a"]})), "'annotations' is no object"),
        (review(pod(SHARE, initContainers=[1])), "'initContainers' is no list"),
        (review(pod(SHARE, {"env": ["a"]})), "'env' is no list"),
        (review(pod(SHARE, {"resources": 1})), "'resources' is no object"),
    ],
)
def test_what_is_no_review_is_refused_in_a_sentence(bad: Any, said: str) -> None:
    with pytest.raises(BadReview, match=said):
        answer(bad, Rules())


# -- the server -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls") / "one")


@pytest.fixture
def server(pair: Certificate) -> Iterator[Webhook]:
    with Webhook(("127.0.0.1", 0), admission_webhook.Certificate(pair.file, pair.key), Rules()) as found:
        yield found


def asked(
    server: Webhook, trusted: Certificate, path: str, body: Any = None, method: str = "POST", **more: Any
) -> Reply:
    tls = ssl.create_default_context(cafile=trusted.file)
    return ask(f"https://127.0.0.1:{server.port}", method, path, body, tls=tls, **more)


def test_it_answers_by_https(server: Webhook, pair: Certificate) -> None:
    reply = asked(server, pair, "/mutate?timeout=5s", review())
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    assert reply.json["response"]["uid"] == "u1"
    alive = asked(server, pair, "/healthz", method="GET")
    assert (alive.status, alive.body) == (200, b"ok\n")


def test_nonsense_is_refused_and_the_server_goes_on(server: Webhook, pair: Certificate) -> None:
    for body in (b"", b"{", b"\xff", b"[" * 100_000, b"null", json.dumps({**review(), "request": 1}).encode()):
        reply = asked(server, pair, "/mutate", body)
        assert reply.status == 400, body[:20]
        assert reply.body.decode().strip(), body[:20]
        assert b"Traceback" not in reply.body
    for header in ("x", "-1", str(2**40)):
        assert asked(server, pair, "/mutate", b"", headers={"Content-Length": header}).status == 400
    assert asked(server, pair, "/elsewhere", review()).status == 404
    assert asked(server, pair, "/mutate", method="GET").status == 404
    assert asked(server, pair, "/mutate", method="PUT").status == 501
    with socket.create_connection(("127.0.0.1", server.port)) as line, suppress(ConnectionResetError):
        line.sendall(b"POST /mutate HTTP/1.1\r\n\r\n")  # in clear
        assert b"HTTP" not in line.recv(100)
    assert asked(server, pair, "/mutate", review()).status == 200


def test_who_says_nothing_keeps_nobody_waiting(server: Webhook, pair: Certificate) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert asked(server, pair, "/mutate", review()).status == 200


def test_a_new_certificate_is_taken_up(tmp_path: Path, pair: Certificate, caplog: pytest.LogCaptureFixture) -> None:
    other = certificate(tmp_path / "two")
    file, key = (str(shutil.copy(path, tmp_path)) for path in pair)
    with Webhook(("127.0.0.1", 0), admission_webhook.Certificate(file, key), Rules()) as server:
        assert asked(server, pair, "/healthz", method="GET").status == 200
        shutil.copy(other.file, file)  # only half of it yet: the former one stays
        assert asked(server, pair, "/healthz", method="GET").status == 200
        assert asked(server, pair, "/healthz", method="GET").status == 200
        assert caplog.text.count("cannot be used, the former one stays") == 1
        shutil.copy(other.key, key)
        assert asked(server, other, "/healthz", method="GET").status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(server, pair, "/healthz", method="GET")
        until(lambda: "do not agree on TLS" in caplog.text, "a line about who does not trust us")
        Path(key).unlink()
        assert asked(server, other, "/healthz", method="GET").status == 200


def test_an_answer_that_is_due_is_given_before_the_end(pair: Certificate) -> None:
    tls = ssl.create_default_context(cafile=pair.file)
    content = json.dumps(review()).encode()
    with ExitStack() as stack:
        server = Webhook(("127.0.0.1", 0), admission_webhook.Certificate(pair.file, pair.key), Rules()).__enter__()
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        line = stack.enter_context(tls.wrap_socket(plain, server_hostname="127.0.0.1"))
        line.sendall(b"POST /mutate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(content))
        until(lambda: server.working, "the beginning of a request")
        end = threading.Thread(target=server.__exit__)
        end.start()
        line.sendall(content)
        assert line.recv(12) == b"HTTP/1.1 200"
        end.join()


def test_an_address_that_is_taken(server: Webhook, pair: Certificate) -> None:
    with pytest.raises(UserError, match="nobody can listen at"):
        Webhook(("127.0.0.1", server.port), server.certificate, Rules())
