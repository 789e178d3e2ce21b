"""`gpuyard config`, `doctor`, `backup` and `restore`: settings, checks and backups of this machine."""

from __future__ import annotations

import importlib
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import Json, LocalOnlyOptions, NoHost, argument, option, option_groups, subcommand
from gpuyard.cli.daemon.up import warn_of_variables
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.config import config_file, explained
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.admin.backup import Losses
    from gpuyard.admin.service import Place
    from gpuyard.config import Settings

_NAMED = 10
_PATIENCE = 60.0


config_app = command_group("Show the settings, and where each comes from.")


@subcommand(config_app, "show")
def show_config(daemon: LocalOnlyOptions, json: Json = False) -> None:
    """Show every setting, its value and where it comes from.

    They are those that a daemon started here and now would have; one that runs may have been given flags.
    """
    from gpuyard.cli.terminal.text_table import print_rows, print_table

    found = explained({"data_dir": daemon.data_dir, "socket": daemon.socket})
    if json:
        found = [one._replace(value=str(one.value)) if isinstance(one.value, Path) else one for one in found]
        print_rows([one._asdict() for one in found])
    else:
        forms = {"flag": "flag {}", "environment": "variable {}", "file": "{}"}
        rows = [
            (one.name, _shown(one.name, one.value), forms.get(one.origin, one.origin).format(one.source))
            for one in found
        ]
        print_table(("SETTING", "VALUE", "FROM"), rows)
    warn_of_variables()


@config_app.command("path")
def config_path(host: NoHost = None) -> None:
    """Print where the settings' file is, or would be."""
    file = config_file()
    print(file)
    if not file.exists():
        output.say("there is no such file yet; docs/reference/queue.md tells what it may hold")


def _shown(name: str, value: Any) -> str:
    from gpuyard.config import DURATIONS, SIZES
    from gpuyard.units import format_size

    if isinstance(value, bool):
        return str(value).lower()
    if name in DURATIONS:
        return "0 (for ever)" if name.startswith("keep_") and not value else _duration(value)
    if name in SIZES:
        return format_size(value)
    return "-" if value is None else str(value) or "-"


def _duration(seconds: float) -> str:
    """`90d`, `1d`, `10s`: the largest unit that leaves a whole number, so that it can be read back."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.6g}s"


@option_groups
def doctor(daemon: LocalOnlyOptions, json: Json = False) -> None:
    """Look for what is wrong on this machine, and tell how to mend it."""
    from gpuyard.cli.terminal.text_table import print_rows, visible

    examine = importlib.import_module("gpuyard.admin.doctor").examine  # which knows nearly everything
    findings = []
    for found in examine({"data_dir": daemon.data_dir, "socket": daemon.socket}):
        findings.append(found)
        if not json:
            print(f"{found.state:<5} {found.check:<15} {visible(found.found)}", flush=True)
            if found.mend:
                print(f"{'':<21} -> {visible(found.mend)}", flush=True)
    bad, warned = (sum(found.state == state for found in findings) for state in ("bad", "warn"))
    if json:
        print_rows([found._asdict() for found in findings])
    else:
        output.say(_verdict(bad, warned))
    raise typer.Exit(1 if bad else 0)


def _verdict(bad: int, warned: int) -> str:
    if not bad and not warned:
        return "all is well"
    parts = [output.many(bad, "thing") + " wrong"] * bool(bad) + [output.many(warned, "warning")] * bool(warned)
    return ", ".join(parts)


@option_groups
def backup(
    daemon: LocalOnlyOptions,
    file: Annotated[Path, argument("FILE", "A tar; one that ends in .gz is compressed.")],
    logs: Annotated[bool, option("--logs", "Also what jobs printed.")] = False,
    json: Json = False,
) -> None:
    """Write the queue and its history to a file, while the daemon runs."""
    from gpuyard.units import format_size

    making = importlib.import_module("gpuyard.admin.backup")  # which knows the core, and so numpy
    manifest = making.make_backup(daemon.settings(), file, logs=logs)
    if json:
        output.print_json({"file": str(file), **asdict(manifest)})
        return
    jobs, events = output.many(manifest.jobs, "job"), output.many(manifest.events, "event")
    more = f"{', with their output' if logs else ''}, {format_size(file.stat().st_size)}"
    print(f"{file}: {jobs} ({manifest.open_jobs:,} not over), {events}{more}; looked through, and sound")
    output.say("it holds the environments of jobs, which may have secrets in them; keep it as safe as the queue itself")


@option_groups
def restore(
    daemon: LocalOnlyOptions,
    file: Annotated[Path, argument("FILE", "What gpuyard backup wrote.")],
    force: Annotated[bool, option("--force", "Also if jobs are lost by it.")] = False,
    json: Json = False,
) -> None:
    """Go back to a backup; the former store is kept beside it."""
    settings = daemon.settings()
    backups = importlib.import_module("gpuyard.admin.backup")
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(settings.data_dir, os.W_OK | os.X_OK):
        raise UserError(f"you may not change {settings.data_dir}; be its owner, or give another --data-dir")
    with (
        tempfile.TemporaryDirectory(prefix=".gpuyard-restore-", dir=settings.data_dir) as folder,
        backups.open_backup(file, Path(folder)) as found,
    ):
        _refuse_losses(backups.losses(settings, found), force)
        with _without_daemon(settings, daemon.client()) as restarted, backups.alone(settings.data_dir):
            lost = backups.losses(settings, found)  # once more, now that nothing can change any longer
            _refuse_losses(lost, force)
            aside = backups.restore(settings, found, lost.newest)
    facts = {**asdict(found.manifest), "former": str(aside) if aside else None, **asdict(lost), "daemon": restarted}
    output.print_either(json, facts, lambda: _print_restored(facts, settings))


@option_groups
def recover(daemon: LocalOnlyOptions, json: Json = False) -> None:
    """Save what can be read of a damaged store; it is kept beside the new one."""
    settings = daemon.settings()
    if not settings.database.exists():
        raise UserError(f"there is nothing to recover: {settings.database} does not exist")
    backups = importlib.import_module("gpuyard.admin.backup")
    recovery = importlib.import_module("gpuyard.admin.recovery")
    facts: dict[str, Any] = {}
    try:
        with _without_daemon(settings, daemon.client()) as restarted, backups.alone(settings.data_dir):
            facts = {**asdict(recovery.recover(settings)), "daemon": restarted}
    finally:
        if facts:  # also where the daemon does not start again
            output.print_either(json, facts, lambda: _print_recovered(facts))


def _print_recovered(facts: dict[str, Any]) -> None:
    jobs, events = output.many(facts["jobs"], "job"), output.many(facts["events"], "event")
    print(f"recovered {events} and {jobs}; the damaged store is {facts['former']}")
    if facts["dropped"]:
        output.say(f"left out, since they make no sense without what is lost: {output.many(facts['dropped'], 'event')}")
    if facts["cancelled"]:
        output.say(f"cancelled, since it is not known whether they have run: {_named(facts['cancelled'])}")
    if facts["held"]:
        output.say(f"held, since it is not known whether they were held, edited or begun: {_named(facts['held'])}")
    if facts["running"]:
        output.say(f"running, by their processes: {_named(facts['running'])}")
    if facts["last"] < facts["expected"]:
        lost = output.many(facts["expected"] - facts["last"], "event")
        output.say(f"the last {lost} cannot be read; gpuyard up --accept-loss goes on without them")
    elif facts["daemon"]:
        print(f"the daemon is up again, pid {facts['daemon']['pid']}; jobs went on running")


@contextmanager
def _without_daemon(settings: Settings, client: Client) -> Iterator[dict[str, Any]]:
    """Stop a running daemon, and start it again as it was; jobs go on. Yields its new status."""
    from gpuyard.admin.service import manager_of
    from gpuyard.cli.daemon.up import LaunchCommand, launch_daemon, stop

    restarted: dict[str, Any] = {}
    try:
        status = client.status()
    except NoDaemon:
        yield restarted
        return
    pid, place = status["pid"], status["data_dir"]
    if place != str(settings.data_dir):
        raise UserError(f"the daemon at {client.socket} keeps its queue in {place}; say --data-dir {place}")
    if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
        raise UserError("the daemon is somebody else's; whoever runs it can go back to a backup")
    launch, manager = LaunchCommand.of(pid), manager_of(pid)

    def start_again() -> dict[str, Any]:
        return launch_daemon(launch, settings, client)[0] if manager is None else _start_service(manager, client)

    stop(client)
    try:
        yield restarted
    except BaseException:  # the queue must go on, with the store that exists
        try:
            start_again()
        except GpuyardError as error:  # what came before says more
            output.say(f"gpuyard: error: {error}")
        raise
    restarted |= start_again()


def _start_service(manager: Place, client: Client) -> dict[str, Any]:
    from gpuyard.admin.service import UNIT, ask

    done, said = ask(manager.command("start", UNIT))
    if not done:
        see = shlex.join(manager.command("status", UNIT))
        raise GpuyardError(f"the service cannot be started again: {said}; see {see}")
    return _await(client)


def _await(client: Client) -> dict[str, Any]:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.status()
        except NoDaemon:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _refuse_losses(lost: Losses, force: bool) -> None:
    if force or not (lost.unknown or lost.out_of_step):
        return
    reasons = []
    if lost.unknown:
        reasons.append(f"it does not know of {_named(lost.unknown)} (running or waiting now)")
    if lost.out_of_step:
        reasons.append(f"according to it {_named(lost.out_of_step)} did not run yet (running now)")
    raise UserError(
        f"jobs would be lost by going back to this backup: {'; '.join(reasons)}. Wait for them or cancel them first; "
        "with --force they are given up: what runs goes on and keeps its GPUs, without its limits and options"
    )


def _print_restored(facts: dict[str, Any], settings: Settings) -> None:
    from gpuyard.cli.terminal.text_table import clock

    print(f"the queue is as it was on {clock(facts['made_at'])}: {output.many(facts['jobs'], 'job')}")
    if facts["former"]:
        print(f"the former store is {facts['former']}")
    given_up = [*facts["unknown"], *facts["out_of_step"]]
    if given_up:
        kept = f"what runs goes on and keeps its GPUs, and output stays in {settings.jobs_dir}"
        output.say(f"given up: {_named(given_up)}; {kept}")
    if facts["revived"]:
        revived = _named(facts["revived"])
        output.say(f"over meanwhile, but not over in the backup: {revived}; what had begun does not begin again")
    if facts["daemon"]:
        print(f"the daemon is up again, pid {facts['daemon']['pid']}; jobs went on running")
    else:
        output.say("no daemon runs; gpuyard up starts one")


def _named(jobs: Sequence[str]) -> str:
    """`jobs 3, 5 and 7 more`."""
    shown = ", ".join(jobs[:_NAMED])
    more = f" and {len(jobs) - _NAMED:,} more" if len(jobs) > _NAMED else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {shown}{more}"
