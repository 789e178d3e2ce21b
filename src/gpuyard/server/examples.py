"""Examples of what the API takes and gives. The tests hold them to the schemas, and send those that are requests."""

from __future__ import annotations

from typing import Any

_AT = "2026-11-16T09:30:00.000+01:00"
_LATER = "2026-11-16T11:00:00.000+01:00"

JOB: dict[str, Any] = {
    "id": "17", "name": "train", "user": "ann", "state": "queued", "reason": "waits for 2 GPUs: 1 is free",
    "attempt": 0, "gpus": [], "exit_code": None, "submitted_at": _AT, "started_at": None, "ended_at": None,
    "gpu_count": 2, "gpu_memory": None, "priority": 0.0, "command": ["python", "train.py"],
    "directory": "/home/ann/project", "tags": ["paper"], "estimate": 7200.0, "time_limit": 14400.0, "message": None,
    "array": None, "task": None, "begin_at": None, "deadline_at": None, "dependency": None, "retries": 0,
    "retry_delay": 0.0, "failures": 0, "output": None, "error": None, "open_mode": None, "among": None, "grace": 10.0,
    "requeue": False, "signal": "TERM", "notice": None, "preemptible": False, "preemptions": 0, "notify": [],
    "notify_on": [], "kind": "job", "progress": None,
}  # fmt: skip
LEASE: dict[str, Any] = {
    **JOB, "id": "19", "name": "python", "state": "running", "reason": "a lease, held by process 4242", "attempt": 1,
    "gpus": [1], "started_at": _AT, "gpu_count": 1, "command": [], "directory": "", "tags": [], "kind": "lease",
    "pid": 4242,
}  # fmt: skip
_OVER = {**JOB, "state": "succeeded", "reason": None, "attempt": 1, "gpus": [0, 1], "exit_code": 0,
         "started_at": _AT, "ended_at": _LATER}  # fmt: skip
JOBS: dict[str, Any] = {"total": 1234, "jobs": [JOB], "next": "/api/v1/jobs?limit=1&offset=1"}
LEASES: dict[str, Any] = {"total": 1, "jobs": [LEASE], "next": None}
ENDED: dict[str, Any] = {"jobs": [_OVER], "next": "/api/v1/history?limit=1&cursor=0x1.abcp%2B30_17"}
EXPLANATION: dict[str, Any] = {
    "id": "17", "state": "queued", "reason": "waits for 2 GPUs: 1 is free", "code": "Resources",
    "details": {"gpus": 2, "idle": 1}, "expected_at": _LATER, "ahead": ["15"],
    "must_end_first": [{"id": "12", "name": "eval", "user": "bob", "gpus": [0], "expected_at": _LATER}], "gpus": [],
}  # fmt: skip
EVENTS: dict[str, Any] = {
    "events": [{"seq": 41, "at": _AT, "kind": "Placed", "job": "17", "attempt": 1, "gpus": [0, 1]}], "last": 41,
}  # fmt: skip
GPU: dict[str, Any] = {
    "index": 1, "uuid": "GPU-5c1d4a4e", "name": "NVIDIA A100", "state": "ours", "memory_total": 42949672960,
    "memory_used": 21474836480, "utilization": 87.0, "jobs": ["19"], "temperature": 61.0, "power": 240.5,
    "why": "a job of ours is placed here", "simulated": False, "drained": False, "reservation": None,
    "reserved_from": None, "reserved_until": None,
}  # fmt: skip
MACHINE: dict[str, Any] = {"simulated": False, "gpus": [GPU]}
RESERVATION: dict[str, Any] = {
    "name": "demo", "gpus": [0, 1], "begin_at": _AT, "end_at": _LATER, "users": ["ann"], "in_the_way": ["12"],
}  # fmt: skip
RESERVATIONS: dict[str, Any] = {
    "reservations": [{name: value for name, value in RESERVATION.items() if name != "in_the_way"}]
}
RULES: dict[str, Any] = {
    "half_life": 604800.0, "preempts": True,
    "users": [
        {
            "name": "ann", "group": "vision", "weight": 2.0, "gpus": 2, "week_gpu_hours": 31.5,
            "faded_gpu_hours": 12.25, "quota_gpus": 4, "quota_gpu_hours": None,
        }
    ],
}  # fmt: skip
POLICY: dict[str, Any] = {
    "policy": "multifactor@easy@pack", "name": "multifactor", "discipline": "easy", "placement": "pack", "since": _AT,
}  # fmt: skip
POLICIES: dict[str, Any] = {
    "policies": [
        {
            "name": "sjf", "doc": "Shortest job first, by estimate.", "settings": {}, "columns": ["estimate"],
            "preemptive": False,
        }
    ],
    "aliases": {"fifo": {"policy": "fcfs", "doc": "first come, first served, by its other name"}},
    "disciplines": {"skip": "greedy: whatever fits starts, in order"},
    "placements": {"first": "the lowest-numbered GPUs that fit"},
    "columns": {"estimate": "seconds that it should take"},
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "0.6.0", "pid": 812, "since": _AT, "data_dir": "/var/lib/gpuyard", "socket": "/run/gpuyard/gpuyard.sock",
    "url": "http://127.0.0.1:62333", "warnings": [], "simulated": False, "gpus": {"free": 3, "ours": 1},
    "policy": "multifactor@easy@pack", "jobs": {"running": 1, "queued": 7, "succeeded": 950},
    "plan": {"last_ms": 0.4, "mean_ms": 0.3, "max_ms": 2.1}, "store": {"state": "ok", "problem": None},
}  # fmt: skip
_TOOK: dict[str, Any] = {"count": 40, "mean": 610.5, "median": 300.0, "p90": 1800.0, "p99": 7200.0}
STATS: dict[str, Any] = {
    "since": _AT, "until": _LATER, "gpus": 4, "submitted": 52, "ended": 40, "outcomes": {"succeeded": 38, "failed": 2},
    "gpu_hours": 71.5, "utilization": 0.74, "wait_seconds": _TOOK, "run_seconds": _TOOK,
    "users": [{"user": "ann", "gpu_hours": 71.5, "submitted": 52, "ended": 40}],
    "queue": {"queued": 7, "held": 1, "running": 4, "gpus_wanted": 9},
}  # fmt: skip
SUBSCRIPTION: dict[str, Any] = {
    "id": "3", "name": "slack", "target": "slack://T...", "events": ["finish", "failure"], "long_wait": 3600.0,
    "title": None, "body": None, "created_at": _AT,
}  # fmt: skip
DELIVERY: dict[str, Any] = {
    "id": "12", "at": _AT, "user": "ann", "job": "17", "event": "finish", "state": "sent", "attempts": 1,
    "error": None, "next_at": None, "ended_at": _LATER, "subscription": "slack", "target": "slack://T...",
}  # fmt: skip
TOKEN: dict[str, Any] = {
    "id": "k3x9", "user": "ann", "role": "user", "label": "laptop", "made_by": "ann", "state": "active", "sessions": 0,
    "created_at": _AT, "expires_at": None, "last_used_at": _LATER, "revoked_at": None,
}  # fmt: skip
NEW_TOKEN: dict[str, Any] = {**TOKEN, "last_used_at": None, "token": "gy_k3x9_...", "runs_as": "ann"}
AUDIT: dict[str, Any] = {
    "entries": [
        {
            "id": 812, "at": _AT, "user": "ann", "via": "token k3x9", "address": "192.0.2.7", "method": "POST",
            "path": "/api/v1/jobs/17/cancel", "status": 200, "job": "17", "times": 1,
        }
    ]
}  # fmt: skip
WHO: dict[str, Any] = {"user": "ann", "role": "user", "via": "session", "csrf": "5d2f...", "expires_at": _LATER}
METRICS = (
    "# HELP gpuyard_streams Streams of events and of logs now.\n# TYPE gpuyard_streams gauge\ngpuyard_streams 2.0\n"
)
ENDS = {"text/plain": "", "application/openmetrics-text": "# EOF\n"}
STREAM = 'id: 41\nevent: Placed\ndata: {"seq": 41, "kind": "Placed", "job": "17"}\n\n'

# -- requests -------------------------------------------------------------------------------------------

SUBMISSIONS: dict[str, Any] = {
    "one GPU": {"command": ["python", "train.py"], "directory": "/home/ann/project"},
    "two of three GPUs, with a limit": {
        "command": ["python", "train.py", "--epochs", "90"], "directory": "/home/ann/project",
        "environment": {"PATH": "/usr/bin:/bin", "HOME": "/home/ann"}, "name": "train", "tags": ["paper"],
        "gpus": 2, "from": [0, 1, 3], "time_limit": 14400, "estimate": 7200, "retries": 1,
    },
    "a share of a GPU": {"command": ["python", "eval.py"], "directory": "/home/ann", "gpu_memory": 6442450944},
    "an array": {"command": ["python", "sweep.py"], "directory": "/home/ann", "array": "0-9%2", "preemptible": True},
}  # fmt: skip
BATCHES: dict[str, Any] = {
    "one after the other": {
        "jobs": [
            {"command": ["python", "prepare.py"], "directory": "/home/ann"},
            {"command": ["python", "train.py"], "directory": "/home/ann", "dependency": "afterok:@0"},
        ],
        "environment": {"PATH": "/usr/bin:/bin"},
    }
}  # fmt: skip
CHANGES: dict[str, Any] = {"more urgent": {"priority": 5}, "no time limit": {"time_limit": None}}
CANCELLATIONS: dict[str, Any] = {"at once": {"grace": 0}, "as it wants": {}}
COPIES: dict[str, Any] = {"as it was": {}, "with more time": {"time_limit": 28800, "name": "again"}}
LEASE_WISHES: dict[str, Any] = {
    "any GPU": {}, "one of two": {"gpus": 1, "from": [0, 1], "time_limit": 3600}, "from afar": {"heartbeat": 60},
}  # fmt: skip
STANDING: dict[str, Any] = {
    "id": "19", "state": "running", "gpus": [0], "reason": "a lease, held from afar by a sign of life every 1m 00s",
}  # fmt: skip
DRAINS: dict[str, Any] = {"two of them": {"gpus": [2, 3], "reason": "new fans"}, "all": {}}
RESUMES: dict[str, Any] = {"two of them": {"gpus": [2, 3]}, "all": {}}
RESERVATION_WISHES: dict[str, Any] = {
    "for a demo": {"gpus": [0, 1], "begin": 4102444800, "end": 4102452000, "name": "demo", "users": ["ann"]}
}
QUOTAS: dict[str, Any] = {"four at once": {"gpus": 4}, "no more by the week": {"gpu_hours": 0}}
SHARES: dict[str, Any] = {"twice as much": {"weight": 2}}
POLICY_CHOICES: dict[str, Any] = {
    "by name": {"policy": "sjf"}, "with all that can be said": {"policy": "priority:ageing=2@easy@pack"},
}  # fmt: skip
REPORTS: dict[str, Any] = {"a third": {"done": 30, "total": 90}}
SUBSCRIPTION_WISHES: dict[str, Any] = {
    "a webhook": {"url": "json://127.0.0.1:9/hook", "events": ["finish", "failure"], "name": "hook"}
}
TOKEN_WISHES: dict[str, Any] = {"for a laptop": {"label": "laptop", "expires": 7776000}, "to look": {"role": "viewer"}}
LOGINS: dict[str, Any] = {"with a token": {"token": "gy_k3x9_..."}}
