"""What a viewer chose to simulate: as a URL, as a command line, and as a request."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from gpuyard.errors import UserError
from gpuyard.units import parse_size

SOURCES = {
    "history": "This yard's history",
    "workload": "A made-up workload",
    "upload": "A trace of yours",
    "file": "A trace on the server",
}
KINDS = {"poisson": "A busy cluster: Poisson arrivals, log-normal run times", "tasks": "Training tasks that share GPUs"}
SPANS = {"1": "the last day", "7": "the last 7 days", "30": "the last 30 days", "90": "the last 90 days", "0": "all"}
FORMATS = (
    "swf", "philly", "philly-json", "helios", "openb", "pai", "sacct", "gavel", "pollux", "tiresias", "gpuyard",
    "jsonl", "batsim",
)  # fmt: skip
"""Trace formats to choose from where detection fails."""
MOST_JOBS = 1_000_000
MOST_GPUS = 100_000
MOST_POLICIES = 24
_NODES = re.compile(r"(\d{1,6})x(\d{1,6})(,(\d{1,6})x(\d{1,6})){0,20}")
_POLICY = re.compile(r"([a-z0-9_-]+)(:[a-z_]+=[^@\s]+)?(@[a-z-]+(@[a-z-]+)?)?")
_ESTIMATE = re.compile(r"actual|requested|noisy:\d{1,3}(\.\d{1,6})?")
_LIMIT = 600.0  # seconds that a comparison may take; finished policies are shown


@dataclass(frozen=True, slots=True)
class Choices:
    """What is simulated, on what, and how; a URL omits values that equal the defaults."""

    source: str = "history"
    days: str = "30"
    whose: str = ""  # empty: jobs of all users
    kind: str = "poisson"
    jobs: str = "1000"
    load: str = "0.9"
    upload: str = ""
    file: str = ""
    name: str = ""  # name of the uploaded file
    format: str = ""
    policies: tuple[str, ...] = ()
    gpus: str = "8"
    memory: str = "16G"
    discipline: str = ""
    placement: str = ""
    estimate: str = ""
    seed: str = "0"

    def problems(self, known: Mapping[str, Any]) -> dict[str, str]:
        """Error by field; `known` is the API's list of policies."""
        found = {
            "jobs": _whole(self.jobs, 1, MOST_JOBS) if self.source == "workload" and self._wants_jobs else "",
            "load": _number(self.load) if self.source == "workload" and self.kind == "poisson" else "",
            "upload": "Choose a file first." if self.source == "upload" and not self.upload else "",
            "file": "Choose one of the files." if self.source == "file" and not self.file else "",
            "gpus": _gpus(self.gpus),
            "memory": _memory(self.memory),
            "estimate": "" if not self.estimate or _ESTIMATE.fullmatch(self.estimate) else "Write actual or noisy:0.5.",
            "seed": _whole(self.seed, 0, 2**31),
            "policies": _policies(self.policies, known),
        }
        return {name: problem for name, problem in found.items() if problem}

    @property
    def _wants_jobs(self) -> bool:
        return self.kind == "poisson" or bool(self.jobs.strip())

    @classmethod
    def of_query(cls, query: Any, usual: Choices) -> Choices:
        given: dict[str, Any] = {f.name: query[f.name][:200] for f in fields(cls) if f.name in query}
        if "policies" in query:
            given["policies"] = tuple(text[:200] for text in query.getlist("policies") if text)[:MOST_POLICIES]
        for name, values in (("source", SOURCES), ("kind", KINDS), ("days", SPANS)):
            if given.get(name) not in values:
                given.pop(name, None)
        return replace(usual, **given)

    def query(self, usual: Choices) -> str:
        said: list[tuple[str, str]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != getattr(usual, field.name):
                said += [(field.name, text) for text in (value if isinstance(value, tuple) else (value,))]
        return urlencode(said)

    @property
    def since(self) -> date | None:
        return datetime.now(UTC).date() - timedelta(days=int(self.days)) if int(self.days or 0) else None

    def commands(self) -> list[str]:
        made = []
        options: list[str] = []
        trace = self.file or self.name or "TRACE"
        if self.source == "history":
            trace = "history"
            options += ["--since", self.since.isoformat()] if self.since else []
            options += ["--where", f"user={self.whose}"] if self.whose else []
        elif self.source == "workload":
            trace = "jobs.csv"
            made = [shlex.join(["gpuyard", "workload", "generate", *self._workload_options(), "--out", trace])]
        elif self.format:
            options += ["--format", self.format]
        options += ["--policies", ",".join(self.policies) if self.policies else "NONE"]
        options += ["--nodes" if "x" in self.gpus else "--gpus", self.gpus.strip()]
        for name in ("discipline", "placement", "estimate"):
            options += [f"--{name}", getattr(self, name)] if getattr(self, name) else []
        options += ["--gpu-memory", self.memory.strip()] if self.memory.strip() != "16G" else []
        options += ["--seed", self.seed.strip()] if self.seed.strip() != "0" else []
        return [*made, shlex.join(["gpuyard", "compare", trace, *options])]

    def _workload_options(self) -> list[str]:
        options = ["--kind", self.kind, "--seed", self.seed.strip()]
        options += ["--jobs", self.jobs.strip()] if self.jobs.strip() else []
        if self.kind == "poisson":
            return [*options, "--gpus", str(gpu_count(self.gpus)), "--load", self.load.strip()]
        return [*options, "--gpu-memory", self.memory.strip()]

    def request(self) -> dict[str, Any]:
        """The request for the process; only valid without problems."""
        setup: dict[str, Any] = {
            "gpu_memory": self.memory.strip(),
            "seed": int(self.seed),
            "nodes" if "x" in self.gpus else "gpus": self.gpus.strip() if "x" in self.gpus else int(self.gpus),
        }
        setup |= {n: getattr(self, n) for n in ("discipline", "placement", "estimate") if getattr(self, n)}
        if self.source in ("upload", "file") and self.format:
            setup["format"] = self.format
        found: dict[str, Any] = {"policies": list(self.policies), "setup": setup, "limit": _LIMIT}
        if self.source == "workload":
            found["workload"] = {
                "kind": self.kind, "seed": int(self.seed), "jobs": int(self.jobs) if self.jobs.strip() else None,
                "gpus": gpu_count(self.gpus), "load": float(self.load or 0), "gpu_memory": parse_size(self.memory),
            }  # fmt: skip
        return found

    def title(self) -> str:
        where = f"on {self.gpus.strip()} GPU{'s' * (self.gpus.strip() != '1')}"
        if self.source == "history":
            whose = f"{self.whose}'s jobs" if self.whose else "everybody's jobs"
            return f"History, {whose}, {SPANS[self.days]}, {where}"
        if self.source == "workload":
            jobs = f"{self.jobs.strip()} job{'s' * (self.jobs.strip() != '1')}" if self.jobs.strip() else "jobs"
            return f"{jobs} made up ({self.kind}, seed {self.seed.strip()}), {where}"
        return f"{self.file or self.name}, {where}"


def gpu_count(text: str) -> int:
    """GPUs in `8` or `4x8,2x4`."""
    parts = (part.partition("x") for part in text.strip().split(","))
    return sum(int(many) * int(each or 1) for many, _, each in parts)


def split_policies(text: str) -> tuple[str, ...]:
    """Split at spaces, or at commas that are not part of settings."""
    found: list[str] = []
    for word in text.split():
        for number, part in enumerate(filter(None, word.split(","))):
            if number and "=" in part and ":" not in part:
                found[-1] += f",{part}"
            else:
                found.append(part)
    return tuple(dict.fromkeys(found))


def _whole(text: str, low: int, high: int) -> str:
    fine = text.strip().isdecimal() and low <= int(text) <= high
    return "" if fine else f"A whole number from {low:,} to {high:,}."


def _number(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    return "" if 0 < value <= 100 else "A number above 0, such as 0.9: 1 is as much work as the GPUs can do."


def _gpus(text: str) -> str:
    text = text.strip()
    if not (text.isdecimal() and len(text) < 10) and not _NODES.fullmatch(text):
        return "A number, as in 8, or nodes, as in 4x8 or 4x8,2x4."
    return "" if 1 <= gpu_count(text) <= MOST_GPUS else f"1 to {MOST_GPUS:,} GPUs."


def _memory(text: str) -> str:
    try:
        return "" if parse_size(text) >= 2**20 else "At least 1M; write for example 24G."
    except UserError:
        return "A size, such as 24G."


def _policies(names: tuple[str, ...], known: Mapping[str, Any]) -> str:
    """The first error; the simulating process checks settings."""
    if not names:
        return "Choose at least one policy."
    if len(names) > MOST_POLICIES:
        return f"Choose {MOST_POLICIES} at most."
    there = {policy["name"] for policy in known["policies"]} | set(known["aliases"])
    for name in names:
        found = _POLICY.fullmatch(name)
        if found is None or found[1] not in there:
            return f"There is no policy {name}; write NAME, NAME:SETTING=VALUE or NAME@DISCIPLINE@PLACEMENT."
    return ""
