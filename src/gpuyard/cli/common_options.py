"""Options that most commands share:

which daemon, job ids, `--json`. `option_groups` makes options of a dataclass's fields.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from gpuyard.cli.jobs.job_options import OptionGroup
from gpuyard.errors import GpuyardError, UserError
from gpuyard.spec.job_field import JobField

if TYPE_CHECKING:
    from datetime import datetime

    from gpuyard.client.client import Client
    from gpuyard.config import Settings


def option(*words: str, **settings: Any) -> Any:
    """`typer.Option` from flags, metavar (if any) and help: `option("--out", "-o", "DIR", "Where files go.")`."""
    flags = [word for word in words[:-1] if word.startswith("-")]
    metavar = None if len(flags) == len(words) - 1 else words[-2]
    return typer.Option(*flags, metavar=metavar, help=words[-1], **settings)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, **settings)


NoWait = Annotated[bool, option("--no-wait", "Do not wait for a daemon that restarts (10m): fail at once.")]
Json = Annotated[bool, option("--json", "Print JSON instead of a table.")]


Command = Annotated[
    list[str] | None, argument("SCRIPT | -- COMMAND ARGS", "A script, or after -- what to run.", show_default=False)
]


def job_option(field: JobField) -> Any:
    """The option of a job's field."""
    declared = field.option
    assert declared is not None
    least, most = field.option_limits
    found = typer.Option(*declared.flags, metavar=declared.metavar, help=declared.help, min=least, max=most)
    found.job_field = field  # it has the words for messages about a value
    return found


def _hints(what: Any) -> dict[str, Any]:
    """Annotations, also such as name what is here and is not imported there, so that a module needs no typer."""
    return get_type_hints(what, localns={**globals(), **vars(sys.modules[what.__module__])}, include_extras=True)


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn parameters of a command that are dataclasses, or groups, into the options that their fields declare."""
    hints = _hints(command)
    own: list[Parameter] = []
    made: dict[str, tuple[Callable[..., Any], list[Parameter]]] = {}
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, OptionGroup)):
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


def subcommand(group: typer.Typer, name: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command with `option_groups` to a group."""
    return lambda command: group.command(name, **settings)(option_groups(command))


def _options(kind: Any) -> list[Parameter]:
    hints = _hints(kind)
    if issubclass(kind, OptionGroup):
        return [_parameter(name, None, hints[name]) for name in kind.names()]
    return [_parameter(field.name, field.default, hints[field.name]) for field in fields(kind)]


def _parameter(name: str, default: Any, annotation: Any) -> Parameter:
    default = Parameter.empty if default is MISSING else default
    if isinstance(field := getattr(annotation, "__metadata__", (None,))[0], JobField):
        annotation = Annotated[annotation.__origin__, job_option(field)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _inherited(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Take the value from before the command, as in `gpuyard --data-dir X ps`, unless the command has its own."""
    return _before(context, parameter.name) if value is None else value


def _inherited_local(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """The same, but refuse a host from there, as in `gpuyard --host X down`."""
    _refuse_host(context, _before(context, "host"))
    return _inherited(context, parameter, value)


def _reject_host(context: typer.Context, value: str | None) -> None:
    _refuse_host(context, _before(context, "host") if value is None else value)


def _refuse_host(context: typer.Context, host: str | None) -> None:
    if host is not None:
        raise UserError(f"{context.command_path} is for the machine that it runs on; run it there, without --host")


def _before(context: typer.Context, name: str | None) -> str | None:
    before, value = context.parent, None
    while value is None and before is not None:
        value, before = before.params.get(name or ""), before.parent
    return value


_DATA_DIR, _SOCKET = "Where the yard is kept ($GPUYARD_DATA_DIR).", "Where its daemon listens ($GPUYARD_SOCKET)."
DataDir = Annotated[str | None, option("--data-dir", "DIR", _DATA_DIR, callback=_inherited)]
Socket = Annotated[str | None, option("--socket", "PATH", _SOCKET, callback=_inherited)]
Host = Annotated[
    str | None, option("--host", "URL", "A daemon elsewhere: https://box:62333 ($GPUYARD_HOST).", callback=_inherited)
]
CaFile = Annotated[
    str | None, option("--ca-file", "FILE", "Trust these certificates there ($GPUYARD_CA).", callback=_inherited)
]

NoHost = Annotated[str | None, typer.Option("--host", metavar="URL", hidden=True, callback=_reject_host)]
"""For commands of this machine only: known, so that it can be refused with a reason."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    data_dir: Annotated[str | None, option("--data-dir", "DIR", _DATA_DIR, callback=_inherited_local)] = None
    socket: Socket = None

    def settings(self, **flags: Any) -> Settings:
        from gpuyard.config import settings

        return settings({"data_dir": self.data_dir, "socket": self.socket, **flags})

    def client(self, timeout: float = 30.0, no_wait: bool = False) -> Client:
        return DaemonOptions(self.data_dir, self.socket).local(timeout, no_wait)


@dataclass(frozen=True, slots=True)
class LocalOnlyOptions(LocalOptions):
    """The same, for commands without a --host of their own."""

    host: NoHost = None


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    data_dir: DataDir = None
    socket: Socket = None
    host: Host = None
    ca_file: CaFile = None

    def client(self, timeout: float = 30.0, no_wait: bool = False) -> Client:
        import os

        from gpuyard.cli.terminal import output
        from gpuyard.client.client import Client

        local = self.data_dir is not None or self.socket is not None
        if self.host is not None and local:
            raise UserError("--host is for a daemon elsewhere, --data-dir and --socket for one here; give one of them")
        if local or not (host := self.host or os.environ.get("GPUYARD_HOST")):
            return self.local(timeout, no_wait)
        return Client(host=host, ca=self.ca_file, timeout=timeout, say=output.say, no_wait=no_wait)

    def local(self, timeout: float = 30.0, no_wait: bool = False) -> Client:
        from gpuyard.cli.terminal import output
        from gpuyard.client.client import Client
        from gpuyard.config import daemon_socket

        socket = daemon_socket({"data_dir": self.data_dir, "socket": self.socket})
        return Client(socket, timeout=timeout, say=output.say, no_wait=no_wait)


def _complete(finished: bool) -> Callable[[typer.Context, str], Iterator[tuple[str, str]]]:
    def complete(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
        daemon = DaemonOptions(*(context.params.get(name) for name in ("data_dir", "socket", "host", "ca_file")))
        try:
            client = daemon.client(timeout=1.0)
            jobs = client.jobs(limit=200) + (client.history(limit=50) if finished else [])
        except GpuyardError:  # a shell that waits for a completion is no place for messages
            return
        for job in jobs:
            if job["id"].startswith(incomplete):
                yield job["id"], f"{job['state']} {job['name'] or ''}".strip()

    return complete


JobId = Annotated[str, argument("ID", "The job's id, as gpuyard ps shows it.", autocompletion=_complete(True))]
JobIds = Annotated[list[str], argument("ID", "The jobs' ids.", autocompletion=_complete(False))]
SomeJobIds = Annotated[
    list[str] | None, argument("ID", "The jobs' ids.", autocompletion=_complete(False), show_default=False)
]


def past_time(text: str, option: str = "--since") -> datetime:
    """The time that an option names: a date, a time, or how long ago; a time of day is the last such."""
    from datetime import UTC, datetime, timedelta

    from gpuyard.cli.terminal.text_table import instant
    from gpuyard.spec.times import last_clock
    from gpuyard.units import parse_duration

    try:
        if (found := last_clock(text, datetime.now().astimezone())) is not None:
            return found  # before lengths of time, of which 14:00 is one of 14 minutes
        try:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
        except (UserError, OverflowError):
            return instant(text)
    except ValueError as error:
        raise UserError(f"{option} '{text}' is no time; write 2026-11-03, '2026-11-03 14:00', 14:00 or 24h") from error
