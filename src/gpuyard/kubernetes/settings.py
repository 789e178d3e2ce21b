"""Settings of the scheduler: options, and the file for the longer ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from gpuyard.core.model import Quota
from gpuyard.errors import UserError, suggest
from gpuyard.kubernetes import names
from gpuyard.kubernetes.cluster.quantity import memory
from gpuyard.units import parse_duration, parse_size

ADMISSIONS = ("requests", "usage")
_BUFFER = 512.0 * 2**20
_MARGIN = 10.0


@dataclass(frozen=True)
class Settings:
    scheduler: str = names.SCHEDULER
    policy: str = "multifactor"
    discipline: str = "easy"
    placement: str = "pack"
    force_policy: bool = False
    admission: str = "requests"
    prometheus: str = ""
    gpu_memory: float = 0.0  # bytes of GPUs that do not declare their memory; 0: such GPUs are not shared
    gpu_buffer: float | None = None  # bytes of each GPU that shares leave free; None: 512Mi if usage counts, else 0
    memory_margin: float = 0.05
    default_duration: float = 3600.0
    durations: tuple[tuple[str, float], ...] = ()  # run times by pattern of name or workload; the first match counts
    half_life: float = 86400.0
    shares: tuple[tuple[str, float], ...] = ()
    quotas: tuple[tuple[str, Quota], ...] = ()
    preemption: bool = True
    dry_run: bool = False
    shadow: bool = False
    elect: bool = True
    namespace: str = "gpuyard-system"
    identity: str = ""
    listen: str = "127.0.0.1:10260"
    resync: float = 300.0  # seconds after which everything is listed again
    lease: float = 8.0  # seconds after which a leader that gives no sign of life is one no longer

    def __post_init__(self) -> None:
        if self.admission not in ADMISSIONS:
            raise UserError(f"admission is requests or usage, not '{self.admission}'")
        if self.admission == "usage" and not self.prometheus:
            raise UserError("admission by usage needs to know usage: say where Prometheus is with --prometheus URL")
        for name in ("default_duration", "half_life", "resync", "lease"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name.replace('_', '-')} must be a time above 0, not {getattr(self, name):g}")
        if not 0 <= self.memory_margin <= _MARGIN:
            raise UserError(f"memory-margin is a part of what is used, 0 to {_MARGIN:g}, not {self.memory_margin:g}")
        if (bad := next((name for name, share in self.shares if not 0 < share < math.inf), None)) is not None:
            raise UserError(f"shares: that of namespace {bad} must be a number above 0")

    @property
    def buffer(self) -> float:
        """Bytes of each GPU that shares leave free."""
        if self.gpu_buffer is not None:
            return self.gpu_buffer
        return _BUFFER if self.admission == "usage" else 0.0

    @property
    def silent(self) -> bool:
        return self.dry_run or self.shadow

    def duration_of(self, name: str, workload: str) -> float | None:
        """Seconds that a pod of this name runs, by the patterns; None without a match."""
        for pattern, seconds in self.durations:
            if fnmatchcase(name, pattern) or (workload and fnmatchcase(workload, pattern)):
                return seconds
        return None


def _seconds(value: Any) -> float:
    return parse_duration(str(value))


def _quota(value: Any) -> Quota:
    if isinstance(value, Mapping):
        return Quota(int(value.get("gpus", 0)), float(value.get("gpu-hours", 0)))
    return Quota(int(value))


_KEYS: dict[str, Any] = {
    "scheduler-name": ("scheduler", str),
    "policy": ("policy", str),
    "discipline": ("discipline", str),
    "placement": ("placement", str),
    "admission": ("admission", str),
    "prometheus": ("prometheus", str),
    "gpu-memory": ("gpu_memory", memory),
    "gpu-buffer": ("gpu_buffer", lambda value: parse_size(str(value))),
    "memory-margin": ("memory_margin", float),
    "default-duration": ("default_duration", _seconds),
    "durations": ("durations", lambda rows: tuple((str(k), _seconds(v)) for k, v in rows.items())),
    "half-life": ("half_life", _seconds),
    "shares": ("shares", lambda rows: tuple((str(k), float(v)) for k, v in rows.items())),
    "quotas": ("quotas", lambda rows: tuple((str(k), _quota(v)) for k, v in rows.items())),
    "preemption": ("preemption", bool),
    "resync": ("resync", _seconds),
    "lease": ("lease", _seconds),
}


def read_file(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold settings, as in 'policy: sjf'")
    settings = dict[str, Any]()
    for key, value in found.items():
        if key not in _KEYS:
            raise UserError(f"{path}: there is no setting '{key}'{suggest(str(key), _KEYS)}")
        name, read = _KEYS[key]
        try:
            settings[name] = read(value)
        except (ValueError, TypeError, AttributeError, UserError) as error:
            raise UserError(f"{path}: {key}: {error}") from None
    return settings


def settings_of(file: Path | None, **options: Any) -> Settings:
    known = read_file(file) if file is not None else {}
    return replace(Settings(), **known | {name: value for name, value in options.items() if value is not None})
