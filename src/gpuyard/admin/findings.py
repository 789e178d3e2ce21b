"""What a check is given, and what it finds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.config import Settings, settings
from gpuyard.errors import GpuyardError, UserError

State = Literal["ok", "warn", "bad"]


class Finding(NamedTuple):
    check: str
    state: State
    found: str
    mend: str = ""
    """What to do; empty where all is well."""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warn(check: str, found: str, mend: str = "") -> Finding:
    """It works, but with a surprise."""
    return Finding(check, "warn", found, mend)


def bad(check: str, found: str, mend: str = "") -> Finding:
    """It does not work, or will not for long."""
    return Finding(check, "bad", found, mend)


@dataclass(slots=True)
class Installation:
    """A data directory, and its daemon if it answers."""

    settings: Settings
    problem: str = ""
    """What is wrong with the settings; then these are the defaults."""
    client: Client = field(init=False)
    status: dict[str, Any] | None = None
    silence: str = ""
    """Why no daemon answers."""
    refused: bool = False
    """Whether there is one, but not for us."""

    def __post_init__(self) -> None:
        self.client = Client(self.settings.socket, timeout=10.0)
        try:
            self.status = self.client.status()
        except NoDaemon as error:
            self.silence = str(error)
        except (GpuyardError, OSError) as error:
            self.silence, self.refused = str(error), True

    @property
    def pid(self) -> int | None:
        return int(self.status["pid"]) if self.status else None


def find_installation(flags: dict[str, Any]) -> Installation:
    """The installation, also if the settings are invalid."""
    try:
        return Installation(settings(flags))
    except UserError as error:
        return Installation(_without(flags), str(error))


def _without(flags: dict[str, Any]) -> Settings:
    """The paths, as far as they are known without the file, or without the environment either."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    places = {name: os.environ[name] for name in ("GPUYARD_DATA_DIR", "GPUYARD_SOCKET") if os.environ.get(name)}
    return settings(flags, {**variables, **places, "GPUYARD_CONFIG": os.devnull})
