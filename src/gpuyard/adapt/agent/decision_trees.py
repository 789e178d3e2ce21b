"""Recorded runs as trees of decisions: the situation at each, and the accuracy of each sequence of actions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuyard.adapt.decisions import UNKNOWN, Option, Situation
from gpuyard.adapt.training_job import read_text
from gpuyard.errors import UserError, suggest

FORMAT, VERSION = "gpuyard-adaptation", 1
Floats = npt.NDArray[np.float64]
Actions = tuple[int, ...]
_ENDINGS = (".jsonl", ".json", ".jsonl.gz")


@dataclass(frozen=True)
class Table:
    """All sequences of one environment: their accuracies by seed, and the situations before each decision."""

    name: str
    seeds: tuple[int, ...]
    sequences: tuple[Actions, ...]  # in the order of their actions
    accuracy: Floats  # of each seed (rows) and sequence (columns)
    situations: Mapping[Actions, tuple[Situation, ...]]  # situations after some actions, by seed

    @cached_property
    def values(self) -> Floats:
        return np.asarray(self.accuracy.mean(axis=0), dtype=float)

    @cached_property
    def errors(self) -> Floats:
        """Standard errors of the values; nan with a single seed."""
        if len(self.seeds) < 2:
            return np.full(len(self.sequences), math.nan)
        return np.asarray(self.accuracy.std(axis=0, ddof=1) / math.sqrt(len(self.seeds)), dtype=float)

    @cached_property
    def noise(self) -> float:
        if len(self.seeds) < 2:
            return UNKNOWN
        return float(np.sqrt(self.accuracy.var(axis=0, ddof=1).mean()))

    @cached_property
    def place(self) -> dict[Actions, int]:
        return {sequence: k for k, sequence in enumerate(self.sequences)}

    @cached_property
    def never(self) -> int:
        return self.place[self.idle(())]

    @cached_property
    def best(self) -> int:
        return int(np.argmax(self.values))

    def idle(self, prefix: Actions) -> Actions:
        while prefix in self.situations:
            prefix = (*prefix, self.situations[prefix][0].nothing)
        return prefix

    def rank(self, sequence: Actions) -> int:
        """Rank by value: 1 is the best; equals share the better rank."""
        return 1 + int((self.values > self.values[self.place[sequence]]).sum())

    @cached_property
    def typical(self) -> dict[Actions, Situation]:
        return {prefix: mean_situation(seen) for prefix, seen in self.situations.items()}


@dataclass(frozen=True)
class Reading:
    tables: tuple[Table, ...]
    notes: tuple[str, ...]

    def choose(self, names: str | None) -> Reading:
        """Only some environments: names separated by commas; `*` at the end matches any rest."""
        if names is None:
            return self
        known, chosen = {table.name: table for table in self.tables}, dict[str, Table]()
        for name in (part.strip() for part in names.split(",") if part.strip()):
            fits = [k for k in known if k == name or (name.endswith("*") and k.startswith(name[:-1]))]
            if not fits:
                raise UserError(
                    f"no environment is called '{name}'{suggest(name, known)}; there are {', '.join(known)}"
                )
            chosen |= {k: known[k] for k in fits}
        return replace(self, tables=tuple(chosen.values()))


@dataclass(frozen=True)
class Run:
    environment: str
    seed: int
    actions: Actions
    accuracy: float
    situations: tuple[Situation, ...]


def read_tables(paths: Sequence[str | Path]) -> Reading:
    """The environments of recordings (files or folders of them) and of the seed's tables."""
    runs: dict[str, dict[int, dict[Actions, Run]]] = {}
    notes: list[str] = []
    for path in _files(paths):
        for run in _read(path, notes):
            seen = runs.setdefault(run.environment, {}).setdefault(run.seed, {})
            if run.actions in seen and seen[run.actions].accuracy != run.accuracy:
                notes.append(
                    f"{path}: {run.environment}, seed {run.seed}, {list(run.actions)} is there twice; the last counts"
                )
            seen[run.actions] = run
    tables = [_table(name, seeds, notes) for name, seeds in runs.items()]
    found = tuple(table for table in tables if table is not None)
    if not found:
        told = f" ({'; '.join(notes)})" if notes else ""
        raise UserError(f"no environment is complete in {', '.join(map(str, paths))}{told}; record more")
    return Reading(found, tuple(notes))


def mean_situation(seen: Sequence[Situation]) -> Situation:
    """The mean situation; a value that only some know is averaged over these."""
    options = tuple(
        replace(group[0], **_means(Option, group)) for group in zip(*(s.options for s in seen), strict=True)
    )
    averages: dict[str, Any] = _means(Situation, seen)
    return replace(seen[0], **averages, options=options)


def _means(kind: type, group: Sequence[Any]) -> dict[str, float]:
    found = {}
    for field in fields(kind):
        if field.type == "float":
            known = [v for one in group if not math.isnan(v := getattr(one, field.name))]
            found[field.name] = math.fsum(known) / len(known) if known else UNKNOWN
    return found


def _files(paths: Sequence[str | Path]) -> Iterable[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.name.endswith(_ENDINGS) and p.is_file())
            if not inside:
                raise UserError(f"there is no recording in {path}; name a file that gpuyard adapt record wrote")
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise UserError(f"there is no recording {path}; name a file that gpuyard adapt record wrote")


def _read(path: Path, notes: list[str]) -> Iterable[Run]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise UserError(f"{path} cannot be read: {why}") from None
    first, _, rest = text.partition("\n")
    head = _json(first)
    if isinstance(head, dict) and head.get("format") == FORMAT:
        if head.get("version") != VERSION:
            raise UserError(f"{path} is a recording of version {head.get('version')}; this gpuyard reads {VERSION}")
        return _lines(path, rest, notes)
    tables = _json(text)
    if _is_seed_table(tables):
        return [run for name, rows in tables.items() for run in seed_runs(name, rows)]
    raise UserError(f"{path} is no recording of gpuyard adapt record, and no table of the seed's kind")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines(path: Path, text: str, notes: list[str]) -> Iterable[Run]:
    lines = text.split("\n")
    last = max((k for k, line in enumerate(lines) if line.strip()), default=-1)
    for k, line in enumerate(lines[: last + 1]):
        if not line.strip():
            continue
        facts = _json(line)
        if facts is None and k == last:
            notes.append(f"{path}: line {k + 2}, the last, is cut off and left out")
            return
        if facts is None:
            raise UserError(f"{path}: line {k + 2} is damaged; take it out, and record what is missing anew")
        try:
            yield _run(facts)
        except UserError as error:
            raise UserError(f"{path}: line {k + 2}: {error}") from None


def _run(facts: Any) -> Run:
    if not isinstance(facts, dict):
        raise UserError("a run must be an object with 'environment', 'seed', 'actions', 'accuracy' and 'situations'")
    try:
        actions = tuple(int(action) for action in facts["actions"])
        run = Run(
            str(facts["environment"]), int(facts["seed"]), actions, float(facts["accuracy"]),
            tuple(Situation.from_json(one) for one in facts["situations"]),
        )  # fmt: skip
    except KeyError as error:
        raise UserError(f"the run has no {error}") from None
    except (TypeError, ValueError, AttributeError):
        raise UserError("the run holds values of other kinds than a recording's") from None
    if not math.isfinite(run.accuracy):
        raise UserError("the run's accuracy is no number")
    if len(run.situations) != len(actions):
        raise UserError(f"the run has {len(actions)} actions, but {len(run.situations)} situations")
    for action, seen in zip(actions, run.situations, strict=True):
        if not 0 <= action <= seen.nothing:
            raise UserError(f"action {action} is none of 0 to {seen.nothing}")
    return run


def _is_seed_table(tables: Any) -> bool:
    return isinstance(tables, dict) and bool(tables) and all(
        isinstance(rows, list) and rows and all(
            isinstance(row, dict) and {"actions", "accuracy", "time_left", "total_time"} <= row.keys() for row in rows
        )
        for rows in tables.values()
    )  # fmt: skip


SEED_BLOCKS = {"cnn1": (10_602, (9_312, 9_312, 110)), "cnn2": (20_778, (37_056, 9_312, 110))}
"""Parameters of the seed's two networks, and those that deepening adds at each of their blocks."""


def seed_runs(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The seed's runs with situations as far as its files tell them: they hold only times."""
    sites = max(max(row["actions"]) for row in rows)
    base, added = SEED_BLOCKS.get(name.partition("-")[0], (0, (0,) * sites))
    added = added if len(added) == sites else (0,) * sites
    runs = []
    for row in rows:
        actions, seen = tuple(int(a) for a in row["actions"]), list[Situation]()
        for k, left in enumerate(row["time_left"]):
            before = actions[:k]
            size = base + sum(added[a] for a in before if a < sites)
            options = tuple(
                Option(
                    s, f"block{s}", position=s / max(sites - 1, 1), grown=before.count(s),
                    params_ratio=(size + added[s]) / size if base else UNKNOWN,
                )
                for s in range(sites)
            )  # fmt: skip
            seen.append(
                Situation(
                    float(left), float(row["total_time"]), grown=sum(a < sites for a in before), decision=k,
                    decisions=len(actions), options=options,
                )
            )  # fmt: skip
        runs.append(Run(name, 0, actions, float(row["accuracy"]), tuple(seen)))
    return runs


def _table(name: str, seeds: dict[int, dict[Actions, Run]], notes: list[str]) -> Table | None:
    """The table of an environment from its complete seeds; None without any."""
    trees = {seed: tree for seed in sorted(seeds) if (tree := _tree(seeds[seed])) is not None}
    if left := sorted(set(seeds) - set(trees)):
        which = f"seed {left[0]}" if len(left) == 1 else f"seeds {', '.join(map(str, left))}"
        notes.append(f"{name}: {which} not complete, left out" + ("" if trees else "; so the environment is, too"))
    if not trees:
        return None
    first = next(iter(trees))
    for seed, tree in trees.items():
        if {p: s[0].nothing for p, s in tree.items()} != {p: s[0].nothing for p, s in trees[first].items()}:
            raise UserError(f"{name}: seeds {first} and {seed} had other choices; record them with the same settings")
    sequences = tuple(sorted(seeds[first]))
    accuracy = np.array([[seeds[seed][one].accuracy for one in sequences] for seed in trees])
    situations = {p: tuple(mean_situation(tree[p]) for tree in trees.values()) for p in sorted(trees[first])}
    return Table(name, tuple(trees), sequences, accuracy, situations)


def _tree(runs: Mapping[Actions, Run]) -> dict[Actions, list[Situation]] | None:
    """Situations before each decision, by the actions before it; None if a sequence is missing."""
    seen: dict[Actions, list[Situation]] = {}
    for run in runs.values():
        for k, situation in enumerate(run.situations):
            seen.setdefault(run.actions[:k], []).append(situation)
    for prefix, situations in seen.items():
        if any(s.nothing != situations[0].nothing for s in situations) or prefix in runs:
            return None
        if any((*prefix, a) not in seen and (*prefix, a) not in runs for a in range(situations[0].nothing + 1)):
            return None
    return seen if () in seen else None
