"""Reading texts and numbers from a command line without pydantic, whose import takes longer than all else.

Newer versions of typer read every value through pydantic. What is plainly right is read here; all else is left to
typer, and so are the complaints. A version that does without pydantic is left as it is.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

from gpuyard.cli.optional import USUAL, completed

_UNREAD = object()


class QuickCommand(TyperCommand):
    """A command that is quick to read its line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line, and remember it: whether -- was given is not told otherwise."""
        ctx.meta["gpuyard.line"] = list(args)
        known = {name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)}
        return super().parse_args(ctx, completed(args, known, "" if "--param-file" in known else USUAL))

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, the one for help included."""
        return [_quick(parameter) for parameter in super().get_params(ctx)]


class QuickGroup(TyperGroup):
    """A group that is quick to read its part of the line."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, the one for help included."""
        return [_quick(parameter) for parameter in super().get_params(ctx)]


def _quick(parameter: Any) -> Any:
    if getattr(parameter, "_runtime_param", parameter) is None:
        parameter._runtime_param = _Quick(parameter)
    return parameter


class _Quick:
    """Stands before typer's own reader of a parameter."""

    def __init__(self, parameter: Any) -> None:
        self.kind = parameter.type_descriptor.annotation
        limits = parameter.type_descriptor.parameter_info
        self.least, self.most = limits.min, limits.max

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """What a given text, or a default, stands for."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = self._read(value)
        if found is not _UNREAD:
            return found
        param._runtime_param = None  # typer makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _read(self, value: Any) -> Any:
        if get_origin(self.kind) is list and get_args(self.kind) == (str,) and isinstance(value, list | tuple):
            return list(value) if all(isinstance(item, str) for item in value) else _UNREAD
        if isinstance(value, str) and self.kind in (str, int, float):
            try:
                value = self.kind(value)
            except ValueError:
                return _UNREAD
        if type(value) is not self.kind or (self.kind is not str and not self._allows(value)):
            return _UNREAD
        return value

    def _allows(self, number: float) -> bool:
        return (self.least is None or self.least <= number) and (self.most is None or number <= self.most)
