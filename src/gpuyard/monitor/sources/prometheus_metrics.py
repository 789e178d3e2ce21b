"""Metric names and units in Prometheus, by exporter, and the GPU that labels identify."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuyard.recordings.series import Floats

Labels = Mapping[str, str]
MIB = float(2**20)
_NEW, _OLD, _OWN = 0, 1, 2


class Name(NamedTuple):
    name: str
    metric: str
    factor: float = 1.0
    """What a value is multiplied by to be in our unit."""
    rank: int = _NEW
    """0 is asked first: `DCGM_FI_DEV_*`, then `dcgm_*`, then gpuyard's own."""


TOTAL = "memory_total"
"""No metric of a recording: gpuyard exports it in place of what is free."""
NAMES = (
    Name("DCGM_FI_DEV_GPU_UTIL", "utilization"),
    Name("DCGM_FI_DEV_MEM_COPY_UTIL", "memcopy"),
    Name("DCGM_FI_DEV_POWER_USAGE", "power"),
    Name("DCGM_FI_DEV_GPU_TEMP", "temperature"),
    Name("DCGM_FI_DEV_FB_USED", "memory_used", MIB),
    Name("DCGM_FI_DEV_FB_FREE", "memory_free", MIB),
    Name("DCGM_FI_DEV_SM_CLOCK", "sm_clock"),
    Name("DCGM_FI_DEV_MEM_CLOCK", "memory_clock"),
    Name("DCGM_FI_DEV_XID_ERRORS", "xid"),
    Name("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "throttle"),
    Name("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "throttle", rank=_OLD),
    Name("dcgm_gpu_utilization", "utilization", rank=_OLD),
    Name("dcgm_mem_copy_utilization", "memcopy", rank=_OLD),
    Name("dcgm_power_usage", "power", rank=_OLD),
    Name("dcgm_gpu_temp", "temperature", rank=_OLD),
    Name("dcgm_fb_used", "memory_used", MIB, _OLD),
    Name("dcgm_fb_free", "memory_free", MIB, _OLD),
    Name("dcgm_sm_clock", "sm_clock", rank=_OLD),
    Name("dcgm_memory_clock", "memory_clock", rank=_OLD),
    Name("dcgm_xid_errors", "xid", rank=_OLD),
    Name("gpuyard_gpu_utilization_ratio", "utilization", 100.0, _OWN),
    Name("gpuyard_gpu_memory_copy_ratio", "memcopy", 100.0, _OWN),
    Name("gpuyard_gpu_power_watts", "power", rank=_OWN),
    Name("gpuyard_gpu_temperature_celsius", "temperature", rank=_OWN),
    Name("gpuyard_gpu_memory_used_bytes", "memory_used", rank=_OWN),
    Name("gpuyard_gpu_memory_total_bytes", TOTAL, rank=_OWN),
    Name("gpuyard_gpu_sm_clock_hertz", "sm_clock", 1e-6, _OWN),
    Name("gpuyard_gpu_memory_clock_hertz", "memory_clock", 1e-6, _OWN),
    Name("gpuyard_gpu_throttle_reasons", "throttle", rank=_OWN),
    Name("gpuyard_gpu_xid_errors_total", "xid", rank=_OWN),
    Name("gpuyard_job_gpu_memory_bytes", "process_memory", rank=_OWN),
)
BY_NAME = {one.name: one for one in NAMES}
COUNTED = "gpuyard_gpu_xid_errors_total"
"""Counts errors, each number of them by itself, where DCGM tells the number of the latest."""
LEVELS = frozenset(("throttle", "xid"))
"""What has no mean: of a span the most is told."""
_BLANKS = ((0x7FFFFFF0, 0x7FFFFFF3), (2.0**47, 2.0**47 + 3), (float(0x7FFFFFFFFFFFFFF0), np.inf))
"""Numbers by which DCGM says that it does not know: of 32 bits, of 64 bits, and with a point."""


def names_for(metrics: Sequence[str]) -> list[Name]:
    """All names of some metrics, and of those that they follow from."""
    wanted = set(metrics)
    if "memory_free" in wanted:
        wanted |= {TOTAL, "memory_used"}
    return [one for one in NAMES if one.metric in wanted]


def numbers(texts: Sequence[str], name: Name) -> Floats:
    """Values as Prometheus writes them, in our unit; NaN: no number, or not known to DCGM."""
    values = np.array([float(text) for text in texts], dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    if name.rank != _OWN:
        for least, most in _BLANKS:
            values[(values >= least) & (values <= most)] = np.nan
    return values * name.factor


class Whose(NamedTuple):
    """The GPU that a series is about, or the job on it, as its labels say."""

    key: str
    """The same for all series of one GPU, whoever exports them and whatever pod it is in."""
    gpu: int
    uuid: str
    name: str
    host: str
    instance: str
    job: str
    """Of a series about one job; empty for those about a GPU."""
    hpc_job: str
    """The job for whom the GPU works, by what dcgm-exporter was told."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Which GPU of which machine, by which exporter: one may export several machines."""
        return self.host, self.instance, self.gpu


def whose(labels: Labels) -> Whose | None:
    """The subject of labels; None if they name no GPU."""
    index = re.search(r"\d+$", labels.get("gpu") or labels.get("device") or labels.get("minor_number") or "")
    if index is None:
        return None
    instance = labels.get("instance", "")
    host = _first(labels, "Hostname", "hostname", "node", "kubernetes_node") or re.sub(r":\d+$", "", instance)
    uuid, name = _first(labels, "UUID", "uuid"), _first(labels, "modelName", "name")
    if labels.get("GPU_I_ID"):  # a MIG device, which counts as a GPU of its own
        uuid = f"{uuid}/{labels['GPU_I_ID']}"
        name = f"{name} MIG {labels.get('GPU_I_PROFILE', '')}".strip()
    job = ""
    if labels.get("__name__", "").startswith("gpuyard_job_"):
        job = _first(labels, "exported_job", "job")  # Prometheus renames what it has a label of its own for
    unique = uuid and not uuid.startswith("SIMULATED-")
    key = uuid if unique else f"{instance or host} {index[0]} {uuid}".strip()
    return Whose(f"{key} {job}".strip(), int(index[0]), uuid, name, host, instance, job, labels.get("hpc_job", ""))


def _first(labels: Labels, *names: str) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
