"""The folder of an experiment: a file for each finished run, so that an interrupted experiment continues."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.errors import UserError
from gpuyard.experiments.design import Experiment, JobResult, RunResult, Scheduler
from gpuyard.files import write_atomically
from gpuyard.recordings.series import Recording
from gpuyard.recordings.textform import read_recording, write_recording
from gpuyard.units import format_number

VERSION = 1
_MARK, _LOCK = "experiment.json", ".lock"
_OURS = ("runs", "recordings", "plots", "logs")


class Run(NamedTuple):
    """One scheduler at one over-provisioning, once."""

    scheduler: Scheduler
    percent: float
    turn: int

    @property
    def name(self) -> str:
        return f"{self.scheduler.name}-{format_number(self.percent)}-{self.turn}"


def planned(experiment: Experiment, repeat: int) -> list[Run]:
    """All runs of an experiment: the first of every scheduler comes before the second of any."""
    return [
        Run(scheduler, percent, turn)
        for turn in range(1, repeat + 1)
        for percent in sorted(experiment.over_provisioning)
        for scheduler in experiment.schedulers
    ]


def meaning(experiment: Experiment, run: Run, simulate: bool) -> str:
    said = asdict(experiment)
    for key in ("name", "schedulers", "over_provisioning", "repeat"):
        del said[key]
    said |= {"scheduler": asdict(run.scheduler), "percent": run.percent, "turn": run.turn, "simulate": simulate}
    for part in (said, said["scheduler"]):
        if not part["kubernetes"]:
            del part["kubernetes"]  # as in results from before there was any
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Results:
    folder: Path

    @property
    def yard(self) -> Path:
        return self.folder / "yard"

    @contextmanager
    def opened(self, fresh: bool) -> Iterator[None]:
        """Lock the folder; with `fresh`, remove former results."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file; choose a folder by --out")
        others = self.folder.is_dir() and any(path.name != _LOCK for path in self.folder.iterdir())
        if others and not (self.folder / _MARK).exists():
            raise UserError(f"{self.folder} holds something else already; choose another folder by --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another gpuyard experiment works in {self.folder}; wait for it, or choose another --out"
                ) from None
            if fresh:
                self._clear()
            yield

    def claim(self, experiment: Experiment, simulate: bool) -> None:
        said = {"version": VERSION, "simulate": simulate, "experiment": asdict(experiment)}
        write_atomically(self.folder / _MARK, _json(said))

    def save(self, run: Run, key: str, result: RunResult, recording: Recording) -> None:
        """Keep a finished run; its result is written last, so that a run is there as a whole or not at all."""
        for name in ("recordings", "runs"):
            (self.folder / name).mkdir(exist_ok=True)
        write_recording(self._recording(run), recording)
        write_atomically(self._result(run), _json({"version": VERSION, "meaning": key, "result": asdict(result)}))

    def find(self, run: Run, key: str) -> RunResult | None:
        """A run that was done before; a `UserError` if it is one of another experiment."""
        try:
            found = json.loads(self._result(run).read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            return None  # half a file, of a machine that went down: it is done again
        if not isinstance(found, dict) or found.get("meaning") != key or found.get("version") != VERSION:
            raise UserError(
                f"{self.folder} has results of an experiment that said something else ({self._result(run).name}); "
                "--fresh throws them away and starts over, another --out keeps both"
            )
        return _result(found, self._result(run))

    def done(self, experiment: Experiment, simulate: bool) -> list[tuple[Run, RunResult]]:
        """All finished runs of an experiment, in the order of the plan; a `UserError` if one is of another."""
        most = max((_turn(path) for path in (self.folder / "runs").glob("*.json")), default=0)
        found = [(run, self.find(run, meaning(experiment, run, simulate))) for run in planned(experiment, most)]
        return [(run, result) for run, result in found if result is not None]

    def recording(self, run: Run) -> Recording:
        return read_recording(self._recording(run))

    def described(self) -> tuple[dict[str, Any], bool]:
        try:
            found = json.loads((self.folder / _MARK).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{self.folder} is no folder of an experiment; gpuyard experiment run makes one") from None
        except ValueError as error:
            raise UserError(f"{self.folder / _MARK} cannot be read: {error}") from None
        return found["experiment"], bool(found["simulate"])

    def stored(self) -> list[RunResult]:
        told, _ = self.described()
        order = [one["name"] for one in told["schedulers"]]
        found = [_result(_read(path), path) for path in (self.folder / "runs").glob("*.json")]
        kept = [one for one in found if one.scheduler in order and one.percent in told["over_provisioning"]]
        return sorted(kept, key=lambda one: (one.turn, one.percent, order.index(one.scheduler)))

    def _clear(self) -> None:
        for name in _OURS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _result(self, run: Run) -> Path:
        return self.folder / "runs" / f"{run.name}.json"

    def _recording(self, run: Run) -> Path:
        return self.folder / "recordings" / f"{run.name}.json.gz"


def _turn(path: Path) -> int:
    last = path.stem.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError:
        return None


def _result(found: Any, path: Path) -> RunResult:
    """The result in a file's content; a `UserError` if it has another form."""
    wrong = UserError(f"{path} is no result of gpuyard's; remove it, and its run is done again")
    try:
        told = found["result"]
        result = RunResult(**{**told, "jobs": [JobResult(**job) for job in told["jobs"]]})
        numbers = (result.percent, result.duration, *(job.arrived + job.ran for job in result.jobs))
    except (KeyError, TypeError) as error:
        raise wrong from error
    if not all(isinstance(number, int | float) for number in numbers):
        raise wrong
    return result


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=str, allow_nan=False).encode() + b"\n"
