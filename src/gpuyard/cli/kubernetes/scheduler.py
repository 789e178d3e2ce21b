"""`gpuyard kubernetes scheduler`: give the pods of a cluster their GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.kubernetes.reaching import Reaching
from gpuyard.cli.sharing import shared
from gpuyard.errors import UserError
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


@shared
def scheduler(reaching: Reaching, deciding: Deciding, running: Running) -> None:
    """Schedule pods with schedulerName gpuyard: whole GPUs, shares by memory, gangs; until Ctrl-C."""
    import logging
    import os
    import signal
    import socket

    from gpuyard.kubernetes.home import home_of
    from gpuyard.kubernetes.learned import Learned, read
    from gpuyard.kubernetes.observing import Observed
    from gpuyard.kubernetes.scheduler import Scheduler
    from gpuyard.kubernetes.serving import Serving

    settings, period = _settings(deciding, running), _period(deciding.sample_period)
    level = logging.INFO if running.verbose or settings.silent else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    planner = _planner(settings)
    api = reaching.api()
    version = api.get("/version").get("gitVersion", "?")
    settings = replace(settings, namespace=running.namespace or home_of(api))
    learned = Learned(settings.memory_margin)
    learned.load(read(api, settings.namespace))
    identity = running.identity or f"{socket.gethostname()}-{os.getpid()}"
    observed = Observed(settings, learned, period=period)
    found = Scheduler(api, settings, planner, observed, identity=identity)
    serving = Serving(found, settings.listen)
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
    from gpuyard.daemon.serving import served

    return served(
        settings.policy, discipline=settings.discipline, placement=settings.placement, lenient=True,
        force=settings.force_policy,
    )  # fmt: skip
