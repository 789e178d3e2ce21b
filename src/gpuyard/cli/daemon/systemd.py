"""`gpuyard service`: run the daemon as a systemd service."""

from __future__ import annotations

import getpass
import os
import shlex
import time
from typing import Annotated, Any

from gpuyard.admin import service
from gpuyard.admin.service import Place
from gpuyard.cli.common_options import Json, LocalOnlyOptions, LocalOptions, NoHost, option, subcommand
from gpuyard.cli.daemon.up import StartOptions
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.errors import GpuyardError

app = command_group("Let systemd start the daemon, now and at every boot.")

_PATIENCE = 60.0

Whose = Annotated[
    bool | None,
    option("--system/--user", "The system's service, or your own (the system's for root).", show_default=False),
]


@subcommand(app, "install")
def install(
    daemon: LocalOptions,
    options: StartOptions,
    system: Whose = None,
    print_: Annotated[bool, option("--print", "Show the unit, and change nothing.")] = False,
    no_start: Annotated[bool, option("--no-start", "Write the unit only; start nothing.")] = False,
) -> None:
    """Write a unit for `gpuyard serve`, and start it.

    The flags that are given here are those of the daemon.
    """
    place = _place(system)
    given = {"data_dir": daemon.data_dir, "socket": daemon.socket}
    places = {name: os.path.abspath(os.path.expanduser(value)) for name, value in given.items() if value is not None}
    text = service.make_unit(place.system, {**places, **options.flags()})
    for variable in service.unseen_variables():
        output.say(
            f"gpuyard: warning: {variable} is set here, but the service will not see it; give a flag or use the file"
        )
    if print_:
        print(text, end="")
        return
    new = service.write(place.unit, text)
    print(f"{place.unit} {'is written' if new else 'was as it should be already'}")
    if no_start:
        output.say(f"nothing was started; {_how_to_start(place)} does that")
    else:
        _start(place, daemon.client())
    user = getpass.getuser()
    if not place.system and not service.lingers(user):
        output.say(f"it ends with your last login, and so do jobs; loginctl enable-linger {user} lets both go on")


def _start(place: Place, client: Client) -> None:
    done, said = service.ask(place.command("daemon-reload"))
    if not done:
        output.say(f"systemd cannot be told from here ({said.rstrip('.')}); where it runs: {_how_to_start(place)}")
        return
    pid = _daemon(client)
    if pid and service.manager_of(pid) is None:
        service.ask(place.command("enable", service.UNIT))
        output.say(
            f"a daemon runs already (process {pid}), which is not the service's; to change over, while jobs go on: "
            f"gpuyard down && {shlex.join(place.command('start', service.UNIT))}"
        )
        return
    step = ("enable", "--now") if pid is None else ("enable",)
    done, said = service.ask(place.command(*step, service.UNIT))
    if done and pid is not None:
        done, said = service.ask(place.command("restart", service.UNIT))
    if not done:
        raise GpuyardError(f"the service could not be started: {said} (see {_log(place)})")
    _await(place, client)
    print(f"the service is {'started' if pid is None else 'started anew; jobs go on'}, and starts at every boot")


def _await(place: Place, client: Client) -> None:
    """Wait until the daemon answers: to systemd a process that has begun is active."""
    end = time.monotonic() + _PATIENCE
    while _daemon(client) is None:
        state = _said(place, "is-active")
        if state != "active" or time.monotonic() > end:
            raise GpuyardError(f"the service was started, but does not answer; it is {state} (see {_log(place)})")
        time.sleep(0.1)


@app.command("uninstall")
def uninstall(system: Whose = None, host: NoHost = None) -> None:
    """End the service and remove its unit; jobs go on running."""
    place = _place(system)
    if not place.unit.exists():
        output.say(f"there is no {place.unit}; there is nothing to remove")
        return
    done, said = service.ask(place.command("disable", "--now", service.UNIT))
    service.remove(place.unit)
    service.ask(place.command("daemon-reload"))
    print(f"{place.unit} is removed; jobs go on running, and the next daemon takes them up")
    if not done:
        output.say(f"systemd cannot be told from here ({said.rstrip('.')}); if the daemon runs, gpuyard down ends it")


@subcommand(app, "status")
def status(daemon: LocalOnlyOptions, json: Json = False) -> None:
    """Tell which units there are, and whether they run."""
    from gpuyard.cli.terminal.text_table import print_rows, print_table

    found = [_facts(place, daemon.client()) for place in (Place(False), Place(True)) if place.unit.is_file()]
    if json:
        print_rows(found)
    elif not found:
        output.say("no unit is installed; gpuyard service install makes one")
    else:
        rows = [[fact["unit"], fact["enabled"], fact["active"], fact["kill_mode"] or "-"] for fact in found]
        print_table(("UNIT", "ENABLED", "ACTIVE", "KILLMODE"), rows)
        for fact in found:
            if fact["kill_mode"] != "process":
                output.say(f"gpuyard: warning: {fact['unit']} ends jobs with the daemon; install it anew to mend that")


def _facts(place: Place, client: Client) -> dict[str, Any]:
    unit = service.Unit(place.unit, place.unit.read_text(errors="replace"))
    pid = _daemon(client)
    return {
        "unit": str(place.unit), "enabled": _said(place, "is-enabled"), "active": _said(place, "is-active"),
        "kill_mode": unit.value("KillMode") or None, "command": unit.value("ExecStart"),
        "pid": pid if pid and service.manager_of(pid) == place else None,
    }  # fmt: skip


def _said(place: Place, question: str) -> str:
    """A one-word answer of systemd; `unknown` where there is none."""
    _, said = service.ask(place.command(question, service.UNIT))
    return said if said and " " not in said else "unknown"


def _daemon(client: Client) -> int | None:
    try:
        return int(client.status()["pid"])
    except GpuyardError:
        return None


def _place(system: bool | None) -> Place:
    return Place(os.geteuid() == 0 if system is None else system)


def _how_to_start(place: Place) -> str:
    reload, enable = place.command("daemon-reload"), place.command("enable", "--now", service.UNIT)
    return f"{shlex.join(reload)} && {shlex.join(enable)}"


def _log(place: Place) -> str:
    return f"journalctl {'' if place.system else '--user '}-u {service.UNIT}"
