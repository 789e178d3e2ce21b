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

from gpuyard.cli.common_options import option, option_groups
from gpuyard.cli.kubernetes.connection import USUAL, ClusterOptions, scheduler_at
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.kubernetes.names import SCHEDULER
from gpuyard.units import parse_duration, parse_size

if TYPE_CHECKING:
    from gpuyard.core.planner import OrderedPlanner
    from gpuyard.kubernetes.settings import Settings


@dataclass(frozen=True, slots=True)
class SchedulingOptions:
    policy: Annotated[
        str | None, option("--policy", "POLICY", "Who is next: any policy of gpuyard, also learned:FILE.")
    ] = None
    discipline: Annotated[str | None, option("--discipline", "NAME", "Who may pass whom (easy: backfilling).")] = None
    placement: Annotated[str | None, option("--placement", "NAME", "On which GPUs (pack: the fullest that fit).")] = (
        None
    )
    force_policy: Annotated[bool, option("--force-policy", "Run a learned policy though it did not pass its gate.")] = (
        False
    )
    admission: Annotated[
        str | None, option("--admission", "requests|usage", "What counts of those who share (requests).")
    ] = None
    prometheus: Annotated[
        str | None, option("--prometheus", "URL", "Who knows what GPUs do ($GPUYARD_PROMETHEUS_URL).")
    ] = None
    sample_period: Annotated[str, option("--sample-period", "TIME", "How often Prometheus is asked.")] = "1s"
    gpu_memory: Annotated[str | None, option("--gpu-memory", "SIZE", "Of GPUs of which nobody knows how much.")] = None
    gpu_buffer: Annotated[
        str | None, option("--gpu-buffer", "SIZE", "What shares leave free of a GPU (512M by usage, else 0).")
    ] = None
    default_duration: Annotated[
        str | None, option("--default-duration", "TIME", "Of pods of which nothing is known (1h).")
    ] = None
    no_preemption: Annotated[bool, option("--no-preemption", "Evict nobody for a higher PriorityClass.")] = False


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    scheduler_name: Annotated[
        str | None, option("--scheduler-name", "NAME", "Whose pods (gpuyard; shadowed: default-scheduler).")
    ] = None
    config: Annotated[Path | None, option("--config", "FILE", "A YAML file with settings; options come first.")] = None
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "Of /metrics /healthz /readyz /cluster (127.0.0.1:10260).")
    ] = None
    dry_run: Annotated[bool, option("--dry-run", "Decide, log what it would be, and write nothing.")] = False
    shadow: Annotated[bool, option("--shadow", "Beside another scheduler: tell what would be done for its pods.")] = (
        False
    )
    no_leader_elect: Annotated[bool, option("--no-leader-elect", "There is no other replica: hold no lease.")] = False
    namespace: Annotated[
        str | None, option("--namespace", "-n", "NAME", "Of the lease (gpuyard-system; else kube-system).")
    ] = None
    identity: Annotated[str | None, option("--identity", "NAME", "What this replica is called (its host's name).")] = (
        None
    )
    verbose: Annotated[bool, option("--verbose", "-v", "Log every decision.")] = False


@option_groups
def scheduler(cluster: ClusterOptions, scheduling: SchedulingOptions, process: ProcessOptions) -> None:
    """Schedule pods with schedulerName gpuyard: whole GPUs, shares by memory, gangs; until Ctrl-C."""
    import logging

    from gpuyard.kubernetes.gpu_usage import GpuUsage
    from gpuyard.kubernetes.leader_election import own_namespace
    from gpuyard.kubernetes.scheduler import Scheduler
    from gpuyard.kubernetes.status_server import StatusServer
    from gpuyard.kubernetes.workload_history import WorkloadHistory, read

    settings, period = _settings(scheduling, process), _period(scheduling.sample_period)
    level = logging.INFO if process.verbose or settings.silent else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    planner = _planner(settings)
    api = cluster.api()
    version = api.get("/version").get("gitVersion", "?")
    settings = replace(settings, namespace=process.namespace or own_namespace(api))
    learned = WorkloadHistory(settings.memory_margin)
    learned.load(read(api, settings.namespace))
    identity = process.identity or f"{socket.gethostname()}-{os.getpid()}"
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


def _settings(scheduling: SchedulingOptions, process: ProcessOptions) -> Settings:
    from gpuyard.kubernetes.settings import settings_of

    sizes = {"gpu_memory": scheduling.gpu_memory, "gpu_buffer": scheduling.gpu_buffer}
    return settings_of(
        process.config,
        scheduler=process.scheduler_name or ("default-scheduler" if process.shadow else None),
        policy=scheduling.policy,
        discipline=scheduling.discipline,
        placement=scheduling.placement,
        force_policy=scheduling.force_policy or None,
        admission=scheduling.admission,
        prometheus=scheduling.prometheus or os.environ.get("GPUYARD_PROMETHEUS_URL"),
        default_duration=parse_duration(scheduling.default_duration) if scheduling.default_duration else None,
        preemption=False if scheduling.no_preemption else None,
        dry_run=process.dry_run or None,
        shadow=process.shadow or None,
        elect=False if process.no_leader_elect else None,
        listen=process.listen,
        **{name: None if text is None else parse_size(text) for name, text in sizes.items()},
    )


def _planner(settings: Settings) -> OrderedPlanner:
    """The planner of the settings; a trained policy must have passed its gate."""
    from gpuyard.policies.guard import serve_policy

    return serve_policy(
        settings.policy, discipline=settings.discipline, placement=settings.placement, lenient=True,
        force=settings.force_policy,
    )  # fmt: skip


def webhook(
    cert: Annotated[str, option("--cert", "--tls-cert", "FILE", "The certificate; a new one is taken up.")],
    key: Annotated[str, option("--key", "--tls-key", "FILE", "Its key.")],
    listen: Annotated[
        str, option("--listen", "HOST:PORT", "Where the API server finds it; port 0: any.")
    ] = "127.0.0.1:8443",
    scheduler_name: Annotated[str, option("--scheduler-name", "NAME", "Whose pods are changed.")] = SCHEDULER,
    set_scheduler: Annotated[
        bool, option("--set-scheduler", "Give pods that say gpuyard.dev/gpu-memory, and no scheduler, that scheduler.")
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
    scheduler: Annotated[str, option("--scheduler", "URL", "Where the scheduler listens (its --listen).")] = USUAL,
    listen: Annotated[
        str, option("--listen", "HOST:PORT", "Where to serve the pages; port 0: any that is free.")
    ] = _LISTEN,
    allow_anyone: Annotated[
        bool, option("--allow-anyone", "Listen beyond this machine: all who reach it may look.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        option("--allowed-host", "NAME", "A name by which browsers may ask for it, as behind a proxy."),
    ] = None,
) -> None:
    """Show the cluster in a browser: nodes with their GPUs, the queue, pods; nothing can be changed there."""
    from gpuyard.kubernetes.cluster.quantity import address_of

    url = scheduler_at(scheduler)
    host, port = address_of(listen)
    with _listen(host, port) as listener:
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


def _listen(host: str, port: int) -> socket.socket:
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
