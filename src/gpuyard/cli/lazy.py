"""Commands that are imported when they run; until then a name and a line of help stand for them."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer

from gpuyard.cli.quick import QuickCommand, QuickGroup
from gpuyard.errors import UserError


class Entry(NamedTuple):
    """A command in the root's help, and where it is: `module:function`, or `module:app` for one with commands below."""

    source: str
    help: str
    runs_a_command: bool = False
    """Whether what follows the first word is somebody's own command, with options of its own."""


class Later(QuickCommand):
    """Stands for a command: what is asked of it beyond its help, the real one answers."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry

    def load(self) -> Any:
        """The real command."""
        module, _, attribute = self.entry.source.partition(":")
        found = getattr(importlib.import_module(f"gpuyard.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            found.info.name = self.name
            return typer.main.get_group(found)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = {"allow_interspersed_args": not self.entry.runs_a_command}
        alone.command(self.name, cls=QuickCommand, context_settings=settings)(found)
        return typer.main.get_command(alone)

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """The context in which the real command runs, completes or prints its help."""
        return self.load().make_context(*arguments, **extra)


class LazyGroup(QuickGroup):
    """A group whose commands stand under headings, and are imported when they run."""

    headings: dict[str, dict[str, Entry]]
    examples: dict[str, str]
    familiar: dict[str, str]
    """Commands of ours, by what people know them as from elsewhere."""

    def __init__(self, **settings: Any) -> None:
        commands = {name: Later(name, entry) for entries in self.headings.values() for name, entry in entries.items()}
        super().__init__(**{**settings, "commands": commands})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; who knows it by another name is told ours."""
        if args and args[0] in self.familiar and args[0] not in self.commands:
            raise UserError(f"there is no command '{args[0]}' here; gpuyard {self.familiar[args[0]]} does that")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, heading by heading."""
        for heading, entries in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write how to begin."""
        with formatter.section("First steps"):
            formatter.write_dl(list(self.examples.items()), col_max=40)
