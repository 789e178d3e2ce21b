"""Examples of what the API takes and gives. The tests hold them to the schemas, and send those that are requests."""

from __future__ import annotations

from typing import Any

from gpuyard.server.responses import stored_fields

_AT = "2026-11-16T09:30:00.000+01:00"
_LATER = "2026-11-16T11:00:00.000+01:00"

JOB: dict[str, Any] = {
    **stored_fields({}), "id": "17", "name": "train", "user": "ann", "state": "queued",
    "reason": "waits for 2 GPUs: 1 is free", "attempt": 0, "gpus": [], "exit_code": None, "submitted_at": _AT,
    "started_at": None, "ended_at": None, "expected_end_at": None, "gpu_count": 2, "gpu_memory": None, "priority": 0.0,
    "command": ["python", "train.py"], "directory": "/home/ann/project", "tags": ["paper"], "estimate": 7200.0,
    "time_limit": 14400.0, "message": None, "array": None, "task": None, "begin_at": None, "deadline_at": None,
    "dependency": None, "failures": 0, "output": None, "error": None, "among": None, "preemptible": False,
    "preemptions": 0, "granted": [], "notify": [], "gpu_memory_asked": None, "measured": None, "energy_wh": None,
    "gpu_hours": 0.0, "prediction": None, "admission": None, "ooms": 0, "oom_retries": 3, "alone": True,
    "batch": None, "row": None, "kind": "job", "progress": None,
}  # fmt: skip
BATCH: dict[str, Any] = {
    "batch": "20", "name": "commands.csv", "user": "ann", "state": "open", "rows": 50,
    "states": {"succeeded": 20, "running": 4, "queued": 25}, "refused": 1, "submitted_at": _AT, "ended_at": None,
}  # fmt: skip
BATCH_STANDING: dict[str, Any] = {
    **BATCH, "wave": 2, "waves": 3, "running": [],
    "ended": [
        {
            "id": "20", "row": 3, "wave": 1, "name": "train.py", "state": "succeeded", "reason": None, "exit_code": 0,
            "attempt": 1, "gpus": [0], "started_at": _AT, "ended_at": _LATER, "seconds": 5400.0,
            "gpu_memory": 1999634432, "peak": 1907359744, "ooms": 0,
        }
    ],
    "refusals": [{"row": 7, "reason": "this job can never run here: it wants 20G of a GPU, the largest has 16G"}],
}  # fmt: skip
BATCH_REPORT: dict[str, Any] = {
    "batch": "20", "name": "commands.csv", "state": "over", "rows": 50, "succeeded": 48, "failed": 1, "refused": 1,
    "waves": [{"wave": 1, "rows": 20, "started_at": _AT, "ended_at": _LATER}], "makespan": 5400.0,
    "sequential": 16200.0, "speedup": 3.0, "gpu_hours": 1.5, "gpu_hours_sequential": 4.5, "gpu_hours_saved": 3.0,
    "most_at_once": 4, "ooms": 0, "retries": 0, "profiles": 2,
    "evidence": "12 rows by runs alone on their GPUs, 37 as they ran here",
}  # fmt: skip
LEASE: dict[str, Any] = {
    **JOB, "id": "19", "name": "python", "state": "running", "reason": "a lease, held by process 4242", "attempt": 1,
    "gpus": [1], "started_at": _AT, "gpu_count": 1, "command": [], "directory": "", "tags": [], "kind": "lease",
    "pid": 4242,
}  # fmt: skip
_OVER = {**JOB, "state": "succeeded", "reason": None, "attempt": 1, "gpus": [0, 1], "exit_code": 0,
         "started_at": _AT, "ended_at": _LATER, "measured": {
             "peak": 2041577472, "mean": 1907359744.0, "samples": 5400, "period": 1.0, "seconds": 5400.0,
             "utilization": 87.5, "alone": True, "settled": 5310.0, "energy_wh": 712.4, "gpu_seconds": 10800.0},
         "energy_wh": 712.4, "gpu_hours": 3.0}  # fmt: skip
_COUNTS: dict[str, Any] = {"total": 1234, "rows": 1234, "states": {"running": 8, "queued": 1226}}
JOBS: dict[str, Any] = {**_COUNTS, "jobs": [JOB], "next": "/api/v1/jobs?limit=1&offset=1"}
LEASES: dict[str, Any] = {"total": 1, "rows": 1, "states": {"running": 1}, "jobs": [LEASE], "next": None}
ENDED: dict[str, Any] = {"jobs": [_OVER], "next": "/api/v1/history?limit=1&cursor=0x1.abcp%2B30_17"}
EXPLANATION: dict[str, Any] = {
    "id": "17", "state": "queued", "reason": "waits for 2 GPUs: 1 is free", "code": "Resources",
    "details": {"gpus": 2, "idle": 1}, "expected_at": _LATER, "ahead": ["15"],
    "must_end_first": [{"id": "12", "name": "eval", "user": "bob", "gpus": [0], "expected_at": _LATER}], "gpus": [],
}  # fmt: skip
_ERROR: dict[str, Any] = {"count": 12, "median": 0.03, "worst": -0.04, "bias": 0.021}
ESTIMATES: dict[str, Any] = {
    "estimates": [
        {
            "signature": "5b0c1d9e2f7a4c31", "command": "python train.py --batch-size=64 epochs=#", "name": "train",
            "user": "ann", "runs": 14, "memory": 2103443456.0, "seconds": 61.5, "per_epoch": True,
            "evidence": "p95 of 14 runs: 1,947 MiB + 3 %", "memory_error": _ERROR, "time_error": None,
            "last_at": _LATER,
        }
    ]
}  # fmt: skip
EXPECTATION: dict[str, Any] = {
    "signature": "5b0c1d9e2f7a4c31", "command": "python train.py --batch-size=64 epochs=#", "memory": 2103443456.0,
    "seconds": 307.5, "evidence": "p95 of 14 runs: 1,947 MiB + 3 %",
    "runs": [
        {
            "job": "17", "attempt": 1, "outcome": "succeeded", "peak": 2041577472, "seconds": 301.2, "alone": False,
            "predicted_peak": 2103443456.0, "predicted_seconds": 307.5, "ended_at": _LATER,
        }
    ],
}  # fmt: skip
GUESSES: dict[str, Any] = {
    "a command": {"command": ["python", "train.py", "--epochs", "5"], "directory": "/home/ann/project"},
}
EVENTS: dict[str, Any] = {
    "events": [{"seq": 41, "at": _AT, "kind": "Placed", "job": "17", "attempt": 1, "gpus": [0, 1]}], "last": 41,
}  # fmt: skip
GPU: dict[str, Any] = {
    "index": 1, "uuid": "GPU-5c1d4a4e", "name": "NVIDIA A100", "state": "ours", "memory_total": 42949672960,
    "memory_used": 21474836480, "utilization": 87.0, "jobs": ["19"], "temperature": 61.0, "power": 240.5,
    "why": "a job of ours is placed here", "processes": [
        {"pid": 4711, "user": "ann", "name": "python", "memory": 21474836480, "job": "19", "graphics": False}
    ], "simulated": False, "drained": False, "reservation": None,
    "reserved_from": None, "reserved_until": None, "memory_promised": 21474836480, "memory_buffer": 536870912,
    "memory_others": 0, "memory_left": 20937965568, "granted": None,
}  # fmt: skip
MACHINE: dict[str, Any] = {"simulated": False, "gpus": [GPU]}
SAMPLES: dict[str, Any] = {
    "period": 0.5, "at": [1794821400.0, 1794821400.5],
    "gpus": [
        {
            "index": 1, "utilization": [87, None], "memory_used": [21474836480, None], "temperature": [61, None],
            "power": [241, None],
        }
    ],
}  # fmt: skip
USAGE: dict[str, Any] = {
    "since": 1794735000.0, "until": 1794821400.0, "gpus": 4, "more": False,
    "columns": {
        "job": ["17", "12"], "name": ["train", "eval"], "user": ["ann", "bob"], "kind": ["job", "job"],
        "gpu": [[0, 1], [2]], "begin": [1794820000.0, 1794810000.0], "end": [None, 1794813600.0],
        "state": ["running", "succeeded"], "attempt": [1, 1],
    },
}  # fmt: skip
RECORDED: dict[str, Any] = {
    "from": _AT, "to": _LATER, "start": 1794821400.0, "end": 1794826800.0, "period": 60.0, "level": "minutes",
    "simulated": False,
    "gpus": [
        {
            "index": 1, "uuid": "GPU-5c1d4a4e", "name": "NVIDIA A100", "memory_total": 42949672960,
            "at": [1794821400.0, 1794821460.0],
            "metrics": {"power": {"mean": [240.5, None], "min": [212.0, None], "max": [251.0, None]}},
        }
    ],
    "jobs": [
        {
            "id": "19", "attempt": 1, "gpu": 1, "at": [1794821400.0],
            "metrics": {"process_memory": {"mean": [21474836480.0], "min": None, "max": None}},
        }
    ],
    "marks": [{"at": 1794821400.0, "until": 1794826800.0, "label": "job 19 (train)", "gpu": 1, "job": "19"}],
    "energy_wh": 360.7, "gpu_hours": 1.5, "warnings": [],
}  # fmt: skip
INTERFERENCE: dict[str, Any] = {
    "considered": True,
    "pairs": [
        {
            "sufferer": {"signature": "5b1f2c9e", "name": "train", "job": "17"},
            "beside": {"signature": "a90c44d1", "name": "eval", "job": "12"}, "slowdown": 2.4, "verdict": "apart",
            "evidence": "progress", "seconds": 184.0, "at": _AT,
        }
    ],
}  # fmt: skip
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
LEARNED: dict[str, Any] = {
    "file": "/srv/policies/week.json", "hash": "9f2b6c01d4aa", "base": "saf", "forced": False,
    "gate": {
        "passed": True, "ratio": 0.91, "ratio_low": 0.88, "ratio_high": 0.95, "mean_ratio": 0.93, "p99_ratio": 0.97,
        "best_heuristic": "saf", "reasons": [],
    },
    "plans": 5120, "fallbacks": {"not-a-number": 0, "unusual": 3, "late": 0}, "starved": 1,
}  # fmt: skip
POLICY: dict[str, Any] = {
    "policy": "multifactor@easy@pack", "name": "multifactor", "discipline": "easy", "placement": "pack", "since": _AT,
    "admission": "requests", "learned": None,
}  # fmt: skip
PREVIEW: dict[str, Any] = {
    "policy": "sjf@easy@pack", "starts": ["18"], "stops": [],
    "order": [
        {"id": "18", "name": "eval", "user": "bob", "place": 1, "was": 2},
        {"id": "17", "name": "train", "user": "ann", "place": 2, "was": 1},
    ],
    "moved": 2, "waiting": 2, "note": None,
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
    "policy": "learned:/srv/policies/week.json@easy@pack", "learned": LEARNED, "admission": "requests",
    "jobs": {"running": 1, "queued": 7, "succeeded": 950},
    "plan": {"last_ms": 0.4, "mean_ms": 0.3, "max_ms": 2.1}, "store": {"state": "ok", "problem": None},
    "page": {"url": "http://127.0.0.1:62333/", "pid": 813, "starts": 1, "state": "running"},
}  # fmt: skip
_TOOK: dict[str, Any] = {
    "count": 40, "mean": 610.5, "median": 300.0, "p90": 1800.0, "p99": 7200.0,
    "histogram": {"edges": [1.0, 60.0, 3600.0], "counts": [0, 4, 32, 4]},
}  # fmt: skip
STATS: dict[str, Any] = {
    "since": _AT, "until": _LATER, "gpus": 4, "submitted": 52, "ended": 40, "outcomes": {"succeeded": 38, "failed": 2},
    "gpu_hours": 71.5, "utilization": 0.74, "wait_seconds": _TOOK, "run_seconds": _TOOK,
    "users": [{"user": "ann", "gpu_hours": 71.5, "submitted": 52, "ended": 40, "energy_wh": 15730.0}],
    "tags": [{"tag": "paper", "gpu_hours": 12.5, "submitted": 8, "ended": 8}],
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
    "as much as it used before": {"command": ["python", "eval.py"], "directory": "/home/ann", "gpu_memory": "auto"},
    "an array": {"command": ["python", "sweep.py"], "directory": "/home/ann", "array": "0-9%2", "preemptible": True},
}  # fmt: skip
BATCHES: dict[str, Any] = {
    "one after the other": {
        "jobs": [
            {"command": ["python", "prepare.py"], "directory": "/home/ann"},
            {"command": ["python", "train.py"], "directory": "/home/ann", "dependency": "afterok:@0"},
        ],
        "environment": {"PATH": "/usr/bin:/bin"},
    },
    "rows of a file, in waves": {
        "jobs": [
            {
                "command": ["python", "train.py", "--epochs=5", "--id={id}"], "directory": "/home/ann", "own_id": True,
                "gpu_memory": 2147483648, "row": {"number": 1, "wave": 1, "epochs": 5, "priority": 1},
            }
        ],
        "batch": {"name": "commands.csv", "waves": True}, "skip_refused": True,
    },
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
    "a trained one, whatever its gate says": {"policy": "learned:/srv/policies/week.json", "force": True},
}  # fmt: skip
REPORTS: dict[str, Any] = {"a third": {"done": 30, "total": 90}}
ADAPTIVE_REPORTS: dict[str, Any] = {
    "how it does": {"step_seconds": 0.12, "gain_per_second": 0.00013, "noise": 0.00002, "parameters": 10602},
    "what it decided": {
        "decision": "grew at features.1", "reason": "expects +1.2 points; steps take 1.4 times as long",
        "accepted": True, "parameters_before": 10602, "parameters": 19914, "cost_ratio": 1.4, "predicted_gain": 0.012,
    },
}  # fmt: skip
GIVEN_BACK: dict[str, Any] = {"all of it": {}, "one of them": {"gpus": [1], "reason": "told to"}}
GRANT: dict[str, Any] = {
    "job": "3", "attempt": 1, "state": "running", "last": 57, "budget": 3600.0, "deadline": 1794825000.0, "grace": 10.0,
    "gpus": ["0", "1"], "indices": [0, 1], "granted": [1],
    "events": [
        {
            "number": 57, "kind": "up", "at": 1794821400.0, "budget": 3600.0, "deadline": 1794825000.0,
            "gpus": ["0", "1"], "indices": [0, 1], "grace": 10.0,
            "why": "nobody waits for it, and it gains 0.8 points per minute, more than job 5 (0.2)",
        }
    ],
}  # fmt: skip
ADAPTATION: dict[str, Any] = {
    "job": "3", "adaptive": True, "budget": 3600.0, "deadline": 1794825000.0, "grace": 10.0, "granted": [1],
    "grants": [
        {
            "gpu": 1, "since": 1794821400.0, "until": None,
            "why": "nobody waits for it, and it gains 0.8 points per minute, more than job 5 (0.2)",
        }
    ],
    "decisions": [
        {
            "at": 1794821401.5, "decision": "grew at features.1", "accepted": True, "parameters_before": 10602,
            "reason": "expects +1.2 points; steps take 1.4 times as long", "parameters": 19914, "cost_ratio": 1.4,
            "predicted_gain": 0.012,
        }
    ],
    "times": [{"at": 1794821500.0, "before": 1800.0, "after": 3600.0}],
    "report": {
        "at": 1794821520.0, "step_seconds": 0.17, "gain_per_second": 0.00005, "noise": None, "accuracy": 0.71,
        "parameters": 19914,
    },
    "standing": "has GPU 1 on loan, until somebody needs it",
}  # fmt: skip
SUBSCRIPTION_WISHES: dict[str, Any] = {
    "a webhook": {"url": "json://127.0.0.1:9/hook", "events": ["finish", "failure"], "name": "hook"}
}
TOKEN_WISHES: dict[str, Any] = {"for a laptop": {"label": "laptop", "expires": 7776000}, "to look": {"role": "viewer"}}
LOGINS: dict[str, Any] = {"with a token": {"token": "gy_k3x9_..."}}
