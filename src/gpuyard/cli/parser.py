"""Command and group classes for typer:

optional values, parsing without pydantic, lazy imports. Newer versions of typer read every value through pydantic,
whose import takes longer than everything else; plain values are read here, all others and all errors are left to
typer.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from gpuyard.errors import UserError
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import NUMBER, WHOLE, number_range

PROFILE, USUAL = "--profile", "30s"


def completed(words: Sequence[str], known: Collection[str], usual: str = USUAL) -> list[str]:
    """A command line in which every `--profile` has a value; `known` are the options of the command."""
    if PROFILE not in known:
        return list(words)
    found, rest = list[str](), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*found, word, *rest]
        if word != PROFILE:
            found.append(word)
        elif rest and _is_value(rest, known):
            found.append(f"{PROFILE}={rest.pop(0)}")
        elif usual:
            found.append(f"{PROFILE}={usual}")
    return found


def _is_value(rest: Sequence[str], known: Collection[str]) -> bool:
    """Whether the next word is a value of --profile: a time, or arguments that are not the command's own."""
    word = rest[0]
    if word.startswith("-"):
        return word != "--" and word.partition("=")[0].split(" ")[0] not in known
    before_command = list(rest[1:2]) == ["--"]  # no file can stand there: a mistake to report
    return word[:1].isdecimal() or word == "none" or before_command


_UNREAD = object()
_LARGEST = 10**14  # a whole number that every library takes


class QuickCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the line, and keep it: typer does not say whether -- was given."""
        ctx.meta["gpuyard.line"] = list(args)
        known = {name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)}
        try:
            return super().parse_args(ctx, completed(args, known, "" if "--param-file" in known else USUAL))
        except Exception as error:  # by what it has: some versions of typer bring their own click
            if not (flag := getattr(error, "option_name", "")):
                raise
            if not (answer := self._without_value(ctx, flag) if flag in known else _word_for(flag, args, known)):
                raise
            raise UserError(answer) from None

    def _without_value(self, ctx: Any, flag: str) -> str:
        """What to say of an option without its value; nothing of one that takes none."""
        import shlex  # here, because a line without mistakes needs none

        parameter = next(one for one in self.get_params(ctx) if flag in (*one.opts, *one.secondary_opts))
        field = getattr(getattr(getattr(parameter, "type_descriptor", None), "parameter_info", None), "job_field", None)
        how = f", as in {flag} {shlex.quote(field.example)}" if field else f": {flag} {parameter.metavar or 'VALUE'}"
        return "" if getattr(parameter, "is_flag", False) else f"{flag} needs a value{how}"

    def get_params(self, ctx: Any) -> list[Any]:
        return [_quick(parameter) for parameter in super().get_params(ctx)]


def _word_for(flag: str, line: Sequence[str], known: Collection[str]) -> str:
    if "--gpus" not in known:
        return ""
    from gpuyard.cli.jobs.job_script import word_for

    return word_for(flag, line)


class QuickGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return [_quick(parameter) for parameter in super().get_params(ctx)]


def _quick(parameter: Any) -> Any:
    if getattr(parameter, "_runtime_param", parameter) is None:
        parameter._runtime_param = _Quick(parameter)
    return parameter


class _Quick:
    def __init__(self, parameter: Any) -> None:
        self.kind = parameter.type_descriptor.annotation
        limits = parameter.type_descriptor.parameter_info
        self.least, self.most = limits.min, limits.max
        self.field: JobField | None = getattr(limits, "job_field", None)
        is_choice = isinstance(self.kind, type) and issubclass(self.kind, StrEnum)
        self._choices: tuple[str, ...] = tuple(self.kind) if is_choice else ()

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = self._read(value)
        if found is not _UNREAD:
            return found
        if (self.kind in (int, float) or self._choices) and isinstance(value, str):
            raise UserError(self._complaint(value, param))
        param._runtime_param = None  # typer makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _read(self, value: Any) -> Any:
        if get_origin(self.kind) is list and get_args(self.kind) == (str,) and isinstance(value, list | tuple):
            return list(value) if all(isinstance(item, str) for item in value) else _UNREAD
        if isinstance(value, str) and (self.kind in (str, int, float) or self._choices):
            try:
                value = self.kind(value)
            except ValueError:
                return _UNREAD
        if type(value) is not self.kind or (self.kind in (int, float) and not self._allows(value)):
            return _UNREAD
        return value

    def _complaint(self, text: str, param: Any) -> str:
        kind = WHOLE if self.kind is int else NUMBER
        name = param.opts[0] if param.opts[0].startswith("-") else param.metavar or param.name.upper()
        if self._choices:
            return f"{name} is one of {', '.join(self._choices)}, not '{text}'"
        digits = text.strip().lstrip("0")
        is_huge = kind is WHOLE and self.most is None and digits.isdecimal() and len(digits) >= len(str(_LARGEST))
        if self.field and not is_huge:
            return self.field.complaint(text)
        limits = number_range(self.least, _LARGEST if is_huge else self.most)
        usual = param.default if isinstance(param.default, int | float) else self.least or self.most or kind.example
        return f"{name} is a {kind.name}{limits}, as in {usual}, not '{text}'"

    def _allows(self, number: float) -> bool:
        if not math.isfinite(number) or (self.kind is int and abs(number) > _LARGEST):
            return False
        return (self.least is None or self.least <= number) and (self.most is None or number <= self.most)


class Entry(NamedTuple):
    """A command in the help, and where it is: `module:function`, or `module:app` for a group."""

    source: str
    help: str
    runs_a_command: bool = False  # whether the words after the first are a user's command, with options of its own
    prepares: bool = False  # whether `option_groups` is yet to be applied, since its module does without typer


class _Typer(typer.Typer):
    def command(self, *names: str | None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(*names, **{"cls": QuickCommand, **settings})


def command_group(help: str, cls: type[TyperGroup] = QuickGroup, **settings: Any) -> typer.Typer:
    """A group of commands; it prints its help if none is given, unless it is `invoke_without_command`."""
    alone = settings.get("invoke_without_command", False)
    group = _Typer(cls=cls, help=help, no_args_is_help=not alone, rich_markup_mode=None, **settings)
    if not alone:
        group.callback()(_no_options)  # so that a single command still has to be named
    return group


def _no_options() -> None:
    pass


class LazyCommand(QuickCommand):
    """A command of which only the help is known; it is imported when more is needed."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry

    def load(self) -> Any:
        module, _, attribute = self.entry.source.partition(":")
        found = getattr(importlib.import_module(f"gpuyard.cli.{module}"), attribute)
        if self.entry.prepares:
            from gpuyard.cli.common_options import option_groups

            found = option_groups(found)
        if isinstance(found, typer.Typer):
            found.info.name = self.name
            return typer.main.get_group(found)
        alone = _Typer(add_completion=False, rich_markup_mode=None)
        settings = {"allow_interspersed_args": not self.entry.runs_a_command}
        alone.command(self.name, context_settings=settings)(found)
        return typer.main.get_command(alone)

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        return self.load().make_context(*arguments, **extra)


class LazyGroup(QuickGroup):
    headings: dict[str, dict[str, Entry]]
    examples: dict[str, str]
    familiar: dict[str, str]  # our commands, by their names in other programs

    def __init__(self, **settings: Any) -> None:
        commands = {
            name: LazyCommand(name, entry) for entries in self.headings.values() for name, entry in entries.items()
        }
        super().__init__(**{**settings, "commands": commands})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command; names that other programs use for it are answered with ours."""
        if args and args[0] in self.familiar and args[0] not in self.commands:
            raise UserError(f"there is no command '{args[0]}' here; gpuyard {self.familiar[args[0]]} does that")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, entries in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("First steps"):
            formatter.write_dl(list(self.examples.items()), col_max=40)
