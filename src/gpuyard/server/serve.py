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
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from gpuyard import __version__
from gpuyard.config import NO_PORT, PORT, Settings
from gpuyard.daemon.background.dcgm import JobMapping
from gpuyard.daemon.background.retention import SMALL, MemoryTrimmer, Retention, StoreWatch
from gpuyard.daemon.context import Absent, BackgroundThread
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.devices.simulation import SimulatedLoad
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.log import Store
from gpuyard.engines.leases.heartbeats import Heartbeats
from gpuyard.engines.leases.lease_engine import LeaseEngine, RoutingEngine
from gpuyard.engines.local import stored_attempts
from gpuyard.engines.local.local_engine import LocalEngine
from gpuyard.engines.local.privileges import check_tools
from gpuyard.engines.local.processes import adopt_orphans
from gpuyard.engines.mps_engine import MpsEngine
from gpuyard.errors import GpuyardError, UserError, is_passing
from gpuyard.gpus import open_gpus
from gpuyard.gpus.base import Visible
from gpuyard.notify.service import NotificationService
from gpuyard.server import security
from gpuyard.server.app import Server, make_app
from gpuyard.server.auth.audit import RedactingFormatter
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.context import RequestThreads
from gpuyard.server.proxy.websocket_proxy import WebSocketProxy
from gpuyard.server.routes.gpus import SAMPLES
from gpuyard.server.routes.leases import terms_of
from gpuyard.server.security import check_root_only, exposure_warnings, prepare_data_dir
from gpuyard.server.sockets import PeerProtocol, listen, listen_on

log = logging.getLogger("gpuyard")
_CYCLES = 2_000, 20, 50  # frequent, so that each collection is short; with the default one takes 100 ms
_QUIET = 60.0  # seconds
_SWITCH = 0.0005  # seconds between switches of threads; the default of 5 ms would delay every start of a job


def serve(settings: Settings, *, accept_loss: bool = False) -> None:
    """Run the daemon until a signal ends it. A condition that keeps it from starting is a `UserError`."""
    _write_log()
    signal.signal(signal.SIGINT, _interrupt)
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
        begun = partial(stored_attempts.begun_after, settings.jobs_dir)
        store = Store(settings.database, accept_loss=accept_loss, begun=begun)
        stack.callback(store.close)
        adopt_orphans()
        with _usable(settings.data_dir):
            wanted = None if settings.cgroups == "auto" else bool(settings.cgroups)
            local = LocalEngine(settings.jobs_dir, Visible(gpus), cgroups=wanted, shared=settings.shared)
        leases = LeaseEngine(lambda job: terms_of(store.open.get(job)), settings.lease_idle)
        mps = MpsEngine(local, settings.data_dir / "mps", Visible(gpus), shared=settings.shared)
        engine = RoutingEngine(mps, leases)
        stack.callback(engine.close)
        machine = Machine(
            gpus, engine, owner_on=engine.owner_on, buffer=settings.gpu_buffer, beside=settings.foreign == "count"
        )
        leases.in_use = machine.in_use
        daemon = Daemon(store, engine, machine, settings)
        stack.callback(daemon.measures.close)
        daemon.expect = leases.watch
        daemon.context.threads.append(watch := StoreWatch(store, daemon.damaged))
        if settings.database.stat().st_size <= SMALL and (problem := watch.check()):
            daemon.damaged(problem)
        daemon.open(machine.cluster, machine.uuids, version=__version__, pid=os.getpid())
        kind = "simulated GPU" if gpus.simulated else "GPU"
        count = len(gpus.devices)
        log.info("gpuyard %s: %d %s%s, policy %s, data in %s", __version__, count, kind, "s" * (count != 1),
                 daemon.planner.text, settings.data_dir)  # fmt: skip
        with _usable(settings.data_dir):
            credentials = CredentialStore(settings.data_dir / "access.db")
        stack.callback(credentials.close)
        asyncio.run(_serve(daemon, settings, credentials, leases.heartbeats))


def _interrupt(number: int, frame: object) -> None:
    """Ctrl-C, by a handler of our own: where a policy's file raises the same, that is its mistake."""
    raise KeyboardInterrupt


def _write_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.raiseExceptions = False  # where the log is on a full disk, a traceback would not be read either
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings of bad requests could fill the disk


@contextmanager
def _usable(data_dir: Path) -> Iterator[None]:
    """Turn an `OSError` into advice about the data directory."""
    try:
        yield
    except OSError as error:
        kind = GpuyardError if is_passing(error) else UserError
        raise kind(
            f"the data directory {data_dir} cannot be used ({error.strerror or error}); "
            "check its permissions and its disk, or choose another --data-dir"
        ) from error


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """Hold the lock of a data directory."""
    with open(os.open(data_dir / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip()
            raise UserError(
                f"a daemon runs on {data_dir} already (process {pid or 'unknown'}); "
                "use it, end it with gpuyard down, or choose another --data-dir"
            ) from None
        with suppress(OSError):  # a full disk: the lock is what counts
            os.truncate(file.fileno(), os.pwrite(file.fileno(), f"{os.getpid()}\n".encode(), 0))
        yield


async def _serve(daemon: Daemon, settings: Settings, credentials: CredentialStore, heartbeats: Heartbeats) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(RequestThreads())
    listener = listen(settings.socket, 0o666 if settings.shared else 0o600)
    if settings.shared:
        check_root_only(settings.socket.parent, "socket")

    def down() -> None:
        removed.append(settings.socket)
        end()

    def end() -> None:
        for one, _ in listeners:
            one.should_exit = True
        server.context.watch.end()
        server.page.end()

    removed: list[Path] = []  # the socket, if somebody ends the daemon; a restart leaves it, so that clients wait
    server = Server(daemon, settings, down, credentials, heartbeats)
    daemon.machine.samples.listeners.append(lambda: server.context.watch.tell(SAMPLES))
    listeners = _listeners(server, listener)
    for sentence in exposure_warnings(settings, server.url):
        log.warning("BEWARE: %s", sentence)
    for number, ended in ((signal.SIGTERM, end), (signal.SIGINT, down)):
        loop.add_signal_handler(number, ended)
    loop.set_exception_handler(PassingTroubles().handle)
    failed: list[BaseException] = []
    arguments = daemon, failed, lambda: loop.call_soon_threadsafe(end)
    thread = threading.Thread(target=_run, args=arguments, daemon=True)  # which ends with us where it cannot be stopped
    background = _background_threads(daemon, server)
    try:
        for one in (thread, *background):
            one.start()
        server.page.start(lambda: all(one.started for one, _ in listeners))
        await asyncio.gather(*(one.serve(sockets=[socket]) for one, socket in listeners))
    finally:
        for one in background:
            await asyncio.to_thread(one.stop)
        daemon.stop()
        await asyncio.to_thread(thread.join)
        await server.page.close()
        for path in removed:
            path.unlink(missing_ok=True)
    if failed and isinstance(failed[0], OSError | UserError):  # the next start may go better: this is no mistake
        raise GpuyardError(f"the daemon failed: {failed[0]}") from failed[0]
    if failed:
        raise failed[0]
    log.info("ended; jobs go on running")


def _background_threads(daemon: Daemon, server: Server) -> list[BackgroundThread | NotificationService]:
    settings, threads = server.settings, daemon.context.threads
    threads += [
        server.auth.audit,
        Retention(daemon.context, settings),
        MemoryTrimmer(),
        SimulatedLoad(daemon.context, daemon.declared, daemon.ooms.ran_out),
        server.interference,
        server.recorder,
        JobMapping(daemon.context, settings.dcgm_job_mapping),
    ]
    others: list[BackgroundThread | NotificationService] = [*threads]
    if (notifications := server.notifications.open(server.url)) is None:
        log.error("nobody is told of their jobs: %s", server.notifications.problem)
        threads.append(Absent("notices", server.notifications.problem))
        return others
    daemon.listeners.append(notifications.dispatcher.committed)
    threads.append(notifications.dispatcher)
    return [*others, notifications]


def _listeners(server: Server, listener: socket.socket) -> list[tuple[uvicorn.Server, socket.socket]]:
    settings, app = server.settings, make_app(server)
    PeerProtocol.proxied = bool(settings.allowed_hosts)
    PeerProtocol.is_page = server.page.is_page
    gc.collect()
    gc.freeze()  # these objects stay: to search them again and again would stop everything for tens of ms
    gc.set_threshold(*_CYCLES)
    websockets = WebSocketProxy(server.page, server.auth)
    listeners = [(_server(app, websockets), listener)]
    if (network := _network(settings)) is not None:
        listeners.append((_server(app, websockets, settings), network))
        server.url = url_of(settings, network)
        log.info("the API is at %s", server.url)
        if settings.page:
            server.page.open(server.url)
    return listeners


def _server(app: FastAPI, websockets: WebSocketProxy | None, network: Settings | None = None) -> uvicorn.Server:
    """The server on one socket; TLS is for TCP only."""
    options: dict[str, Any] = {}
    if network is not None and network.tls_cert:
        options = {"ssl_certfile": network.tls_cert, "ssl_keyfile": network.tls_key or None}
    config = uvicorn.Config(
        app, http=PeerProtocol, ws=websockets or "none",  # type: ignore[arg-type]
        lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=2, timeout_keep_alive=75, backlog=64,
        proxy_headers=False, server_header=False, date_header=False, **options,
    )  # fmt: skip
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = uvicorn.Server(config)
    server.capture_signals = _without_signals  # type: ignore[method-assign]
    return server


def _network(settings: Settings) -> socket.socket | None:
    """The socket on TCP, if one is set; None if the default port is taken, which `exposure_warnings` reports."""
    if settings.port == NO_PORT:
        return None
    port = PORT if settings.port is None else settings.port
    try:
        return listen_on(settings.bind, port, tls=bool(settings.tls_cert))
    except OSError as error:
        if settings.port is not None or settings.bind != "127.0.0.1":
            raise (GpuyardError if is_passing(error) else UserError)(
                f"cannot listen at {settings.bind}:{port} ({error.strerror or error}); choose another --host or --port"
            ) from error
        return None


def url_of(settings: Settings, listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def _run(daemon: Daemon, failed: list[BaseException], tell: Callable[[], None]) -> None:
    """The daemon's thread. If it fails, the process must end: a daemon that plans nothing is of no use."""
    try:
        daemon.run()
    except BaseException as error:
        log.exception("the yard failed")
        failed.append(error)
        tell()


class PassingTroubles:
    """Logs what asyncio cannot do for lack of file descriptors, say, by one line a minute in place of tracebacks."""

    _quiet_until = 0.0

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or not is_passing(error):
            return loop.default_exception_handler(context)
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET
            log.error("%s: %s; it is tried again every second", context["message"], error)
        return None


@contextmanager
def _without_signals() -> Iterator[None]:
    """In place of uvicorn's handlers: the event loop handles signals."""
    yield
