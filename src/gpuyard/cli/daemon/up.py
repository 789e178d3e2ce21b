"""`gpuyard serve`, `up` and `down`: start and stop the daemon."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpuyard.cli.common_options import LocalOnlyOptions, LocalOptions, option, option_groups
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon
from gpuyard.config import FLAGS
from gpuyard.errors import GpuyardError, UserError
from gpuyard.spec.notation import absolute

if TYPE_CHECKING:
    from gpuyard.config import Settings

ACCEPT_LOSS = "--accept-loss"
_PATIENCE = 60.0  # seconds that a daemon may take to come or to go

AcceptLoss = Annotated[bool, option(ACCEPT_LOSS, "Start though the store has lost writes that were acknowledged.")]
Json = Annotated[bool, option("--json", "Print the daemon's status as JSON.")]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Settings of a daemon as flags; those not given come from the environment and the settings file."""

    simulate_gpus: Annotated[
        str | None, option("--simulate-gpus", "4x16G", "Simulated GPUs in place of real ones.")
    ] = None
    policy: Annotated[str | None, option("--policy", "P", "Who is next: see gpuyard policies (multifactor).")] = None
    discipline: Annotated[str | None, option("--discipline", "D", "Who may go ahead (easy).")] = None
    placement: Annotated[str | None, option("--placement", "P", "Which GPUs (pack).")] = None
    admission: Annotated[
        str | None, option("--admission", "BY", "Who may share a GPU: by requests, or by usage (requests).")
    ] = None
    bind: Annotated[str | None, option("--host", "ADDRESS", "Where to listen on TCP (127.0.0.1).")] = None
    port: Annotated[str | None, option("--port", "PORT", "The port there; 0: any, none: no TCP (62333).")] = None
    tokens: Annotated[
        str | None, option("--token", "WHEN", "Who needs a token on TCP: auto, required or none (auto).")
    ] = None
    tls_cert: Annotated[str | None, option("--tls-cert", "FILE", "Speak TLS on TCP, with this certificate.")] = None
    tls_key: Annotated[str | None, option("--tls-key", "FILE", "Its key.")] = None
    page: Annotated[str | None, option("--page", "on|off", "Whether there is a page, on TCP (on).")] = None
    force: Annotated[bool, option("--force", "Also with a trained policy that has not passed its gate.")] = False

    def flags(self) -> dict[str, str]:
        given = {name: value for name, value in asdict(self).items() if value is not None and name != "force"}
        if "://" in given.get("bind", ""):
            raise UserError(
                f"--host is here the address to listen at, as in 127.0.0.1, and {self.bind} is none; a daemon is "
                "started on the machine that it is to run on"
            )
        files = {name: os.path.abspath(given[name]) for name in ("tls_cert", "tls_key") if given.get(name)}
        force = {"force_policy": "true"} if self.force else {}
        return given | files | force | ({"policy": absolute(self.policy)} if self.policy else {})


@option_groups
def serve(daemon: LocalOptions, options: StartOptions, accept_loss: AcceptLoss = False) -> None:
    """Run the daemon in the foreground."""
    settings = daemon.settings(**options.flags())
    warn_of_variables()
    importlib.import_module("gpuyard.engines.local.privileges").raise_limits()  # before much is imported
    importlib.import_module("gpuyard.server.serve").serve(settings, accept_loss=accept_loss)


@option_groups
def up(daemon: LocalOptions, options: StartOptions, accept_loss: AcceptLoss = False, json: Json = False) -> None:
    """Start the daemon in the background."""
    settings = daemon.settings(**options.flags())
    warn_of_variables()
    client = Client(settings.socket)
    try:
        found, started = client.status(), False
    except NoDaemon:
        found, started = start(settings, client, options, accept_loss)
    if options.flags() and not started:
        output.say("gpuyard: warning: it was up already, so the flags change nothing; gpuyard down comes first")
    if json:
        output.print_json(found)
    else:
        from gpuyard.cli.daemon.status import describe_gpus

        what = f"{describe_gpus(found)}, policy {found['policy']}, pid {found['pid']}"
        where = f", {found['url']}" if found.get("url") else ""
        print(f"gpuyard {'is up' if started else 'was up already'}: {what}, socket {settings.socket}{where}")
        if address := (found.get("page") or {}).get("url"):
            print(f"its page is at {address}")
    for sentence in found.get("warnings", ()):
        output.say(f"gpuyard: warning: {sentence}")


@option_groups
def down(daemon: LocalOnlyOptions, json: Json = False) -> None:
    """End the daemon; jobs go on, and the next daemon takes them up."""
    client = daemon.client()
    try:
        found = stop(client)
    except NoDaemon:
        data_dir = daemon.settings().data_dir
        if os.access(data_dir / "daemon.lock", os.R_OK | os.W_OK):
            with importlib.import_module("gpuyard.admin.backup").alone(data_dir):
                pass  # else one that hangs has it
        output.say(f"no daemon answers at {client.socket}; there is nothing to end")
        return
    running = found["jobs"].get("running", 0)
    if json:
        output.print_json(found)
    else:
        goes = "goes on" if running == 1 else "go on"
        print("gpuyard is down" + (f"; {output.many(running, 'job')} {goes} running" if running else "; no job runs"))


def warn_of_variables() -> None:
    from gpuyard.config import unknown_variables

    for sentence in unknown_variables():
        output.say(f"gpuyard: warning: {sentence}")


def start(
    settings: Settings, client: Client, options: StartOptions, accept_loss: bool = False
) -> tuple[dict[str, Any], bool]:
    command = [sys.executable, "-P", "-m", "gpuyard", "serve"]
    command += ["--data-dir", str(settings.data_dir), "--socket", str(settings.socket)]
    for name, value in options.flags().items():
        command.append(FLAGS.get(name, f"--{name.replace('_', '-')}"))
        command += [] if name == "force_policy" else [value]
    command += [ACCEPT_LOSS] * accept_loss
    return launch_daemon(LaunchCommand(command, None, "/"), settings, client)


class LaunchCommand(NamedTuple):
    command: list[str]
    environment: dict[str, str] | None
    directory: str

    @classmethod
    def of(cls, pid: int) -> LaunchCommand:
        here = Path(f"/proc/{pid}")
        command, variables = ((here / name).read_bytes().split(b"\0")[:-1] for name in ("cmdline", "environ"))
        pairs = (os.fsdecode(variable).partition("=") for variable in variables)
        words = [os.fsdecode(word) for word in command if os.fsdecode(word) != ACCEPT_LOSS]  # that was said for once
        return cls(words, {k: v for k, _, v in pairs}, os.readlink(here / "cwd"))


def launch_daemon(launch: LaunchCommand, settings: Settings, client: Client) -> tuple[dict[str, Any], bool]:
    """Start a daemon in its own session and wait for an answer; False: another daemon answered."""
    from gpuyard.server.security import prepare_data_dir

    prepare_data_dir(settings.data_dir, settings.shared)
    log = settings.data_dir / "daemon.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as sink:
        begin = sink.tell()
        daemon = subprocess.Popen(
            launch.command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            env=launch.environment, cwd=launch.directory, start_new_session=True,
        )  # fmt: skip
    try:
        return _await_answer(daemon, client, log, begin)
    except KeyboardInterrupt:  # who asked for it has changed their mind
        daemon.terminate()
        daemon.wait()
        raise


def _await_answer(
    daemon: subprocess.Popen[bytes], client: Client, log: Path, begin: int
) -> tuple[dict[str, Any], bool]:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        died = daemon.poll() is not None  # looked at first: it may lose a race against another that now answers
        try:
            return client.status(), not died
        except NoDaemon:
            if died:
                _print_log_tail(log, begin)
                raise GpuyardError("the daemon ended as it started; its last words are above") from None
        time.sleep(0.02)
    raise GpuyardError(f"the daemon (pid {daemon.pid}) does not answer after {_PATIENCE:.0f} s; see {log}")


def stop(client: Client) -> dict[str, Any]:
    """Stop the daemon and wait until it is gone; returns its last status."""
    from gpuyard.engines.local.processes import look

    found = client.status()
    client.shutdown()
    end = time.monotonic() + _PATIENCE
    while ((process := look(found["pid"])) is not None and not process.dead) or _answers(client):
        if time.monotonic() > end:
            raise GpuyardError(f"the daemon (pid {found['pid']}) has not ended within {_PATIENCE:.0f} s; see its log")
        time.sleep(0.02)
    return found


def _print_log_tail(log: Path, begin: int) -> None:
    with log.open("rb") as stream:
        stream.seek(begin)
        for line in stream.read().decode(errors="replace").splitlines()[-20:]:
            output.say(line)


def _answers(client: Client) -> bool:
    try:
        client.status()
    except GpuyardError:
        return False
    return True
