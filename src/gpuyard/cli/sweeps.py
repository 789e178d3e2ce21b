"""Sweeps in job files: `grid`, `zip` and `params` make many jobs of one, each with other values for `{name}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import yaml

from gpuyard.batches.filling import MOST, Filling, Parameters, combinations, merged, together
from gpuyard.cli.documents import at, pairs, scalar
from gpuyard.errors import UserError

SWEEPS = ("grid", "zip", "params")
"""All combinations of lists; lists side by side; or each choice by itself."""


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
    """What parameters may be, each choice by itself."""
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
    """The same with the values in its texts."""
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
