"""The description of each route: id, summary, responses, examples, links. `openapi` builds the document from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from gpuyard.api import access_types, grant_types, replies, types
from gpuyard.api import batch_types as batches
from gpuyard.server import examples
from gpuyard.server.routes.submissions import Submission

Headers = Mapping[str, Mapping[str, Any]]
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ResponseDescription:
    """An answer that is no refusal."""

    what: str
    kind: Any = None
    """The type of what it holds, or several of them; none if it holds nothing."""
    example: Any = None
    headers: Headers = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    """Other types of the same, with an example of each."""
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Operations that may follow, and where their parameters are found in this answer."""


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """What there is to say of a route."""

    id: str
    """What programs call it."""
    summary: str
    tag: str
    good: Mapping[int, ResponseDescription]
    bad: tuple[int, ...] = ()
    """Refusals of its own; those that the gate may give to everybody are known."""
    bodies: Mapping[str, Any] = field(default_factory=dict)
    """Examples of what it takes."""
    model: type[BaseModel] | None = None
    """What it takes, where its handler reads that by itself."""
    once: bool = False
    """Whether a request may have a key, so that it can be sent again."""
    anybody: bool = False
    """Whether it needs no name."""


_TEXT: Mapping[str, Any] = {"type": "string"}
_NUMBER: Mapping[str, Any] = {"type": "integer"}
_PAGED: Headers = {"Link": {"description": "Where the next page is, with rel=next.", "schema": _TEXT}}
_LOG: Headers = {
    "X-Next-Offset": {"description": "Where the next piece begins, if it is not followed.", "schema": _NUMBER},
    "X-Log-Size": {"description": "Bytes that there are.", "schema": _NUMBER},
    "X-Job-State": {"description": "How the job stands.", "schema": _TEXT},
    "X-Attempt": {"description": "Whose output this is.", "schema": _NUMBER},
}
_RANGED: Headers = {
    **_LOG,
    "Content-Range": {"description": "Which bytes of how many.", "required": True, "schema": _TEXT},
}
_AT: Headers = {"Location": {"description": "Where it is.", "required": True, "schema": _TEXT}}
_OF_JOB = ("getJob", "explainJob", "cancelJob", "holdJob", "releaseJob", "getLog", "getEnvironment", "editJob",
           "cloneJob", "retryJob")  # fmt: skip
_OF_LEASE = ("getLease", "keepLease", "releaseLease", "getJob")
_OF_BATCH = ("getBatch", "getBatchReport", "cancelBatch")
_OF_SUBSCRIPTION = ("testSubscription", "unsubscribe")


def _links(operations: tuple[str, ...], place: str, parameter: str = "job") -> dict[str, dict[str, str]]:
    return {operation: {parameter: f"$response.body#/{place}"} for operation in operations}


def _new(
    kind: Any, example: Any, links: dict[str, dict[str, str]], headers: Headers = _NONE
) -> dict[int, ResponseDescription]:
    return {201: ResponseDescription("It is on disk.", kind, example, headers, links=links)}


def _job(what: str = "The job as it stands.", **more: Any) -> dict[int, ResponseDescription]:
    return {200: ResponseDescription(what, types.Job, examples.JOB, **more)}


def _ok(what: str, kind: Any, example: Any, **more: Any) -> dict[int, ResponseDescription]:
    return {200: ResponseDescription(what, kind, example, **more)}


_OF = (404, 422)  # there is no such job; its id makes no sense
_DONE = (*_OF, 409, 503)  # and: not as it stands; nothing can be written
_PAGE = _ok("A page of jobs.", replies.Jobs, examples.JOBS, headers=_PAGED, links=_links(("getJob",), "jobs/0/id"))
_LEASES = _ok("A page.", replies.Jobs, examples.LEASES, headers=_PAGED, links=_links(_OF_LEASE[:1], "jobs/0/id"))
_ENDED = _ok("A page.", replies.Ended, examples.ENDED, headers=_PAGED, links=_links(("getJob",), "jobs/0/id"))
_JOBS = {200: replace(_PAGE[200], kind=(replies.Jobs, replies.Table))}
_RULES = _ok("The rules as they stand.", replies.Rules, examples.RULES)
_POLICY = _ok("What makes the plans.", replies.PolicyInForce, examples.POLICY)
_DRAINED = _ok("GPUs that are drained now.", replies.Drained, {"drained": [2, 3]})
_RESERVATIONS = _ok("Those that are left.", replies.Reservations, examples.RESERVATIONS)

ROUTES: dict[str, RouteDescription] = {
    "POST /jobs": RouteDescription(
        "submitJob", "Submit a job", "Jobs", _new(replies.Id, {"id": "17"}, _links(_OF_JOB, "id"), _AT), (422, 503),
        examples.SUBMISSIONS, model=Submission, once=True,
    ),
    "POST /jobs/batch": RouteDescription(
        "submitBatch", "Submit several jobs", "Jobs",
        _new((replies.Ids, batches.Taken), {"ids": ["17", "18"]}, _links(("getJob", "cancelJob"), "ids/0")), (422, 503),
        examples.BATCHES, once=True,
    ),
    "GET /batches": RouteDescription(
        "listBatches", "List batches", "Batches",
        _ok(
            "Batches.", batches.Batches, {"batches": [examples.BATCH]},
            links=_links(_OF_BATCH, "batches/0/batch", "batch"),
        ),
        (422,),
    ),
    "GET /batches/{batch}": RouteDescription(
        "getBatch", "Look at a batch, or wait for it", "Batches",
        _ok("How it stands.", batches.BatchStanding, examples.BATCH_STANDING), _OF,
    ),
    "GET /batches/{batch}/report": RouteDescription(
        "getBatchReport", "What a batch achieved", "Batches",
        _ok("What.", batches.BatchReport, examples.BATCH_REPORT), _OF,
    ),
    "POST /batches/{batch}/cancel": RouteDescription(
        "cancelBatch", "Cancel what is left of a batch", "Batches",
        _ok("How it stands then.", batches.BatchStanding, examples.BATCH_STANDING), _DONE, examples.CANCELLATIONS,
    ),
    "GET /jobs": RouteDescription("listJobs", "List jobs", "Jobs", _JOBS, (422,)),
    "GET /jobs/{job}": RouteDescription("getJob", "Look at a job, or wait for it", "Jobs", _job(), _OF),
    "PATCH /jobs/{job}": RouteDescription("editJob", "Change a job", "Jobs", _job(), _DONE, examples.CHANGES),
    "POST /jobs/{job}/cancel": RouteDescription("cancelJob", "Cancel a job", "Jobs", _job(), _DONE,
    examples.CANCELLATIONS),
    "POST /jobs/{job}/hold": RouteDescription("holdJob", "Hold a job", "Jobs", _job(), _DONE),
    "POST /jobs/{job}/release": RouteDescription("releaseJob", "Release a held job", "Jobs", _job(), _DONE),
    "GET /jobs/{job}/log": RouteDescription(
        "getLog", "Read what a job prints", "Jobs",
        {
            200: ResponseDescription("A piece of its output, or all that comes.", bytes, headers=_LOG),
            206: ResponseDescription("The range of it that was asked for.", bytes, headers=_RANGED),
        },
        (*_OF, 409, 410, 416),
    ),
    "GET /jobs/{job}/environment": RouteDescription(
        "getEnvironment", "Read a job's environment", "Jobs",
        _ok("Its variables.", replies.Variables, {"environment": {"HOME": "/home/ann"}}), _OF,
    ),
    "GET /jobs/{job}/explain": RouteDescription(
        "explainJob", "Why does it wait?", "Jobs", _ok("Why.", types.Explanation, examples.EXPLANATION), _OF
    ),
    "POST /jobs/{job}/clone": RouteDescription(
        "cloneJob", "Queue the same once more", "Jobs", _new(replies.Id, {"id": "18"}, _links(_OF_JOB[:3], "id"), _AT),
        _DONE, examples.COPIES, once=True,
    ),
    "POST /jobs/{job}/retry": RouteDescription(
        "retryJob", "Run it again", "Jobs", _new(replies.Id, {"id": "18"}, _links(_OF_JOB[:3], "id"), _AT), _DONE,
        examples.COPIES, once=True,
    ),
    "POST /jobs/{job}/progress": RouteDescription(
        "reportProgress", "Tell how far a job is", "Jobs", _job(), (*_OF, 409), examples.REPORTS
    ),
    "POST /jobs/{job}/report": RouteDescription(
        "reportAdaptation", "Tell how a job that adapts does", "Jobs",
        _ok("What it has.", grant_types.Grant, {**examples.GRANT, "events": []}), _DONE, examples.ADAPTIVE_REPORTS,
    ),
    "GET /jobs/{job}/grant": RouteDescription(
        "getGrant", "What a running job has, and what changes", "Jobs",
        _ok("What it has.", grant_types.Grant, examples.GRANT), (*_OF, 409),
    ),
    "POST /jobs/{job}/grant/return": RouteDescription(
        "returnGrant", "Give back GPUs that a job was lent", "Jobs",
        _ok("What it has left.", grant_types.Grant, {**examples.GRANT, "granted": [], "events": []}), _DONE,
        examples.GIVEN_BACK,
    ),
    "GET /jobs/{job}/adaptation": RouteDescription(
        "getAdaptation", "What a job was granted, and what it made of it", "Jobs",
        _ok("What.", grant_types.Adaptation, examples.ADAPTATION), _OF,
    ),
    "POST /leases": RouteDescription(
        "askForLease", "Ask for GPUs", "Leases", _new(replies.Id, {"id": "19"}, _links(_OF_LEASE, "id"), _AT),
        (422, 503), examples.LEASE_WISHES, once=True,
    ),
    "GET /leases": RouteDescription("listLeases", "List leases", "Leases", _LEASES, (422,)),
    "GET /leases/{job}": RouteDescription(
        "getLease", "Look at a lease", "Leases", _ok("The lease as it stands.", types.Job, examples.LEASE), _OF
    ),
    "POST /leases/{job}/release": RouteDescription(
        "releaseLease", "Give a lease back", "Leases", _ok("It is over.", replies.Id, {"id": "19"}), _DONE
    ),
    "POST /leases/{job}/heartbeat": RouteDescription(
        "keepLease", "Give a sign of life", "Leases",
        _ok("How it stands.", replies.LeaseStanding, examples.STANDING), (*_OF, 409),
    ),
    "GET /jobs/{job}/estimate": RouteDescription(
        "getEstimate", "What is expected of a job?", "Jobs",
        _ok("What, and why.", access_types.Expectation, examples.EXPECTATION), _OF,
    ),
    "GET /estimates": RouteDescription(
        "listEstimates", "What is known of jobs by their signature", "Jobs",
        _ok("What.", access_types.Estimates, examples.ESTIMATES),
        (422,),
    ),
    "POST /estimates": RouteDescription(
        "guessEstimate", "What would be expected of a job?", "Jobs",
        _ok("What, and why.", access_types.Expectation, examples.EXPECTATION), (422,), examples.GUESSES,
    ),
    "DELETE /estimates/{signature}": RouteDescription(
        "forgetEstimate", "Forget the runs of a signature", "Jobs",
        _ok("How many there were.", access_types.Forgotten, {"runs": 14}), (404, 503),
    ),
    "GET /history": RouteDescription("listHistory", "List jobs that are over", "Jobs", _ENDED, (422,)),
    "GET /events": RouteDescription(
        "listEvents", "Read the log of events, or follow it", "Events",
        _ok("Some of it.", replies.Events, examples.EVENTS, also={"text/event-stream": examples.STREAM}), _OF,
    ),
    "GET /stats": RouteDescription(
        "getStats", "What was done in a span of time", "Events", _ok("What.", replies.Stats, examples.STATS), (422,)
    ),
    "GET /usage": RouteDescription(
        "getUsage", "Who was on which GPU when", "Events", _ok("Who.", types.Usage, examples.USAGE), (422,)
    ),
    "GET /recordings": RouteDescription(
        "getRecordings", "What GPUs did in a span of time", "GPUs",
        _ok("What.", grant_types.Recorded, examples.RECORDED), (404, 422),
    ),
    "GET /jobs/{job}/recording": RouteDescription(
        "getRecording", "What a job did on its GPUs", "Jobs",
        _ok("What.", grant_types.Recorded, examples.RECORDED), _OF,
    ),
    "GET /interference": RouteDescription(
        "getInterference", "What do jobs that share a GPU do to each other?", "GPUs",
        _ok("What was seen.", replies.Interference, examples.INTERFERENCE),
    ),
    "GET /gpus/samples": RouteDescription(
        "getSamples", "What the GPUs did lately", "GPUs", _ok("What.", types.Samples, examples.SAMPLES), (404, 422)
    ),
    "GET /gpus": RouteDescription("listGpus", "List the GPUs", "GPUs", _ok("All of them.", types.Machine,
    examples.MACHINE)),
    "GET /gpus/{index}": RouteDescription(
        "getGpu", "Look at a GPU", "GPUs", _ok("The GPU.", types.Gpu, examples.GPU), (404, 422)
    ),
    "POST /gpus/drain": RouteDescription("drainGpus", "Drain GPUs", "GPUs", _DRAINED, (409, 422, 503), examples.DRAINS),
    "POST /gpus/resume": RouteDescription("resumeGpus", "Resume GPUs", "GPUs", _DRAINED, (409, 422, 503),
    examples.RESUMES),
    "GET /reservations": RouteDescription("listReservations", "List reservations", "Reservations", _RESERVATIONS),
    "POST /reservations": RouteDescription(
        "reserve", "Reserve GPUs", "Reservations",
        _new(replies.Reservation, examples.RESERVATION, _links(("unreserve",), "name", "name"), _AT), (409, 422, 503),
        examples.RESERVATION_WISHES,
    ),
    "DELETE /reservations/{name}": RouteDescription(
        "unreserve", "Give a reservation up", "Reservations", _RESERVATIONS, (404, 422, 503)
    ),
    "GET /rules": RouteDescription("getRules", "Who may have what", "Rules", _RULES),
    "PUT /rules/quotas/{name}": RouteDescription("setQuota", "Set a quota", "Rules", _RULES, (422, 503),
    examples.QUOTAS),
    "PUT /rules/shares/{name}": RouteDescription("setShare", "Set a share", "Rules", _RULES, (422, 503),
    examples.SHARES),
    "GET /policies": RouteDescription(
        "listPolicies", "List the policies", "Policy", _ok("What there is.", replies.Policies, examples.POLICIES)
    ),
    "GET /policy": RouteDescription("getPolicy", "Which policy decides?", "Policy", _POLICY),
    "PUT /policy": RouteDescription("setPolicy", "Set the policy", "Policy", _POLICY, (422, 503),
    examples.POLICY_CHOICES),
    "POST /policy/preview": RouteDescription(
        "previewPolicy", "What would another policy change?", "Policy",
        _ok("What.", types.PolicyPreview, examples.PREVIEW), (422,), examples.POLICY_CHOICES,
    ),
    "GET /notifications": RouteDescription(
        "listNotifications", "List what was sent", "Notifications",
        _ok("What.", access_types.Deliveries, {"notifications": [examples.DELIVERY]}), (409, 422),
    ),
    "GET /notifications/subscriptions": RouteDescription(
        "listSubscriptions", "List one's subscriptions", "Notifications",
        _ok("All.", access_types.Subscriptions, {"subscriptions": [examples.SUBSCRIPTION], "mail": True}), (409,),
    ),
    "POST /notifications/subscriptions": RouteDescription(
        "subscribe", "Be told of one's jobs", "Notifications",
        _new(access_types.Subscription, examples.SUBSCRIPTION, _links(_OF_SUBSCRIPTION, "id", "subscription")),
        (409, 422, 503), examples.SUBSCRIPTION_WISHES,
    ),
    "DELETE /notifications/subscriptions/{subscription}": RouteDescription(
        "unsubscribe", "Be told no more", "Notifications",
        _ok("What it was.", access_types.Subscription, examples.SUBSCRIPTION), (404, 409, 503),
    ),
    "POST /notifications/subscriptions/{subscription}/test": RouteDescription(
        "testSubscription", "Try a subscription out", "Notifications",
        _ok("How that went.", access_types.Delivery, examples.DELIVERY), (404, 409, 422, 503),
    ),
    "GET /tokens": RouteDescription(
        "listTokens", "List tokens", "Access", _ok("Tokens.", access_types.Tokens, {"tokens": [examples.TOKEN]})
    ),
    "POST /tokens": RouteDescription(
        "makeToken", "Make a token", "Access",
        _new(access_types.Token, examples.NEW_TOKEN, _links(("revokeToken",), "id", "id")), (422, 503),
        examples.TOKEN_WISHES,
    ),
    "DELETE /tokens/{id}": RouteDescription(
        "revokeToken", "Revoke a token", "Access", _ok("What it was.", access_types.Token, examples.TOKEN), (404, 503)
    ),
    "GET /audit": RouteDescription(
        "listAudit", "Read the audit trail", "Access", _ok("Entries.", access_types.Audit, examples.AUDIT), (422,)
    ),
    "POST /session": RouteDescription(
        "logIn", "Log in", "Access", {201: ResponseDescription("A session, by a cookie.", access_types.WhoAmI,
        examples.WHO)},
        (422, 503), examples.LOGINS,
    ),
    "GET /session": RouteDescription("whoAmI", "Who am I?", "Access", _ok("Who.", access_types.WhoAmI, examples.WHO)),
    "DELETE /session": RouteDescription("logOut", "Log out", "Access", {204: ResponseDescription("It is over.")},
    (503,)),
    "GET /status": RouteDescription(
        "getStatus", "How the daemon does", "Daemon", _ok("How it does.", replies.Status, examples.STATUS)
    ),
    "POST /shutdown": RouteDescription(
        "shutDown", "End the daemon", "Daemon", {202: ResponseDescription("It ends.", replies.Ending, {"running": 2})}
    ),
}  # fmt: skip
_ALIVE = _ok("It is.", replies.Probed, {"status": "ok"})
PROBES: dict[str, RouteDescription] = {
    "GET /healthz": RouteDescription("isAlive", "Does the daemon live?", "Daemon", _ALIVE, (503,), anybody=True),
    "GET /readyz": RouteDescription("isReady", "Can the daemon do its work?", "Daemon", _ALIVE, (503,), anybody=True),
    "GET /metrics": RouteDescription(
        "getMetrics", "Numbers for Prometheus", "Daemon",
        _ok("All metrics.", None, None, also={kind: examples.METRICS + end for kind, end in examples.ENDS.items()}),
    ),
}  # fmt: skip
"""What other programs watch the daemon by, outside the API's own prefix."""

TAGS = {
    "Jobs": "Commands, queued until GPUs are free.",
    "Batches": "Jobs that came out of one file.",
    "Leases": "GPUs for processes that run already.",
    "Events": "What happened, in order.",
    "GPUs": "The GPUs, and who is on them.",
    "Reservations": "GPUs that are kept for somebody.",
    "Rules": "Who may have what, and has had it.",
    "Policy": "What decides who is next.",
    "Notifications": "Being told of one's jobs.",
    "Access": "Tokens, sessions, and who did what.",
    "Daemon": "The daemon itself.",
}
"""The groups of routes, in order."""
