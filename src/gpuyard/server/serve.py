"""`gpuyard serve`: builds the store, the engine, the GPUs, the daemon and the API, runs them and shuts them down."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI

from gpuyard import __version__
from gpuyard.config import NO_PORT, PORT, Settings
from gpuyard.daemon.background.dcgm import JobMapping
from gpuyard.daemon.background.retention import Retention
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.devices.simulation import SimulatedLoad
from gpuyard.daemon.loop import Yard
from gpuyard.daemon.store.log import Store
from gpuyard.engines.leases.heartbeats import Heartbeats
from gpuyard.engines.leases.lease_engine import LeaseEngine, RoutingEngine
from gpuyard.engines.local.local_engine import LocalEngine
from gpuyard.engines.local.privileges import check_tools
from gpuyard.engines.local.processes import adopt_orphans
from gpuyard.engines.mps_engine import MpsEngine
from gpuyard.errors import UserError
from gpuyard.gpus.base import Visible
from gpuyard.gpus.find import open_gpus
from gpuyard.server import security
from gpuyard.server.api import Api
from gpuyard.server.app import make_app
from gpuyard.server.auth.audit import RedactingFormatter
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.proxy.websocket_proxy import WebSocketProxy
from gpuyard.server.routes.gpus import SAMPLES
from gpuyard.server.routes.leases import terms_of
from gpuyard.server.security import check_root_only, exposure_warnings, prepare_data_dir
from gpuyard.server.sockets import PeerProtocol, listen, listen_on

log = logging.getLogger("gpuyard")
_CYCLES = 2_000, 20, 50  # looked for often, so that each time is short; as a command has it, it would be 100 ms
_SWITCH = 0.0005  # seconds until a thread of this process lets the other go on; 5 ms would delay every start


def serve(settings: Settings) -> None:
    """Run the daemon until it is told to end. What it cannot begin with is a `UserError`."""
    _write_log()
    os.umask(0o077)
    sys.setswitchinterval(_SWITCH)
    with ExitStack() as stack:
        with _usable(settings.data_dir):
            prepare_data_dir(settings.data_dir, settings.shared)
            stack.enter_context(_alone(settings.data_dir))
        if settings.shared:
            check_tools()
        if settings.port != NO_PORT:
            security.check_certificate(settings)
        gpus = open_gpus(settings.simulate_gpus or None)
        stack.callback(gpus.close)
        store = Store(settings.database)
        stack.callback(store.close)
        adopt_orphans()
        with _usable(settings.data_dir):
            local = LocalEngine(settings.jobs_dir, Visible(gpus), cgroups=settings.cgroups, shared=settings.shared)
        leases = LeaseEngine(lambda job: terms_of(store.open.get(job)), settings.lease_idle)
        mps = MpsEngine(local, settings.data_dir / "mps", Visible(gpus), shared=settings.shared)
        engine = RoutingEngine(mps, leases)
        stack.callback(engine.close)
        machine = Machine(
            gpus, engine, owner_on=engine.owner_on, buffer=settings.gpu_buffer, beside=settings.foreign == "count"
        )
        leases.in_use = machine.in_use
        yard = Yard(store, engine, machine, settings)
        stack.callback(yard.measures.close)
        yard.expect = leases.watch
        yard.open(machine.cluster, machine.uuids, version=__version__, pid=os.getpid())
        kind = "simulated GPU" if gpus.simulated else "GPU"
        count = len(gpus.devices)
        log.info("gpuyard %s: %d %s%s, policy %s, data in %s", __version__, count, kind, "s" * (count != 1),
                 yard.planner.text, settings.data_dir)  # fmt: skip
        with _usable(settings.data_dir):
            access = CredentialStore(settings.data_dir / "access.db")
        stack.callback(access.close)
        asyncio.run(_serve(yard, settings, access, leases.heartbeats))


def _write_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every bad request: strangers could fill the disk


@contextmanager
def _usable(data_dir: Path) -> Iterator[None]:
    """Where the data directory cannot be used, say what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the data directory {data_dir} cannot be used ({error.strerror or error}); "
            "check its permissions and its disk, or choose another --data-dir"
        ) from error


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """Be the only daemon on a data directory."""
    with open(data_dir / "daemon.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip()
            raise UserError(
                f"a daemon runs on {data_dir} already (process {pid or 'unknown'}); "
                "use it, end it with gpuyard down, or choose another --data-dir"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


async def _serve(yard: Yard, settings: Settings, access: CredentialStore, signs: Heartbeats) -> None:
    loop = asyncio.get_running_loop()
    listener = listen(settings.socket, 0o666 if settings.shared else 0o600)
    if settings.shared:
        check_root_only(settings.socket.parent, "socket")

    def end() -> None:
        for server, _ in servers:
            server.should_exit = True
        api.watch.end()
        api.page.end()

    api = Api(yard, settings, end, access)
    api.signs = signs
    yard.machine.samples.listeners.append(lambda: api.watch.tell(SAMPLES))
    servers = _servers(api, listener)
    for sentence in exposure_warnings(settings, api.url):
        log.warning("BEWARE: %s", sentence)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    failed: list[BaseException] = []
    thread = threading.Thread(target=_run, args=(yard, failed, lambda: loop.call_soon_threadsafe(end)))
    thread.start()
    companions = _background_threads(yard, api)
    for one in companions:
        one.start()
    api.page.start(lambda: all(server.started for server, _ in servers))
    try:
        await asyncio.gather(*(server.serve(sockets=[socket]) for server, socket in servers))
    finally:
        for one in companions:
            await asyncio.to_thread(one.stop)
        yard.stop()
        await asyncio.to_thread(thread.join)
        await api.page.close()
        settings.socket.unlink(missing_ok=True)
    if failed:
        raise failed[0]
    log.info("ended; jobs go on running")


class BackgroundThread(Protocol):
    """What works beside the yard, in a thread of its own."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def _background_threads(yard: Yard, api: Api) -> list[BackgroundThread]:
    """The audit trail, what removes old output, what looks at GPUs and those who share them, and what tells people."""
    found: list[BackgroundThread] = [
        api.doors.trail,
        Retention(yard.context, api.settings),
        SimulatedLoad(yard.context, yard.declared, yard.ooms.ran_out),
        api.interference,
    ]
    found += [api.recorder, JobMapping(yard.context, api.settings.dcgm_job_mapping)]
    office = api.notifications.open()
    if office is None:
        log.error("nobody is told of their jobs: %s", api.notifications.problem)
        return found
    yard.listeners.append(office.clerk.committed)
    return [*found, office]


def _servers(api: Api, listener: socket.socket) -> list[tuple[uvicorn.Server, socket.socket]]:
    """What answers on the Unix socket, and on TCP if that is wanted; there the page is, too."""
    settings, app = api.settings, make_app(api)
    PeerProtocol.proxied = bool(settings.allowed_hosts)
    PeerProtocol.is_page = api.page.is_page
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again and again would stop everything for tens of ms
    gc.set_threshold(*_CYCLES)
    switchboard = WebSocketProxy(api.page, api.doors)
    servers = [(_server(app, switchboard), listener)]
    if (network := _network(settings)) is not None:
        servers.append((_server(app, switchboard, settings), network))
        api.url = url_of(settings, network)
        log.info("the API is at %s", api.url)
        if settings.page:
            api.page.open(api.url)
    return servers


def _server(app: FastAPI, switchboard: WebSocketProxy | None, network: Settings | None = None) -> uvicorn.Server:
    """What answers on one socket; TLS is for the network alone."""
    options: dict[str, Any] = {}
    if network is not None and network.tls_cert:
        options = {"ssl_certfile": network.tls_cert, "ssl_keyfile": network.tls_key or None}
    config = uvicorn.Config(
        app, http=PeerProtocol, ws=switchboard or "none",  # type: ignore[arg-type]
        lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=2, timeout_keep_alive=75, backlog=1024,
        proxy_headers=False, server_header=False, date_header=False, **options,
    )  # fmt: skip
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = uvicorn.Server(config)
    server.capture_signals = _without_signals  # type: ignore[method-assign]
    return server


def _network(settings: Settings) -> socket.socket | None:
    """The socket on TCP, if there is to be one; a port that nobody asked for may be somebody else's, which is told."""
    if settings.port == NO_PORT:
        return None
    port = PORT if settings.port is None else settings.port
    try:
        return listen_on(settings.bind, port, tls=bool(settings.tls_cert))
    except OSError as error:
        if settings.port is not None or settings.bind != "127.0.0.1":
            raise UserError(
                f"cannot listen at {settings.bind}:{port} ({error.strerror or error}); choose another --host or --port"
            ) from error
        return None


def url_of(settings: Settings, listener: socket.socket) -> str:
    """How the API is reached on TCP."""
    address, port = listener.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def _run(yard: Yard, failed: list[BaseException], tell: Callable[[], None]) -> None:
    """The yard's thread. If it fails, the daemon must end: a daemon that plans nothing helps nobody."""
    try:
        yard.run()
    except BaseException as error:
        log.exception("the yard failed")
        failed.append(error)
        tell()


@contextmanager
def _without_signals() -> Iterator[None]:
    """Signals are handled by the loop."""
    yield
