"""Job files:

several jobs in YAML or TOML, checked as a whole before any job is queued. `grid`, `zip` and `params` make many jobs
of one.
"""

from __future__ import annotations

import heapq
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from gpuyard.cli.jobs.job_options import Options
from gpuyard.cli.jobs.submit import Request
from gpuyard.errors import UserError, suggest
from gpuyard.spec.batch_files import MOST, Filling, Parameters, combinations, merged, together
from gpuyard.spec.fields import FIELD, FIELDS
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import VARIABLES, Moment
from gpuyard.spec.notation import default_name


class _Place:
    """A place in a document whose line numbers are not known (TOML)."""

    def __init__(self, name: str) -> None:
        self.name = name


def at(path: str, node: yaml.Node) -> str:
    mark = node.start_mark
    if isinstance(mark, _Place):
        return f"{path}, {mark.name}" if mark.name else path
    return f"{path}:{mark.line + 1}"


def pairs(path: str, node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys and values of a mapping, each key once."""
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{at(path, node)}: keys and values are expected, as in: command: python train.py")
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{at(path, key)}: a key is a word")
        if key.value in seen:
            raise UserError(f"{at(path, key)}: '{key.value}' is given twice")
        seen.add(key.value)
        yield key, value


def scalar(path: str, node: yaml.Node) -> str:
    """A scalar's text as written: 16:00 is no number here."""
    if not isinstance(node, yaml.ScalarNode):
        raise UserError(f"{at(path, node)}: one value is expected here")
    return str(node.value)


def compose_toml(path: str) -> yaml.Node:
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file, parse_float=str)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {str(error).rstrip('.')}") from error
    if not found:
        raise UserError(f"{path} is empty; write [[jobs]], and below it a command")
    return _node(found, "")


def _node(value: Any, name: str) -> yaml.Node:
    mark: Any = _Place(name)
    if isinstance(value, dict):
        inner = [
            (yaml.ScalarNode("!!str", key, mark), _node(one, f"{name}.{key}".lstrip("."))) for key, one in value.items()
        ]
        return yaml.MappingNode("!!map", inner, mark)
    if isinstance(value, list):
        return yaml.SequenceNode("!!seq", [_node(one, f"{name}[{n}]") for n, one in enumerate(value, 1)], mark)
    text = str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else str(value)
    return yaml.ScalarNode("!!str", text, mark)


SWEEPS = ("grid", "zip", "params")  # all combinations of lists; lists side by side; or each choice by itself


def expanded(path: str, jobs: Sequence[yaml.Node], common: Mapping[str, yaml.Node]) -> list[yaml.Node]:
    """The jobs, each once for every choice of its parameters and of those that are common to all."""
    shared = [_choices(path, kind, node) for kind, node in common.items()]
    for_all = Filling(name for choices in shared for name in choices[0])
    found: list[yaml.Node] = []
    for job in jobs:
        found += _copies(path, job, shared, for_all)
        if len(found) > MOST:
            raise UserError(f"{at(path, job)}: this makes more than {MOST:,} jobs; use several files")
    if common:
        for_all.check(at(path, next(iter(common.values()))), (text for job in jobs for text in _texts(job)))
    return found


def _copies(path: str, job: yaml.Node, shared: list[list[Parameters]], for_all: Filling) -> Iterator[yaml.Node]:
    own = {key.value: value for key, value in pairs(path, job) if key.value in SWEEPS}
    if not own and not shared:
        yield job
        return
    choices = [_choices(path, kind, node) for kind, node in own.items()]
    count = 1
    for several in (*shared, *choices):
        count *= len(several)
    if count > MOST:
        raise UserError(f"{at(path, job)}: this makes {count:,} jobs, more than {MOST:,}; use several files")
    rest = [(key, value) for key, value in job.value if key.value not in SWEEPS]
    plain = yaml.MappingNode(job.tag, rest, job.start_mark)
    filling = Filling(name for several in (*shared, *choices) for name in several[0])
    for values in merged([*shared, *choices]):
        yield _filled(plain, filling, values)
    mine = [name for several in choices for name in several[0]]
    for name in list(for_all.unused):
        if name not in filling.unused:
            del for_all.unused[name]
    filling.unused = {name: None for name in filling.unused if name in mine}
    filling.check(at(path, job), _texts(plain))


def _choices(path: str, kind: str, node: yaml.Node) -> list[Parameters]:
    if kind == "params":
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise UserError(f"{at(path, node)}: params is a list of choices, as in: - {{lr: 0.1, seed: 1}}")
        found: list[Parameters] = [{key.value: scalar(path, v) for key, v in pairs(path, one)} for one in node.value]
        for one, choice in zip(node.value, found, strict=True):
            if choice.keys() != found[0].keys():
                raise UserError(f"{at(path, one)}: each choice names the same parameters: {', '.join(found[0])}")
        return found
    lists = {key.value: _values(path, key.value, value) for key, value in pairs(path, node)}
    if not lists:
        raise UserError(f"{at(path, node)}: {kind} is empty; write for example lr: [0.1, 0.01]")
    if kind == "grid":
        return list(combinations(lists))
    if len({len(values) for values in lists.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in lists.items())
        raise UserError(f"{at(path, node)}: lists of zip have as many values each, but {sizes}")
    return list(together(lists))


def _values(path: str, name: str, node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return [scalar(path, node)]
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise UserError(f"{at(path, node)}: {name} is a list of values, as in [0.1, 0.01]")
    return [scalar(path, value) for value in node.value]


def _filled(node: yaml.Node, filling: Filling, values: Parameters) -> yaml.Node:
    if isinstance(node, yaml.ScalarNode):
        text = filling.fill(node.value, values)
        return node if text == node.value else yaml.ScalarNode(node.tag, text, node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_filled(one, filling, values) for one in node.value], node.start_mark)
    inner = [(key, _filled(value, filling, values)) for key, value in node.value]
    return yaml.MappingNode(node.tag, inner, node.start_mark)


def _texts(node: yaml.Node) -> Iterator[str]:
    if isinstance(node, yaml.ScalarNode):
        yield str(node.value)
    elif isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from _texts(one)
    else:
        for _, value in node.value:
            yield from _texts(value)


_OWN = ("command", "script", "args")
_BY_KEY = {key: field for field in FIELDS if field.option for key in (field.attribute, *field.all_keys)}
_BY_KEY["after"] = FIELD["dependency"]
_BY_KEY.pop(FIELD["from"].attribute)
_KEYS = sorted({key.replace("_", "-") for key in _BY_KEY} | {*_OWN})


class _Entry:
    """One job of a file: its request, and where it stands."""

    def __init__(self, where: str, request: Request, script: bool) -> None:
        self.where, self.request, self.script = where, request, script


def read_jobs(path: str, given: Request, *, elsewhere: bool = False) -> list[dict[str, Any]]:
    """The jobs of a file as requests to the API, each after those that it depends on.

    What the command line gives goes before what the file says.
    """
    defaults, jobs, sweep = _parts(path, _document(path))
    jobs = expanded(path, jobs, sweep)
    common = _read(path, defaults) if defaults is not None else {}
    entries = [_entry(path, node, common, given) for node in jobs]
    if not entries:
        raise UserError(f"{path} has no jobs; write a list of them, each with a command")
    described = []
    for entry in _ordered(entries):
        try:
            described.append(entry.request.describe(in_place=not entry.script, elsewhere=elsewhere))
        except UserError as error:
            raise UserError(f"{entry.where}: {error}") from error
    return described


def _document(path: str) -> yaml.Node:
    if path.endswith(".toml"):
        return compose_toml(path)
    try:
        with open(path, encoding="utf-8") as file:
            node: yaml.Node | None = yaml.compose(file, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}:{line}: this is not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if node is None:
        raise UserError(f"{path} is empty; write a list of jobs, each with a command")
    return node


def _parts(path: str, node: yaml.Node) -> tuple[yaml.Node | None, list[yaml.Node], dict[str, yaml.Node]]:
    """The defaults, the jobs and the parameters of all: a list of jobs, one job, or `defaults`, `jobs`, `grid` ..."""
    if isinstance(node, yaml.SequenceNode):
        return None, node.value, {}
    parts = {key.value: (key, value) for key, value in pairs(path, node)}
    if parts.keys() & {"command", "script"}:
        return None, [node], {}
    for name, (key, _) in parts.items():
        if name not in ("defaults", "jobs", *SWEEPS):
            raise UserError(f"{at(path, key)}: '{name}' is neither jobs nor defaults; write a list of jobs")
    jobs = parts["jobs"][1] if "jobs" in parts else None
    if not isinstance(jobs, yaml.SequenceNode):
        raise UserError(f"{at(path, jobs or node)}: jobs is to be a list")
    sweep = {name: parts[name][1] for name in SWEEPS if name in parts}
    return (parts["defaults"][1] if "defaults" in parts else None), jobs.value, sweep


def _entry(path: str, node: yaml.Node, common: Mapping[str, Any], given: Request) -> _Entry:
    found = _read(path, node)
    script = found.pop("script", None)
    args = found.pop("args", None)
    command = found.pop("command", None)
    where = at(path, node)
    if (script is None) == (command is None):
        raise UserError(f"{where}: a job has a command, or a script")
    if script is not None and not os.path.isfile(script):
        raise UserError(f"{where}: there is no script {script}; its path is looked for from the directory you are in")
    if args is not None and script is None:
        raise UserError(f"{where}: args are for a script; write them in the command")
    merged = {**{name: value for name, value in common.items() if name not in _OWN}, **found}
    if isinstance(command, str):
        words = ["/bin/sh", "-c", command]
        merged.setdefault("name", default_name(words))  # other jobs of the file may follow it by that
    else:
        words = command if command is not None else [str(script), *(args or ())]
    options = given.over(Options(**merged))
    return _Entry(where, options.changed(command=words), script is not None)


def _read(path: str, node: yaml.Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs(path, node):
        if key.value in _OWN:
            found[key.value] = _words(path, value) if key.value != "script" else scalar(path, value)
        elif field := _BY_KEY.get(key.value):
            found[field.attribute] = _value(path, key.value, field, value)
        else:
            raise UserError(f"{at(path, key)}: there is no '{key.value}'{suggest(key.value, _KEYS)}")
    return found


def _value(path: str, key: str, field: JobField, node: yaml.Node) -> Any:
    kind = field.kind
    if kind is VARIABLES and isinstance(node, yaml.MappingNode):
        return [f"{key.value}={scalar(path, value)}" for key, value in pairs(path, node)]
    if kind.option is list:
        words = _words(path, node)
        return [words] if isinstance(words, str) else words
    if key == "after":
        words = _words(path, node)
        return f"afterok:{':'.join([words] if isinstance(words, str) else words)}"
    if kind.commas and isinstance(node, yaml.SequenceNode):
        return ",".join(scalar(path, part) for part in node.value)
    text = scalar(path, node)
    if kind.option is str:
        return text
    try:
        return kind.parse(text, Moment(0.0))
    except UserError:
        raise UserError(f"{at(path, node)}: {field.complaint(text, key)}") from None


def _words(path: str, node: yaml.Node) -> str | list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [scalar(path, part) for part in node.value]
    return scalar(path, node)


def _ordered(entries: Sequence[_Entry]) -> list[_Entry]:
    """The jobs, each after those that it follows, which it names by their places (`@0`) from now on."""
    names: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        if entry.request.name:
            names.setdefault(entry.request.name, []).append(number)
    follows = [{n for who in _followed(e) for n in names.get(who, ())} - {number} for number, e in enumerate(entries)]
    order = list(_in_order(follows))
    if len(order) < len(entries):
        stuck = min(set(range(len(entries))) - set(order))
        raise UserError(f"{entries[stuck].where}: this job follows others that follow it, so none could ever start")
    place = {number: position for position, number in enumerate(order)}
    for number in order:
        entry = entries[number]
        changed: dict[str, Any] = {"dependency": _with_places(entry.request.dependency, names, place, number)}
        entry.request = entry.request.changed(**changed)
    return [entries[number] for number in order]


def _in_order(follows: Sequence[set[int]]) -> Iterator[int]:
    """All numbers, each after those that it follows, else as they are; without those that no order allows."""
    followers: dict[int, list[int]] = {}
    left = [len(first) for first in follows]
    for number, first in enumerate(follows):
        for other in first:
            followers.setdefault(other, []).append(number)
    ready = [number for number, count in enumerate(left) if not count]
    while ready:
        number = heapq.heappop(ready)
        yield number
        for other in followers.get(number, ()):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)


def _followed(entry: _Entry) -> list[str]:
    parts = (entry.request.dependency or "").replace(" ", "").split(",")
    return [who for part in parts for who in part.split(":")[1:]]


def _with_places(text: str | None, names: Mapping[str, list[int]], place: Mapping[int, int], own: int) -> str | None:
    if not text:
        return text
    parts = []
    for part in text.replace(" ", "").split(","):
        kind, *who = part.split(":")
        meant = [[f"@{place[n]}" for n in names[one] if n != own] if one in names else [one] for one in who]
        parts.append(":".join([kind, *(one for several in meant for one in several)]))
    return ",".join(parts)
