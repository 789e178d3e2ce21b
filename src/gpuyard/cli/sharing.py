"""Options that several commands share: the fields of a dataclass, which the command gets in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, some of whose parameters are dataclasses, the options that those are made of."""
    hints = get_type_hints(command, include_extras=True)
    own: list[Parameter] = []
    made: dict[str, tuple[Callable[..., Any], list[Parameter]]] = {}
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            made[parameter.name] = kind, _options(kind)
        else:
            own.append(_parameter(parameter.name, parameter.default, kind))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, (kind, options) in made.items():
            values[name] = kind(**{option.name: values.pop(option.name) for option in options})
        command(**values)

    del call.__dict__["__wrapped__"]  # or the signature would be looked up there
    given = [option for _, options in made.values() for option in options]
    first = [parameter for parameter in given if parameter.default is Parameter.empty]
    parameters = [*first, *own, *(parameter for parameter in given if parameter not in first)]
    call.__dict__["__signature__"] = Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(kind: type) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [_parameter(field.name, field.default, hints[field.name]) for field in fields(kind)]


def _parameter(name: str, default: Any, annotation: Any) -> Parameter:
    default = Parameter.empty if default is MISSING else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
