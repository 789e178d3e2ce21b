"""Schemas of what the API gives, made from the very types that a client gets (`gpuyard.shapes`, `gpuyard.replies`).

pydantic would do, but it takes no TypedDict of the standard library before Python 3.12, and `shapes` imports nothing
else. A field's description is the text below it, which only the source has.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from functools import cache
from typing import Any, Literal, NotRequired, Required, Union

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, object: {},
}  # fmt: skip


def schema_of(kind: Any, found: dict[str, Schema]) -> Schema:
    """The schema of a type; those of the classes in it are put among what was found, and are referred to."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if typing.is_typeddict(kind):
        if kind.__name__ not in found:
            found[kind.__name__] = {}  # it may be in itself
            found[kind.__name__] = _object(kind, found)
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (NotRequired, Required):
        return schema_of(inner[0], found)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one, found) for one in inner]}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1], found)}
    raise TypeError(f"there is no schema for {kind!r}")


def _object(kind: Any, found: dict[str, Schema]) -> Schema:
    said = _said(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: schema_of(of, found) for name, of in hints.items()}
    for name, text in said.items():
        fields[name] = {"description": text, **fields[name]}
    # Not `__required_keys__`, which cannot be trusted where annotations are texts.
    needed = [name for name, of in hints.items() if kind.__total__ and typing.get_origin(of) is not NotRequired]
    doc = inspect.getdoc(kind) or ""
    return {"type": "object", "title": kind.__name__, "description": doc, "properties": fields, "required": needed}


@cache
def _said(kind: Any) -> dict[str, str]:
    """What stands below the fields of a class."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found
