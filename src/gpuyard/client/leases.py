"""Leases: GPUs for a process that gpuyard did not start; it waits in the queue, and has them until it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Literal, Protocol, TypedDict, Unpack, overload

from gpuyard.api.types import OVER, Blocker, Job, LeaseWishes, Machine
from gpuyard.client.retry import PATIENCE, patiently, to_stderr
from gpuyard.client.transport import Invalid, NoDaemon, Refused
from gpuyard.errors import GpuyardError, UserError
from gpuyard.units import check_share, format_duration, parse_duration, parse_share

USUAL = 60.0  # default seconds without a heartbeat after which a lease is lost
_GONE = (404, 409, 410)
_AGAIN = 1.0  # seconds until the next try if the daemon is away


class LeaseClient(Protocol):
    """What a lease needs of `Client`."""

    @property
    def afar(self) -> bool: ...
    @property
    def say(self) -> Callable[[str], None]: ...
    def ask_for_lease(
        self,
        *,
        holder: int | None = None,
        interactive: bool = False,
        heartbeat: float | None = None,
        **options: Unpack[LeaseWishes],
    ) -> str: ...
    def beat(self, id: str) -> None: ...
    def give_back_lease(self, id: str) -> None: ...
    def job(self, id: str, *, wait: float = 0.0, until: Literal["over", "start"] = "over") -> Job: ...
    def gpus(self) -> Machine: ...
    def jobs(self, *, state: str | None = None, user: str | None = None) -> list[Job]: ...


class Heartbeat:
    """Sends heartbeats in a daemon thread."""

    def __init__(self, seconds: float = USUAL, lost: Callable[[], None] | None = None) -> None:
        self.seconds = seconds
        self.lost = False  # whether the daemon has given the lease to others
        self._on_loss = lost
        import threading  # here, since most clients hold no lease

        self._over, self._saying = threading.Event(), threading.RLock()
        self._said = ""
        self._pid = os.getpid()

    def start(self, client: LeaseClient, lease: str) -> None:
        import threading

        threading.Thread(target=self._run, args=(client, lease), name=f"gpuyard-lease-{lease}", daemon=True).start()

    def stop(self) -> None:
        """Send no more; nothing is printed after this."""
        with self._saying:
            self._over.set()

    def _run(self, client: LeaseClient, lease: str) -> None:
        pause = self.seconds / 3
        while not self._over.wait(pause) and os.getpid() == self._pid:  # not in a forked child
            pause = self.seconds / 3
            try:
                client.beat(lease)
            except NoDaemon:
                pause = min(_AGAIN, pause)  # so that the next daemon gets a heartbeat in time
            except GpuyardError as error:
                if isinstance(error, Refused) and error.status in _GONE:
                    self._lose(lease, str(error))
                    return
                self._warn(f"warning: lease {lease} cannot be kept up: {error}")

    def _warn(self, warning: str) -> bool:
        """Print it, but once, and not after the lease was returned; False if it was."""
        with self._saying:
            if self._over.is_set():
                return False
            if warning != self._said:
                self._said = warning
                to_stderr(warning)
            return True

    def _lose(self, lease: str, why: str) -> None:
        warning = f"WARNING: LEASE {lease} IS LOST, and its GPUs may be somebody else's: stop using them ({why})"
        self.lost = self._warn(warning)
        if self.lost and self._on_loss is not None:
            self._on_loss()


_AT_THE_END = 60.0  # seconds for which the daemon may be away when a lease is returned
_POLL = 30.0


class LeaseCancelled(GpuyardError):
    """The lease was cancelled while it was waited for."""


class LeaseTerms(TypedDict, total=False):
    """What a lease can ask for."""

    from_: Sequence[int] | None
    """Only these GPUs, by index; all of them, unless a number is given."""
    memory: int | str | None
    """Share GPUs: memory of each, as in `6G`."""
    timeout: float | str | None
    """How long to wait: seconds, or a text as in `10m`."""
    name: str | None
    priority: float
    tags: Sequence[str]
    estimate: float | None
    time_limit: float | None
    """Seconds after which the lease ends, though the process goes on."""
    say: Callable[[str], None]
    """Called with the waiting reason; by default it goes to stderr."""
    heartbeat: float | None
    """Keep the lease by heartbeats, and lose it that many seconds after the last; by default if the daemon is remote or
    cannot see this process.
    """
    lost: Callable[[], None] | None
    """Called, by another thread, if the lease is lost."""


class Lease(Sequence[int]):
    """GPUs that this process has, as a sequence of their indices."""

    def __init__(self, id: str, indices: Sequence[int], uuids: Sequence[str], visible: Sequence[str]) -> None:
        self.id = id
        self.indices = tuple(indices)
        self.uuids = tuple(uuids)
        self.environment = {"CUDA_VISIBLE_DEVICES": ",".join(visible), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        """Makes CUDA see only these GPUs; for child processes, for example."""
        self._client: LeaseClient | None = None
        self._heartbeat: Heartbeat | None = None
        self._pid = os.getpid()
        self._before: list[dict[str, str | None]] = []

    @property
    def lost(self) -> bool:
        """Whether the daemon has given it up for lack of heartbeats."""
        return self._heartbeat is not None and self._heartbeat.lost

    def release(self) -> None:
        """Return the GPUs before this process ends. In a forked child it does nothing."""
        client, self._client = self._client, None
        if client is None or os.getpid() != self._pid:
            return
        if self._heartbeat is not None:
            self._heartbeat.stop()
        try:
            patiently(client.give_back_lease, self.id, patience=_AT_THE_END)
        except (NoDaemon, Refused) as error:
            if not isinstance(error, Refused) or error.status not in (404, 409):  # it is over already
                to_stderr(f"lease {self.id} ends only with this process: {error}")

    def __enter__(self) -> Lease:
        self._before.append({name: os.environ.get(name) for name in self.environment})
        os.environ.update(self.environment)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name, value in self._before.pop().items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if not self._before:
            self.release()

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self.indices[index]

    def __len__(self) -> int:
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Lease(id={self.id!r}, indices={list(self.indices)})"

    def __str__(self) -> str:
        return str(list(self.indices))


def obtain_lease(client: LeaseClient, gpus: int | None, terms: LeaseTerms) -> Lease:
    request = LeaseRequest(client, terms.get("say") or client.say, terms.get("heartbeat"), terms.get("lost"))
    job = request.obtain(
        seconds(terms.get("timeout")),
        gpus=gpus,
        among=terms.get("from_"),
        gpu_memory=_share(terms.get("memory")),
        name=terms.get("name") or _script(),
        priority=terms.get("priority", 0.0),
        tags=list(terms.get("tags", ())),
        estimate=terms.get("estimate"),
        time_limit=terms.get("time_limit"),
    )
    lease = lease_of(client, job)
    lease._heartbeat = request.heartbeat
    return lease


class LeaseRequest:
    def __init__(
        self,
        client: LeaseClient,
        say: Callable[[str], None],
        heartbeat: float | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._say, self._lost = client, say, lost
        self.heartbeat: Heartbeat | None = None
        if heartbeat is not None or client.afar:
            self._beat_every(heartbeat)

    def obtain(
        self,
        timeout: float | None,
        *,
        holder: int | None = None,
        interactive: bool = False,
        **options: Unpack[LeaseWishes],
    ) -> Job:
        """Request a lease and wait for it; the request is withdrawn if anything interrupts the wait."""
        id = self._ask(holder, interactive, options)
        if self.heartbeat is not None:
            self.heartbeat.start(self._client, id)
        try:
            return _await(self._client, id, timeout, self._say)
        except BaseException as error:  # Ctrl-C above all
            if self.heartbeat is not None:
                self.heartbeat.stop()
            if not isinstance(error, NoDaemon | LeaseCancelled):
                _give_up(self._client, id)
            raise

    def _ask(self, holder: int | None, interactive: bool, options: LeaseWishes) -> str:
        """Request it; by heartbeats if the daemon cannot see this process, for example in a container."""
        if self.heartbeat is not None:
            return self._client.ask_for_lease(heartbeat=self.heartbeat.seconds, **options)
        try:
            return self._client.ask_for_lease(holder=holder, interactive=interactive, **options)
        except Invalid as error:
            if holder is not None:
                raise
            self._beat_every(None)
            try:
                return self._ask(None, False, options)
            except Refused:  # the reason was another one
                raise error from None

    def _beat_every(self, given: float | None) -> None:
        self.heartbeat = Heartbeat(USUAL if given is None else given, self._lost)


def lease_of(client: LeaseClient, job: Job) -> Lease:
    """The lease of a job that has started."""
    known = {gpu["index"]: gpu for gpu in patiently(client.gpus)["gpus"]}
    mine = [known[index] for index in job["gpus"]]
    visible = [str(gpu["index"]) if gpu["simulated"] else gpu["uuid"] for gpu in mine]
    lease = Lease(job["id"], job["gpus"], [gpu["uuid"] for gpu in mine], visible)
    lease._client = client
    return lease


def of_this_job(gpus: int | None, among: Sequence[int] | None) -> Lease | None:
    """The GPUs of the job that this process belongs to; None outside jobs."""
    job = os.environ.get("GPUYARD_JOB_ID")
    if not job or "GPUYARD_GPUS" not in os.environ:
        return None
    indices = [int(index) for index in os.environ["GPUYARD_GPUS"].split(",") if index]
    wanted = gpus or len(among or ()) or 1
    if wanted > len(indices):
        raise UserError(f"this is job {job}, which has GPUs {indices}, and wants {wanted}; submit it with more --gpus")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return Lease(job, indices, visible, visible)


def seconds(timeout: float | str | None) -> float | None:
    found = parse_duration(timeout) if isinstance(timeout, str) else timeout
    if found is not None and not found >= 0:
        raise UserError(f"a timeout must be 0 or more, not {timeout}")
    return found


def _share(memory: float | str | None) -> int | None:
    if memory is None:
        return None
    return parse_share(memory) if isinstance(memory, str) else check_share(memory)


def _script() -> str | None:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return None if name.startswith("-") else name or None


def _await(client: LeaseClient, id: str, timeout: float | None, say: Callable[[str], None]) -> Job:
    """Wait until the lease starts; reports the waiting reason after a second."""
    end = float("inf") if timeout is None else time.monotonic() + timeout
    said, poll = "", 1.0
    while True:
        left = max(0.0, end - time.monotonic())
        job = patiently(client.job, id, wait=min(poll, left), until="start", patience=min(PATIENCE, left), say=say)
        if job["state"] in OVER:
            raise LeaseCancelled(f"lease {id} was {job['state']}: {job['reason'] or 'nobody said why'}")
        if job["started_at"] is not None:
            return job
        why = (job["reason"] or "its turn has not come").rstrip(".")
        if time.monotonic() >= end and job["state"] != "running":
            span = format_duration(timeout or 0.0)
            raise TimeoutError(f"no GPUs within {span} ({why}); the request was given up")
        if why != said:
            say(f"lease {id} waits: {why}")
            if not said and (own := _own_leases(client, job)):
                _refuse_own(client, job, own)
                say(held_already(_holder(own[0], job), own))
            said = why
        poll = _POLL
        time.sleep(0.02)


def _own_leases(client: LeaseClient, job: Job) -> list[Job]:
    """Leases that the holder of a waiting one has already, or a process above it."""
    above = set(_ancestors(job.get("pid") or 0))
    running = patiently(lambda: client.jobs(state="running", user=job["user"]))
    return [other for other in running if other["kind"] == "lease" and other.get("pid") in above]


def _ancestors(pid: int) -> Iterator[int]:
    """A process and those above it, as far as they can be seen."""
    while pid > 1:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return


def _refuse_own(client: LeaseClient, job: Job, own: Sequence[Job]) -> None:
    """Refuse to wait for GPUs of which the holder itself has too many; another thread of it may give them back."""
    import threading

    if job.get("pid") == os.getpid() and threading.active_count() > 1:
        return
    whole = [lease for lease in own if lease["gpu_memory"] is None or job["gpu_memory"] is None]
    taken = {gpu for lease in whole for gpu in lease["gpus"]}
    usable = job["among"] or [gpu["index"] for gpu in patiently(client.gpus)["gpus"]]
    if len(set(usable) - taken) >= job["gpu_count"]:
        return
    use = f"; CUDA_VISIBLE_DEVICES={','.join(map(str, whole[0]['gpus']))} uses it as it is" if len(whole) == 1 else ""
    held = held_already(_holder(whole[0], job), whole)
    raise UserError(f"lease {job['id']} would wait for itself, so it was given up: {held}{use}")


def _holder(lease: Job, asking: Job) -> str:
    """`this shell (pid 4242, bash)`."""
    pid = lease.get("pid") or 0
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = f", {file.read().strip()}"
    except OSError:
        name = ""
    who = "this process" if pid == os.getpid() else "this shell" if pid == asking.get("pid") else "a process above"
    return f"{who} (pid {pid}{name})"


def held_already(who: str, holds: Sequence[Blocker | Job]) -> str:
    """A hint that the holder of a waiting lease has others, which may block it."""
    ids = " ".join(lease["id"] for lease in holds)
    each = " and ".join(f"lease {lease['id']} on GPU {', '.join(map(str, lease['gpus']))}" for lease in holds)
    return f"{who} holds {each} already; gpuyard release {ids} gives {'it' if len(holds) == 1 else 'them'} back"


def _give_up(client: LeaseClient, id: str) -> None:
    try:
        client.give_back_lease(id)
    except GpuyardError as error:
        if not isinstance(error, Refused) or error.status not in (404, 409):  # it is over already
            to_stderr(f"lease {id} could not be given up: {error}")
