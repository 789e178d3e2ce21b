"""`gpuyard adapt run`: one job, trained within its budget, in a folder that keeps all that came of it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuyard.adapt import ops
from gpuyard.adapt.budget import CAUTION, Budget
from gpuyard.adapt.building import Built, build
from gpuyard.adapt.deciders import make_decider
from gpuyard.adapt.events import Event, Listener
from gpuyard.adapt.files import write_whole
from gpuyard.adapt.jobfile import Job
from gpuyard.adapt.outcomes import Decides
from gpuyard.errors import UserError
from gpuyard.grants import Grants

RESULT, JOB, LOG, NETWORK = "result.json", "job.json", "log.jsonl", "network.pt"
_EXIT = 0.5
"""Seconds that a process of torch takes to end: in the queue that must be within its time, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a run."""

    folder: Path

    def check(self, job: Job, force: bool) -> None:
        """Refuse if it is somebody else's, or finished; what is to be replaced goes."""
        known = self.folder / JOB
        if force and known.exists():
            shutil.rmtree(self.folder)
        if (self.folder / RESULT).exists():
            raise UserError(f"{self.folder} holds a finished run; name another --out, or replace it with --force")
        if self.folder.exists() and any(self.folder.iterdir()) and not known.exists():
            raise UserError(f"{self.folder} holds something else; name another --out")
        if known.exists() and json.loads(known.read_text()).get("hash") != job.hash:
            raise UserError(f"{self.folder} holds a run of other settings; name another --out, or use --force")

    def build(self, job: Job, decider: Decides, budget: Budget, callbacks: list[Listener]) -> Built:
        """A trainer that goes on with what was begun there, if anything was; nothing is left of a job that is none."""
        fresh, log = not self.folder.exists(), self.folder / LOG
        checkpoints = self.folder / "checkpoints"
        if log.exists() and not any(checkpoints.glob("*")):
            log.unlink()  # it ended before anything could be kept
        try:
            built = build(job, decider, budget, checkpoints=checkpoints, log=log, callbacks=callbacks)
        except BaseException:
            if fresh and self.folder.exists():
                shutil.rmtree(self.folder)
            raise
        write_whole(self.folder / JOB, json.dumps({**job.facts(), "hash": job.hash}, indent=1).encode())
        return built


def run(job: Job, folder: Path, *, force: bool = False, say: Listener | None = None) -> dict[str, Any]:
    """Train a job to the end of its budget, or on from where it was interrupted; what came of it."""
    place = Place(folder)
    decider = make_decider(job.decider)
    grants = Grants.from_environment()
    budget = granted(job, grants)
    tests = _Tests(budget)
    place.check(job, force)
    built = place.build(job, decider, budget, [tests.heard, *([say] if say else [])])
    tests.known(built)
    before = built.trainer.parameters
    result = built.trainer.fit()
    facts = {
        "name": job.name,
        "decider": job.decider,
        "seed": job.seed,
        "accuracy": built.tested(),
        "validation": result.accuracy,
        "parameters_before": before,
        "parameters": result.parameters,
        "actions": list(result.actions),
        "decisions": [_told(event) for event in result.events if event["event"] == "decision"],
        "steps": result.steps,
        "clock": job.clock,
        "budget": budget.total,
        "used": budget.used,
        "hash": job.hash,
    }
    torch.save(
        {"growth": ops.growth_log(built.trainer.model), "weights": built.trainer.model.state_dict()}, folder / NETWORK
    )
    write_whole(folder / RESULT, json.dumps(facts, indent=1).encode())
    if grants is not None:
        grants.flush(_EXIT / 2)
    return facts


def granted(job: Job, grants: Grants | None) -> Budget:
    """The budget of a job: what the scheduler grants where it runs as one of its jobs, or else what its file says."""
    if job.clock != "wall":
        return Budget(job.budget, job.clock, grants=grants)
    budget = Budget.from_environment(job.budget, grants=grants)
    if os.environ.get("GPUYARD_JOB_ID"):
        budget.keep("exit", _EXIT)
    return budget


def _told(event: Event) -> dict[str, Any]:
    """What people want to know of a decision."""
    keys = ("time", "time_left", "action", "site", "op", "probabilities", "reason", "predicted_gain", "accuracy",
            "parameters_before", "parameters")  # fmt: skip
    return {key: event.get(key) for key in keys}


class _Tests:
    """Keeps time for the test that comes after the training: as long for each sample as the last evaluation took."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._times = budget, 0.0

    def known(self, built: Built) -> None:
        """How much longer the test is than an evaluation."""
        self._times = built.test_samples / built.validation_samples

    def heard(self, event: Event) -> None:
        if event["event"] == "evaluation" and self._times:
            self._budget.keep("test", self._times * self._budget.kept("evaluation") / CAUTION)
