"""All checks, one after another, and those of the daemon: its network address, its store, its clock, leftover jobs."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuyard import __version__
from gpuyard.admin import checks
from gpuyard.admin.backup import read_only, stored_jobs
from gpuyard.admin.checks import Finding, Installation, bad, find_installation, ok, warn
from gpuyard.client.transport import Refused
from gpuyard.config import NO_PORT, PORT, Settings
from gpuyard.daemon.store.database import VERSION, WAY_OUT, integrity
from gpuyard.engines.local import stored_attempts
from gpuyard.engines.local.wrapper import Claim, read_claim
from gpuyard.engines.mps_control import program
from gpuyard.errors import UserError
from gpuyard.notify.subscriptions import REMOVED, TEST
from gpuyard.server import security
from gpuyard.server.security import exposure_warnings, key_warnings
from gpuyard.units import format_duration, format_size

_GUIDE = "docs/how-to/open-to-the-network.md tells how"


def network(patient: Installation) -> Iterator[Finding]:
    """What is risky or missing: of the running daemon, or of one that would be started now."""
    check, settings = "network", patient.settings
    if patient.status is not None:
        url, text = patient.status.get("url") or "", patient.status.get("warnings", [])
    else:
        url = _url(settings)
        text = exposure_warnings(settings, url)
    text = [sentence for sentence in text if sentence not in key_warnings(settings)]  # `certificate` says these
    for sentence in text:
        found, _, mend = sentence.partition("; ")
        yield warn(check, found, mend or _GUIDE)
    if not text:
        yield ok(check, url or "none: the daemon is reached by its socket alone")


def _url(settings: Settings) -> str:
    """Where a daemon would listen; empty if its port is taken."""
    by_itself = settings.port is None and settings.bind == "127.0.0.1"
    if settings.port == NO_PORT or (by_itself and _is_taken()):
        return ""
    return f"{'https' if settings.tls_cert else 'http'}://{settings.bind}:{settings.port or PORT}"


def _is_taken() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT), timeout=1.0).close()
    except OSError:
        return False
    return True


def certificate(patient: Installation) -> Finding | None:
    check, settings = "certificate", patient.settings
    if not settings.tls_cert and not settings.tls_key:
        return None
    try:
        security.check_certificate(settings)
    except security.BadCertificate as error:
        found, _, mend = str(error).partition("; ")
        return bad(check, found, mend or f"give another by --tls-cert and --tls-key; {_GUIDE}")
    for sentence in key_warnings(settings):
        found, _, mend = sentence.partition("; ")
        return warn(check, found, mend)
    return ok(check, f"{settings.tls_cert} goes with its key")


_AHEAD = 2.0  # seconds
_LARGE = 2**31
_NAMED = 5
_RECENT = 86400.0


def daemon(patient: Installation) -> Finding:
    check, status = "daemon", patient.status
    if status is None:
        holder = _holder(patient.settings.data_dir)
        if patient.refused:
            return bad(check, patient.silence, "use a daemon of your own: another --data-dir, or ask its owner")
        if holder:
            text = (
                f"process {holder} holds {patient.settings.data_dir}, but does not answer at {patient.settings.socket}"
            )
            return bad(check, text, "give its --socket; if it hangs, end that process: jobs go on, gpuyard up follows")
        return warn(check, "none runs here", "gpuyard up starts one; gpuyard service install does so at every boot")
    if status["store"]["state"] != "ok":
        problem, _, way_out = status["store"]["problem"].partition("; ")
        by_itself = "" if way_out == WAY_OUT else "; it tries again by itself"
        return bad(check, f"it cannot write: {problem}", (way_out or "mend that") + by_itself)
    if status["version"] != __version__:
        text = f"it is gpuyard {status['version']}, this is {__version__}"
        return warn(check, text, "gpuyard down && gpuyard up; jobs go on running")
    if Path(status["data_dir"]) != patient.settings.data_dir:
        text = f"it keeps its data in {status['data_dir']}, not in {patient.settings.data_dir}"
        return warn(check, text, "give the same --data-dir and --socket everywhere, best in the settings' file")
    return ok(check, f"process {status['pid']}, {status['policy']}")


_THREAD_ENDS = {"failing": "fails, and tries again", "stuck": "is stuck", "dead": "has ended"}


def threads(patient: Installation) -> Iterator[Finding]:
    """Whether all that the daemon does beside the queue is done: retention, notifications, the audit trail."""
    check, found = "threads", (patient.status or {}).get("threads", [])
    for one in found:
        if one["state"] != "ok":
            why = f": {one['problem']}" if one["problem"] else ""
            text = f"the daemon's {one['name']} thread {_THREAD_ENDS.get(one['state'], one['state'])}{why}"
            yield warn(check, text, "the daemon's log tells more; gpuyard down && gpuyard up, and jobs go on")
    if found and all(one["state"] == "ok" for one in found):
        yield ok(check, ", ".join(one["name"] for one in found))


def _holder(data_dir: Path) -> str:
    """The process that a data directory belongs to, if there is one; without locking anything."""
    try:
        pid = (data_dir / "daemon.lock").read_text(errors="replace").strip()
        command = Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return ""
    return pid if b"serve" in command else ""


def environment(patient: Installation) -> Finding:
    check, whose = "environment", "the daemon's" if patient.pid else "this shell's"
    variables = _variables(patient)
    if variables is None:
        return ok(check, "the daemon's is not ours to look at")
    if "CUDA_VISIBLE_DEVICES" in variables:
        text = f"CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']} is in {whose}; a daemon does not heed it"
        return warn(check, text, "unset it, so that nobody relies on it: the daemon uses all GPUs, jobs get their own")
    return ok(check, f"CUDA_VISIBLE_DEVICES is not set in {whose}")


def _variables(patient: Installation) -> dict[str, str] | None:
    """The daemon's environment, or ours if there is none; None if we may not read it."""
    if not patient.pid:
        return dict(os.environ)
    try:
        raw = Path(f"/proc/{patient.pid}/environ").read_bytes()
    except OSError:
        return None
    return dict(os.fsdecode(one).partition("=")[::2] for one in raw.split(b"\0") if one)


def mps(patient: Installation) -> Finding | None:
    """Whether jobs can be clients of MPS; None where it is neither installed nor used."""
    variables = _variables(patient)
    if variables is None:
        return None
    try:
        return ok("MPS", f"available to jobs with --mps ({program(variables.get('PATH'))})")
    except UserError as error:
        asked = [job["id"] for job in patient.client.jobs() if job["mps"]] if patient.status else []
        text, _, mend = str(error).partition("; ")
        return warn("MPS", f"job {', '.join(asked[:_NAMED])}: {text}", mend) if asked else None


def store(patient: Installation) -> Finding | None:
    database, check = patient.settings.database, "store"
    if database.parent.exists() and not os.access(database.parent, os.X_OK):
        return None  # the check of the directory reports that
    if not database.exists():
        return ok(check, f"{database} is not there yet; the first daemon makes it")
    if not os.access(database, os.R_OK):
        return warn(check, f"you may not read {database}", "ask whoever runs the daemon, or be root")
    text = integrity(database, thorough=False)
    if "locked" in text:
        return warn(
            check, f"{database} is locked by a daemon that started on a full disk", "gpuyard down && gpuyard up"
        )
    if text:
        return bad(check, f"{database} is damaged: {text}", WAY_OUT)
    size = sum(path.stat().st_size for path in (database, database.with_name(f"{database.name}-wal")) if path.exists())
    with closing(read_only(database)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        jobs = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    if version > VERSION:
        return bad(check, f"{database} was written by a newer version of gpuyard", "use that version")
    text = f"{jobs:,} job{'s' * (jobs != 1)}, {format_size(size)}, sound"
    if size > _LARGE and not patient.settings.keep_history:
        return warn(check, text, "set keep_history, to 1000d say, and jobs that ended before are removed")
    return ok(check, text)


def clock(patient: Installation) -> Finding | None:
    """Whether the time of day is behind the daemon's, which never goes back."""
    if patient.status is not None:
        now, whose = patient.client.columns(limit=1)[0], "the daemon's clock"
    else:
        try:
            with closing(read_only(patient.settings.database)) as connection:
                last = connection.execute("SELECT max(at) FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1000)")
                now, whose = float(last.fetchone()[0] or 0.0), "the last event"
        except sqlite3.Error:  # there is none, or its own check reports what is wrong
            return None
    ahead = now - time.time()
    if ahead > _AHEAD:
        text = f"{whose} is {format_duration(ahead)} ahead of the time of day, which was set back"
        mend = "see that the machine's clock is right (timedatectl); until it has caught up, times of jobs are not"
        return warn("clock", text, mend)
    return ok("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}, and no event is later")


def leftovers(patient: Installation) -> Iterator[Finding]:
    """Whether processes live whose job does not run, or is not known."""
    check = "leftovers"
    living = stored_attempts.living(patient.settings.jobs_dir)
    known = stored_jobs(patient.settings.database)
    if known is None:  # as above
        return
    left: dict[str, list[int]] = {}
    for (job, attempt), pids in living.items():
        standing = known.get(job)
        if standing is None or standing.over or standing.attempt != attempt:
            left.setdefault(job, []).extend(pids)
    strays, former = list[int](), list[str]()
    if patient.pid and _variables(patient) is not None:
        open_ones = [(job, standing.attempt) for job, standing in known.items() if not standing.over]
        strays, former = stored_attempts.unplaced(patient.pid, patient.settings.jobs_dir, open_ones)
    if left:
        named = "; ".join(f"job {job}: {' '.join(map(str, pids))}" for job, pids in list(left.items())[:_NAMED])
        numbers = " ".join(str(pid) for pids in left.values() for pid in pids)
        yield warn(
            check, f"processes of jobs that are over, or that the queue does not know ({named})", f"kill {numbers}"
        )
    if strays:
        numbers, several = " ".join(map(str, strays)), len(strays) > 1
        text = f"{len(strays)} process{'es' * several} of jobs, of which ones is not known: {numbers}"
        mend = f"kill {numbers}; without cgroups they also end with the last job that may have started them"
        yield warn(check, text, mend)
    if former:
        which = ", ".join(former[:_NAMED])
        text = f"{len(former)} of the running jobs ({which}) began before this daemon did, and without a cgroup"
        yield warn(check, text, "a process that hides from such a job can outlive it; look for it when the job is over")
    if not left and not strays and not former:
        unseen = _unseen(patient)
        which = f", as far as can be seen: {', '.join(unseen[:_NAMED])} began before this daemon did, without a cgroup"
        yield ok(check, "no process is left of a job that is over" + (which if unseen else ""))


def _unseen(patient: Installation) -> list[str]:
    """Jobs that are over and whose orphans a former daemon had, if they had any."""
    if not patient.status:
        return []
    since = datetime.fromisoformat(patient.status["since"]).timestamp()
    with closing(read_only(patient.settings.database)) as connection:
        query = "SELECT id, attempt FROM jobs WHERE ended >= ? AND started < ? ORDER BY number"
        rows = connection.execute(query, (since, since)).fetchall()
    claims = ((job, read_claim(patient.settings.jobs_dir / job / str(attempt))) for job, attempt in rows)
    return [f"job {job}" for job, claim in claims if isinstance(claim, Claim) and not claim.cgroup]


def notifications(patient: Installation) -> Finding | None:
    check = "notifications"
    if patient.status is None:
        return None
    try:
        failed = patient.client.notifications(failed=True, all=True, limit=100)
    except Refused as error:  # only admins see everybody's
        if error.status != 403:
            return bad(check, str(error), "gpuyard down, move notices.db away, gpuyard up, and subscribe anew")
        failed = patient.client.notifications(failed=True, limit=100)
    matter = [one for one in failed if one["event"] != TEST and one["error"] != REMOVED]
    recent = [one for one in matter if one["state"] == "waiting" or _is_recent(one["ended_at"])]
    if not recent:
        return ok(check, "all that was to be sent has been")
    latest = recent[0]
    which = f"{latest['event']} of job {latest['job']}" if latest["job"] else latest["event"]
    text = f"{len(recent)} could not be sent, the latest ({which}): {latest['error']}"
    return warn(check, text, "gpuyard notify log --failed lists them; gpuyard notify test tries a subscription")


def _is_recent(at: str | None) -> bool:
    return at is not None and time.time() - datetime.fromisoformat(at).timestamp() < _RECENT


Check = Callable[[Installation], Finding | Iterable[Finding] | None]
CHECKS: tuple[Check, ...] = (
    checks.installation, checks.program, checks.settings, checks.policy, checks.gpus, checks.cgroups,
    checks.systemd,
    checks.directory, checks.file_system, checks.disk, checks.socket,
    network, certificate,
    daemon, threads, environment, mps, store, clock, leftovers, notifications,
)  # fmt: skip


def examine(flags: dict[str, Any]) -> Iterator[Finding]:
    patient = find_installation(flags)
    for look in CHECKS:
        try:
            found = look(patient)
            yield from [found] if isinstance(found, Finding) else found or ()
        except Exception as error:  # a broken installation may fail in unforeseen ways
            name = look.__name__.replace("_", " ")
            yield bad(name, f"this look failed: {type(error).__name__}: {error}", "please report this")
