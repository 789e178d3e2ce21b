"""What an experiment's file says of a cluster: below `kubernetes`, of the whole, of schedulers and of workloads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.errors import UserError
from gpuyard.experiments import keys
from gpuyard.experiments.keys import Keys
from gpuyard.experiments.model import Experiment
from gpuyard.kubernetes import names

KINDS = ("job", "pod")
ASKED = (names.GPU_MEMORY, names.SEED_MEMORY, names.ALIYUN_MEMORY)
"""How a pod can say how much memory of a GPU it wants."""
PLACEHOLDERS = ("name", "seconds", "overhead", "ramp", "memory", "utilization")
"""What can stand in braces in labels and annotations of a workload; all but the name are of its behaviour."""
_RESTARTS = ("OnFailure", "Never")
_LONGEST = 50
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What goes for all pods."""

    namespace: str = ""
    """Empty: that of the kubeconfig's context."""
    kind: str = "job"
    """`pod` where nobody runs the controller that makes pods of jobs."""
    backoff_limit: int = 20
    restart_policy: str = "OnFailure"
    host_ipc: bool = False
    gpu_memory: float = 0.0
    """Bytes of a GPU, which nobody asks for more than; 0: what the nodes say."""
    prometheus: str = ""
    speed: float = 1.0
    """How many times as fast as the file says jobs come, and are said to run."""
    pause: float = 5.0
    """Seconds between the end of a run and the beginning of the next."""
    limit: float | None = None
    """Seconds after which a run is given up; None: never."""
    forget: bool = True
    """Whether what the scheduler learned of pods in one run is not to count in the next."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How the pods of one scheduler ask for GPUs, and whom."""

    scheduler_name: str = names.SCHEDULER
    ask: str = names.GPU_MEMORY
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    """What is merged into its pods as it is."""


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """What the pods of one workload are."""

    container: str
    args: tuple[str, ...] = ()
    memory_gib: int = 0
    """Whole GiB of `aliyun.com/gpu-mem`, before over-provisioning; 0: what `gpu_memory` comes to."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it."""

    cluster: ClusterSettings
    schedulers: Mapping[str, SchedulerSettings]
    workloads: Mapping[str, WorkloadSettings]


def read_settings(experiment: Experiment, file: Path) -> Settings:
    """What an experiment says of clusters; a `UserError` tells the place of a mistake in the file."""
    schedulers = {
        one.name: _scheduler(Keys(one.kubernetes, file, f"schedulers[{number}].kubernetes"))
        for number, one in enumerate(experiment.schedulers, 1)
    }
    workloads = {}
    for number, one in enumerate(experiment.workloads, 1):
        place = f"workloads[{number}]"
        if len(one.name) > _LONGEST:
            raise UserError(f"{file}: {place}.name: on a cluster it has at most {_LONGEST} letters, for it is a label")
        if not one.image:
            raise UserError(
                f"{file}: {place}: on a cluster it needs an image, as in: image: nvcr.io/nvidia/cuda:12.4.0"
            )
        workloads[one.name] = _workload(Keys(one.kubernetes, file, f"{place}.kubernetes"), one.name)
        if one.behaviour is None:
            _check_braces(workloads[one.name], ("name",), f"{file}: {place}: it has no behaviour")
    return Settings(_cluster(Keys(experiment.kubernetes, file, "kubernetes")), schedulers, workloads)


def _cluster(given: Keys) -> ClusterSettings:
    found = ClusterSettings(
        namespace=given.take("namespace", _dns, ""),
        kind=given.take("kind", keys.one_of(KINDS), "job"),
        backoff_limit=given.take("backoff_limit", keys.whole(0, 10**6), 20),
        restart_policy=given.take("restart_policy", keys.one_of(_RESTARTS), "OnFailure"),
        host_ipc=given.take("host_ipc", keys.switch, False),
        gpu_memory=given.take("gpu_memory", keys.size, 0.0),
        prometheus=given.take("prometheus", keys.text, ""),
        speed=given.take("speed", speed, 1.0),
        pause=given.take("pause", keys.duration, 5.0),
        limit=given.take("limit", keys.above_zero, None),
        forget=given.take("forget", keys.switch, True),
    )
    given.done()
    return found


def _scheduler(given: Keys) -> SchedulerSettings:
    found = SchedulerSettings(
        scheduler_name=given.take("scheduler_name", keys.text, names.SCHEDULER),
        ask=given.take("ask", keys.one_of(ASKED), names.GPU_MEMORY),
        labels=given.take("labels", keys.table(keys.text, _word), {}),
        annotations=given.take("annotations", keys.table(keys.text, _word), {}),
        pod=given.take("pod", keys.as_it_is, {}),
    )
    given.done()
    return found


def _workload(given: Keys, name: str) -> WorkloadSettings:
    found = WorkloadSettings(
        container=given.take("container", _dns, dns_name(name, 63)),
        args=given.take("args", keys.words, ()),
        memory_gib=given.take("memory_gib", keys.whole(0, 10**6), 0),
        labels=given.take("labels", keys.table(keys.text, _word), {}),
        annotations=given.take("annotations", keys.table(keys.text, _word), {}),
        pod=given.take("pod", keys.as_it_is, {}),
    )
    given.done()
    _check_braces(found, PLACEHOLDERS, str(given.error("", "")).rstrip(": "))
    return found


def _check_braces(found: WorkloadSettings, known: tuple[str, ...], place: str) -> None:
    """Refuse `{secnods}` in what is filled in for each pod."""
    for text in (*found.labels.values(), *found.annotations.values()):
        for name in _BRACES.findall(text):
            if name not in known:
                raise UserError(f"{place}: '{{{name}}}' cannot be filled in; there are {', '.join(known)}")


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """A text with what stands in braces filled in."""
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)


def speed(value: Any) -> float:
    """A number above 0."""
    if not 0 < (found := keys.number(value)) <= 10_000:
        raise UserError(f"a number above 0 is expected, as in 20, not {keys.shown(value)}")
    return found


def dns_name(text: str, longest: int) -> str:
    """A text as Kubernetes takes it for a name: small letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].strip("-")
    return plain or "x"


def _dns(value: Any) -> str:
    if not _DNS.fullmatch(found := keys.text(value)):
        raise UserError(f"'{found}' is no name of Kubernetes: take small letters, digits and dashes")
    return found


def _word(value: Any) -> str:
    """A value of a label or an annotation: Kubernetes wants texts, and `true` and `20` are meant as such."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else keys.text(value)
