"""`gpuyard kubernetes scheduler`, `webhook` and `dashboard`: processes that serve a cluster until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.common_options import option_groups
from gpuyard.cli.kubernetes.connection import USUAL, ClusterOptions, scheduler_at
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.kubernetes.names import SCHEDULER
from gpuyard.units import parse_duration, parse_size

if TYPE_CHECKING:
    from gpuyard.core.planner import OrderedPlanner
    from gpuyard.kubernetes.settings import Settings


@dataclass(frozen=True, slots=True)
class Deciding:
    """How it is decided."""

    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="POLICY", help="Who is next: any policy of gpuyard, also learned:FILE."),
    ] = None
    discipline: Annotated[
        str | None, typer.Option("--discipline", metavar="NAME", help="Who may pass whom (easy: backfilling).")
    ] = None
    placement: Annotated[
        str | None, typer.Option("--placement", metavar="NAME", help="On which GPUs (pack: the fullest that fit).")
    ] = None
    force_policy: Annotated[
        bool, typer.Option("--force-policy", help="Run a learned policy though it did not pass its gate.")
    ] = False
    admission: Annotated[
        str | None,
        typer.Option("--admission", metavar="requests|usage", help="What counts of those who share (requests)."),
    ] = None
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Who knows what GPUs do ($GPUYARD_PROMETHEUS_URL)."),
    ] = None
    sample_period: Annotated[
        str, typer.Option("--sample-period", metavar="TIME", help="How often Prometheus is asked.")
    ] = "1s"
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help="Of GPUs of which nobody knows how much."),
    ] = None
    gpu_buffer: Annotated[
        str | None,
        typer.Option("--gpu-buffer", metavar="SIZE", help="What shares leave free of a GPU (512M by usage, else 0)."),
    ] = None
    default_duration: Annotated[
        str | None, typer.Option("--default-duration", metavar="TIME", help="Of pods of which nothing is known (1h).")
    ] = None
    no_preemption: Annotated[bool, typer.Option("--no-preemption", help="Evict nobody for a higher PriorityClass.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class Running:
    """How it runs."""

    scheduler_name: Annotated[
        str | None,
        typer.Option("--scheduler-name", metavar="NAME", help="Whose pods (gpuyard; shadowed: default-scheduler)."),
    ] = None
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A YAML file with settings; options come first.")
    ] = None
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Of /metrics /healthz /readyz /cluster (127.0.0.1:10260)."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide, log what it would be, and write nothing.")] = False
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Beside another scheduler: tell what would be done for its pods.")
    ] = False
    no_leader_elect: Annotated[
        bool, typer.Option("--no-leader-elect", help="There is no other replica: hold no lease.")
    ] = False
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="Of the lease (gpuyard-system; else kube-system)."),
    ] = None
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="NAME", help="What this replica is called (its host's name).")
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every decision.")] = False


@option_groups
def scheduler(reaching: ClusterOptions, deciding: Deciding, running: Running) -> None:
    """Schedule pods with schedulerName gpuyard: whole GPUs, shares by memory, gangs; until Ctrl-C."""
    import logging
    import os
    import signal
    import socket

    from gpuyard.kubernetes.gpu_usage import GpuUsage
    from gpuyard.kubernetes.leader_election import own_namespace
    from gpuyard.kubernetes.scheduler import Scheduler
    from gpuyard.kubernetes.status_server import StatusServer
    from gpuyard.kubernetes.workload_history import WorkloadHistory, read

    settings, period = _settings(deciding, running), _period(deciding.sample_period)
    level = logging.INFO if running.verbose or settings.silent else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    planner = _planner(settings)
    api = reaching.api()
    version = api.get("/version").get("gitVersion", "?")
    settings = replace(settings, namespace=running.namespace or own_namespace(api))
    learned = WorkloadHistory(settings.memory_margin)
    learned.load(read(api, settings.namespace))
    identity = running.identity or f"{socket.gethostname()}-{os.getpid()}"
    observed = GpuUsage(settings, learned, period=period)
    found = Scheduler(api, settings, planner, observed, identity=identity)
    serving = StatusServer(found, settings.listen)
    logging.getLogger("gpuyard.kubernetes").warning(
        "scheduling pods of %s on %s (%s) by %s, admission by %s; serving at port %d%s", settings.scheduler,
        api.connection.server, version, planner.text, settings.admission, serving.port,
        "; nothing is written" if settings.silent else "",
    )  # fmt: skip
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: found.stop())
    try:
        found.start()
        found.run()
    finally:
        serving.close()
        found.close()


def _period(text: str) -> float:
    if not 0 < (found := parse_duration(text)) < float("inf"):
        raise UserError(f"--sample-period must be a time above 0, not {text}")
    return found


def _settings(deciding: Deciding, running: Running) -> Settings:
    import os

    from gpuyard.kubernetes.settings import settings_of

    size = {name: parse_size(text) if text is not None else None
            for name, text in (("gpu_memory", deciding.gpu_memory), ("gpu_buffer", deciding.gpu_buffer))}  # fmt: skip
    return settings_of(
        running.config,
        scheduler=running.scheduler_name or ("default-scheduler" if running.shadow else None),
        policy=deciding.policy,
        discipline=deciding.discipline,
        placement=deciding.placement,
        force_policy=deciding.force_policy or None,
        admission=deciding.admission,
        prometheus=deciding.prometheus or os.environ.get("GPUYARD_PROMETHEUS_URL"),
        default_duration=parse_duration(deciding.default_duration) if deciding.default_duration else None,
        preemption=False if deciding.no_preemption else None,
        dry_run=running.dry_run or None,
        shadow=running.shadow or None,
        elect=False if running.no_leader_elect else None,
        listen=running.listen,
        **size,
    )


def _planner(settings: Settings) -> OrderedPlanner:
    """The planner that the settings ask for; a trained policy must have passed its gate."""
    from gpuyard.policies.deployment import serve_policy

    return serve_policy(
        settings.policy, discipline=settings.discipline, placement=settings.placement, lenient=True,
        force=settings.force_policy,
    )  # fmt: skip


def webhook(
    cert: Annotated[
        str,
        typer.Option("--cert", "--tls-cert", metavar="FILE", help="The certificate; a new one is taken up."),
    ],
    key: Annotated[str, typer.Option("--key", "--tls-key", metavar="FILE", help="Its key.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the API server finds it; port 0: any.")
    ] = "127.0.0.1:8443",
    scheduler_name: Annotated[
        str, typer.Option("--scheduler-name", metavar="NAME", help="Whose pods are changed.")
    ] = SCHEDULER,
    set_scheduler: Annotated[
        bool,
        typer.Option(
            "--set-scheduler", help="Give pods that say gpuyard.dev/gpu-memory, and no scheduler, that scheduler."
        ),
    ] = False,
) -> None:
    """Answer an API server's admission reviews: pods that share a GPU get NVIDIA_VISIBLE_DEVICES, until Ctrl-C."""
    import logging

    from gpuyard.kubernetes.admission_webhook import PATH, Certificate, Rules, Webhook
    from gpuyard.kubernetes.cluster.quantity import address_of
    from gpuyard.server import security

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    address = address_of(listen)
    security.read_certificate(cert, key)  # what is wrong with it is said in a sentence
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Webhook(address, Certificate(cert, key), Rules(scheduler_name, set_scheduler)) as server:
        logging.info("reviews are answered at https://%s:%d%s", address[0], server.port, PATH)
        ended.wait()
    logging.info("ended")


_LISTEN = "127.0.0.1:10261"


def dashboard(
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="URL", help="Where the scheduler listens (its --listen).")
    ] = USUAL,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve the pages; port 0: any that is free.")
    ] = _LISTEN,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen beyond this machine: all who reach it may look.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="A name by which browsers may ask for it, as behind a proxy."
        ),
    ] = None,
) -> None:
    """Show the cluster in a browser: nodes with their GPUs, the queue, pods; nothing can be changed there."""
    from gpuyard.kubernetes.cluster.quantity import address_of

    url = scheduler_at(scheduler)
    host, port = address_of(listen)
    with _listening(host, port) as listener:
        address, port = listener.getsockname()[:2]
        local = _is_loopback(address)
        if not local and not allow_anyone:
            raise UserError(
                f"--listen {listen} is reached from beyond this machine, and all who reach it could see the names of "
                "nodes, namespaces and pods; add --allow-anyone if they may, or listen at 127.0.0.1 and use "
                "kubectl port-forward, ssh -L or a proxy with a login"
            )
        names = [*(allowed_host or ()), *([] if local else [os.uname().nodename])]
        anywhere = address in ("0.0.0.0", "::")
        shown = os.uname().nodename if anywhere else f"[{host}]" if ":" in host else host
        output.say(f"the cluster is at http://{shown}:{port}/, until Ctrl-C; it is asked for at {url}")
        if not local:
            output.say("gpuyard: warning: all who reach that address may look, without a token and in clear text")
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-s", "-P", "-m", "gpuyard.page.cluster", "--fd", str(listener.fileno())]
        command += ["--scheduler", url, *(word for name in names for word in ("--host", name))]
        os.execv(sys.executable, [*command, *([] if local else ["--addresses"])])  # NiceGUI is no part of this process


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"there is no address {host} to listen at; write for example --listen {_LISTEN}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(
            f"{host}:{port} cannot be listened at ({error.strerror}); choose another with --listen, port 0 takes any"
        ) from error
    return listener


def _is_loopback(address: str) -> bool:
    from ipaddress import ip_address

    return ip_address(address.partition("%")[0]).is_loopback
