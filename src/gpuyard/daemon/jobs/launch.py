"""What the engine is told of an attempt: command, files, and variables for its share of memory, Slurm and grants."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpuyard.core.events import Placed
from gpuyard.daemon.jobs.loans import deadline_of
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.views import JobView, work_of
from gpuyard.engines.base import Client, LaunchRefused, Task
from gpuyard.errors import UserError
from gpuyard.spec.work import Work

_TORCH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # what torch has had one after the other for the same
_FRACTION = "per_process_memory_fraction"
_XLA = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")  # the same of XLA, which refuses to have both


def share_variables(work: Mapping[str, Any], environment: Mapping[str, str], size: float) -> dict[str, str]:
    """Variables for a job that shares GPUs of this size; what its user set stays."""
    share = work.get("gpu_memory")
    if not share or work.get("alone"):
        return {}
    found = {"GPUYARD_GPU_MEMORY": str(int(share)), "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if not any(name in environment for name in _XLA):  # else they say how much it is to take at once
        found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if work.get("cap") and size > 0:
        found |= _memory_cap(math.floor(min(1.0, share / size) * 10_000) / 10_000, environment)
    return {name: value for name, value in found.items() if name not in environment or name in _ALWAYS}


_ALWAYS = ("GPUYARD_GPU_MEMORY", *_TORCH)


def _memory_cap(fraction: float, environment: Mapping[str, str]) -> dict[str, str]:
    said = next((environment[name] for name in _TORCH if environment.get(name)), "")
    found = {}
    if _FRACTION not in said:
        found = dict.fromkeys(_TORCH, ",".join(filter(None, (said, f"{_FRACTION}:{fraction:g}"))))
    if not any(name in environment for name in _XLA):
        found[_XLA[0]] = f"{fraction:g}"
    return found


SHIMS = Path(__file__).parents[2] / "shims"
"""Small stand-ins for `srun` and others, for scripts that were written for Slurm."""
_STAND_INS = ("srun", "scontrol", "module", "sbatch", "scancel", "squeue")
_PATTERN = re.compile(r"%(\d*)([A-Za-z%])")
_PATH = "/usr/local/bin:/usr/bin:/bin"
BUDGET = frozenset(("GPUYARD_BUDGET", "GPUYARD_DEADLINE", "GPUYARD_ADAPTIVE", "GPUYARD_GRACE", "GPUYARD_CONTROL"))
"""What tells a job of its time, and of its grants."""
_FUNCTIONS = {f"BASH_FUNC_{name}%%": f'() {{  PATH="$PATH:{SHIMS}" command {name} "$@"; }}' for name in _STAND_INS}
"""The same for login shells of bash, which begin with a PATH of their own. Last there as well: a real Slurm wins."""


def task_of(
    view: JobView, placed: Placed, store: Store, node: str, user: str, size: float = 0.0, control: str = ""
) -> Task:
    """All that the engine has to know of an attempt, which runs as a user; as the daemon, if that is empty.

    Its smallest GPU has `size` bytes; `control` is where it finds the daemon.
    """
    work = work_of(view)
    stored = store.environment(work.environment)
    environment = {name: value for name, value in stored.items() if name not in BUDGET}  # of a job that submitted it
    output, error = (named(view.work, view, which, node) for which in ("output", "error"))
    return Task(
        placed.job,
        work.command,
        work.directory,
        environment,
        work.output_limit,
        work.umask,
        user,
        work.limits,
        variables={
            **share_variables(view.work, environment, size),
            **budget_variables(view, work, time.time(), control),
            **array_variables(view, work),
            **slurm_variables(view, work, placed, environment, node, control.removeprefix("unix:")),
        },
        script=_script(store, work.script) if work.script else None,
        output=output or "",
        error=error or "",
        append=work.open_mode == "append" or (not work.open_mode and placed.attempt > 1),
        mps=_client(view, work) if work.mps else None,
        attach=work.attach,
    )


def _client(view: JobView, work: Work) -> Client:
    share = 0.0 if view.work.get("alone") else view.work["gpu_memory"] or 0.0
    return Client(work.thread_percentage, share)


def _script(store: Store, key: str) -> bytes:
    try:
        return os.fsencode(store.script(key))
    except UserError as error:
        raise LaunchRefused(str(error)) from error


def named(work: Mapping[str, Any], view: JobView, which: str, node: str) -> str | None:
    """The file of a job's `output` or `error`, patterns filled in; None if the engine chooses it."""
    pattern = work.get(which)
    if not pattern:
        return None
    task = work.get("task")
    values = {
        "j": view.id, "J": view.id, "A": view.array or view.id, "a": str(task or 0), "x": view.name, "u": view.user,
        "N": node, "n": "0", "t": "0", "s": "batch", "%": "%",
    }  # fmt: skip

    def fill(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter not in values:
            return match[0]
        value = values[letter].replace("/", "_")
        return value.rjust(int(width), "0") if width and letter in "jJAant" else value

    return os.path.join(work.get("directory", "/"), _PATTERN.sub(fill, pattern))


def budget_variables(view: JobView, work: Work, now: float, control: str) -> dict[str, str]:
    """How long a job may run; if it adapts, also where it hears of changes."""
    deadline = deadline_of(now, work.time_limit, view.work.get("deadline"))
    limit = {} if work.time_limit is None else {"GPUYARD_BUDGET": f"{work.time_limit:.15g}"}
    until = {} if deadline is None else {"GPUYARD_DEADLINE": f"{deadline:.15g}"}
    if not work.adaptive:
        return {**limit, **until}
    grace = f"{work.grace:.15g}"
    return {**limit, **until, "GPUYARD_ADAPTIVE": "1", "GPUYARD_GRACE": grace, "GPUYARD_CONTROL": control}


def array_variables(view: JobView, work: Work, prefix: str = "GPUYARD") -> dict[str, str]:
    if work.task is None:
        return {}
    count, least, most = work.tasks or (1, work.task, work.task)
    return {
        f"{prefix}_ARRAY_JOB_ID": view.array,
        f"{prefix}_ARRAY_TASK_ID": str(work.task),
        f"{prefix}_ARRAY_TASK_COUNT": str(count),
        f"{prefix}_ARRAY_TASK_MIN": str(least),
        f"{prefix}_ARRAY_TASK_MAX": str(most),
    }


def slurm_variables(
    view: JobView, work: Work, placed: Placed, environment: Mapping[str, str], node: str, socket: str = ""
) -> dict[str, str]:
    """What Slurm would set, and what its stand-ins need; what the submitting side set stays."""
    if not work.slurm:
        return {}
    gpus, cpus = ",".join(map(str, placed.gpus)), str(cores())
    usual = {
        "SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_CPUS_PER_TASK": cpus, "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_SUBMIT_DIR": work.directory, "SLURM_SUBMIT_HOST": node, "SLURM_JOB_PARTITION": "gpuyard",
        "SLURM_CLUSTER_NAME": "gpuyard",
    }  # fmt: skip
    path = environment.get("PATH") or _PATH
    number = view.id if work.task is None else str(view.number)  # scripts count with it, so it is never 12_3
    return {
        **{name: value for name, value in usual.items() if name not in environment},
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": view.name,
        "SLURM_JOB_USER": view.user,
        "SLURM_GPUS": str(len(placed.gpus)),
        "SLURM_GPUS_ON_NODE": str(len(placed.gpus)),
        "SLURM_JOB_GPUS": gpus,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODELIST": node,
        "SLURM_JOB_NODELIST": node,
        "SLURMD_NODENAME": node,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_RESTART_COUNT": str(placed.attempt - 1),
        **array_variables(view, work, "SLURM"),
        "GPUYARD_PYTHON": sys.executable,
        "GPUYARD_SLURM_SOCKET": socket,
        "PATH": path if str(SHIMS) in path.split(":") else f"{path}:{SHIMS}",
        **{name: text for name, text in _FUNCTIONS.items() if name not in environment},
    }


@cache
def cores() -> int:
    return len(os.sched_getaffinity(0))
