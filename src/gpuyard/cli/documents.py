"""Documents that people write, as nodes that know where they stand: YAML as it is read, and TOML in the same form."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from gpuyard.errors import UserError


class _Place:
    """Where something stands in a document of which no lines are known."""

    def __init__(self, name: str) -> None:
        self.name = name


def at(path: str, node: yaml.Node) -> str:
    """Where a part of the file stands."""
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
    """A text as it stands there: 16:00 is no number here."""
    if not isinstance(node, yaml.ScalarNode):
        raise UserError(f"{at(path, node)}: one value is expected here")
    return str(node.value)


def compose_toml(path: str) -> yaml.Node:
    """A TOML file as the nodes that YAML would make of the same."""
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
