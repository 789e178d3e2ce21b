"""Tree of all decisions in a training; branches start from the checkpoint where they part."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuyard.adapt.decisions import Situation, grow, nothing
from gpuyard.adapt.training.runner import Built, build
from gpuyard.adapt.training.snapshots import pack, unpack
from gpuyard.adapt.training.trainer import BudgetedTrainer
from gpuyard.adapt.training_job import Job, job_of
from gpuyard.errors import UserError
from gpuyard.files import replace_file

Actions = tuple[int, ...]
Row = dict[str, Any]
_JOB = "job.json"


@dataclass(frozen=True, slots=True)
class Branch:
    situations: tuple[Situation, ...] = ()
    parameters: tuple[int, ...] = ()  # of the network in which each decision was made
    seconds: tuple[float, ...] = ()  # CPU time of each node on the way, beginning with the root

    def to_json(self) -> dict[str, Any]:
        situations = [situation.to_json() for situation in self.situations]
        return {"situations": situations, "parameters": list(self.parameters), "seconds": list(self.seconds)}

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Branch:
        situations = tuple(map(Situation.from_json, facts["situations"]))
        return Branch(situations, tuple(facts["parameters"]), tuple(facts["seconds"]))


@dataclass
class Tree:
    job: Job  # with the seed
    folder: Path  # files of nodes
    _built: Built | None = field(default=None, repr=False)

    @staticmethod
    def at(folder: Path) -> Tree:
        try:
            facts = json.loads((folder / _JOB).read_text())
            place = Path(facts.pop("folder"))
            return Tree(job_of(facts, "", place), folder)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder} holds no recording that was begun ({error})") from None

    def begin(self) -> None:
        """Make the folder; an existing one must be of the same job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.folder / _JOB
        text = json.dumps({**self.job.facts(), "folder": str(self.job.folder.resolve())}, indent=1)
        if known.exists() and known.read_text() != text:
            raise UserError(
                f"{self.folder} was begun for another job of that name; record into another file, or remove it"
            )
        replace_file(known, text.encode())

    def state_file(self, actions: Actions) -> Path:
        return self.folder / f"{node_name(actions)}.state"

    def row_file(self, actions: Actions) -> Path:
        return self.folder / f"{node_name(actions)}.json"

    def rows(self) -> list[Row]:
        paths = sorted(path for path in self.folder.glob("*.json") if path.name != _JOB)
        return [json.loads(path.read_text()) for path in paths]

    def walk(self, actions: Actions = ()) -> Iterator[Actions]:
        """Visit every node from here down that was not visited yet; yields each training that has ended."""
        if self.row_file(actions).exists():
            return
        if not self.state_file(actions).exists():
            self.visit(actions)
            if self.row_file(actions).exists():
                yield actions
                return
        for child in self.below(actions):
            yield from self.walk(child)

    def below(self, actions: Actions) -> list[Actions]:
        situation = self._load(actions)[1].situations[-1]
        return [(*actions, action) for action in range(situation.nothing + 1)]

    def visit(self, actions: Actions) -> None:
        self._build(fresh=not actions)
        began = time.process_time()
        trainer, way = self._taken_up(actions[:-1]) if actions else (self._trainer, Branch())
        if actions:
            trainer.apply(_decision(way.situations[-1], actions[-1]))
        situation = trainer.advance()
        seconds = (*way.seconds, time.process_time() - began)
        if situation is None:
            self._end(actions, replace(way, seconds=seconds))
            return
        parameters = (*way.parameters, trainer.parameters)
        way = Branch((*way.situations, situation), parameters, seconds)
        replace_file(self.state_file(actions), pack({"trainer": trainer.state(), "way": way.to_json()}))

    def _build(self, fresh: bool) -> None:
        if fresh or self._built is None:
            self._built = build(self.job, None)

    @property
    def _trainer(self) -> BudgetedTrainer:
        assert self._built is not None
        return self._built.trainer

    def _taken_up(self, actions: Actions) -> tuple[BudgetedTrainer, Branch]:
        state, way = self._load(actions)
        self._trainer.load_state(state)
        return self._trainer, way

    def _end(self, actions: Actions, way: Branch) -> None:
        assert self._built is not None
        result = self._trainer.finish()
        row = {
            "environment": self.job.name,
            "seed": self.job.seed,
            "actions": list(actions),
            "accuracy": self._built.tested(),
            "validation": result.accuracy,
            "situations": [situation.to_json() for situation in way.situations],
            "time_left": [situation.time_left for situation in way.situations],
            "total_time": self.job.budget,
            "parameters": [*way.parameters, result.parameters],
            "seconds": sum(way.seconds[_first_own(actions) :]),
            "alone": sum(way.seconds),
        }
        replace_file(self.row_file(actions), json.dumps(row).encode())

    def _load(self, actions: Actions) -> tuple[dict[str, Any], Branch]:
        path = self.state_file(actions)
        try:
            state = unpack(path.read_bytes(), str(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}; visit that node first") from None
        return state["trainer"], Branch.from_json(state["way"])


def node_name(actions: Actions) -> str:
    return "-".join(map(str, actions)) or "root"


def parse_node(word: str) -> Actions:
    try:
        return () if word == "root" else tuple(map(int, word.split("-")))
    except ValueError:
        raise UserError(f"'{word}' is no node of a recording; write root, or actions as in 0-2-1") from None


def _first_own(actions: Actions) -> int:
    """The first node of a sequence that no sequence before it has visited: others account for those above."""
    place = len(actions)
    while place > 0 and actions[place - 1] == 0:
        place -= 1
    return place


def _decision(situation: Situation, action: int) -> Any:
    if action == situation.nothing:
        return nothing(situation, "recorded: nothing is done")
    if not 0 <= action < situation.nothing:
        raise UserError(f"there is no action {action} here, only 0 to {situation.nothing}")
    return grow(situation, situation.options[action], "recorded: every option is tried")
