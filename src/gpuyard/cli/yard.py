"""Which yard is meant: the options of every command that talks to a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gpuyard.client import Client
    from gpuyard.config import Settings


def _as_given_before(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """What stands before the command, as in `gpuyard --data-dir X ps`, holds unless the command has its own."""
    before: Any = context.parent
    while value is None and before is not None:
        value = before.params.get(parameter.name)
        before = before.parent
    return value


DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir", metavar="DIR", callback=_as_given_before, help="Where the yard is kept ($GPUYARD_DATA_DIR)."
    ),
]
Socket = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH", callback=_as_given_before, help="Where its daemon listens ($GPUYARD_SOCKET)."
    ),
]


@dataclass(frozen=True, slots=True)
class Yard:
    """The options that say which yard is meant."""

    data_dir: DataDir = None
    socket: Socket = None

    def settings(self, **flags: Any) -> Settings:
        """The settings of the yard, with what else is given by flags."""
        from gpuyard.config import settings

        return settings({"data_dir": self.data_dir, "socket": self.socket, **flags})

    def client(self, timeout: float = 30.0) -> Client:
        """A client of the yard's daemon."""
        from gpuyard.client import Client
        from gpuyard.config import daemon_socket

        return Client(daemon_socket({"data_dir": self.data_dir, "socket": self.socket}), timeout=timeout)


def _complete(finished: bool) -> Callable[[typer.Context, str], Iterator[tuple[str, str]]]:
    def complete(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
        from gpuyard.errors import GpuyardError

        yard = Yard(context.params.get("data_dir"), context.params.get("socket"))
        try:
            client = yard.client(timeout=1.0)
            jobs = client.jobs(limit=200) + (client.history(limit=50) if finished else [])
        except GpuyardError:  # a shell that waits for a completion is no place for messages
            return
        for job in jobs:
            if job["id"].startswith(incomplete):
                yield job["id"], f"{job['state']} {job['name'] or ''}".strip()

    return complete


JobId = Annotated[
    str, typer.Argument(metavar="ID", autocompletion=_complete(True), help="The job's id, as gpuyard ps shows it.")
]
JobIds = Annotated[list[str], typer.Argument(metavar="ID", autocompletion=_complete(False), help="The jobs' ids.")]
SomeJobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", autocompletion=_complete(False), show_default=False, help="The jobs' ids."),
]
