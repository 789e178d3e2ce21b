"""How users share the GPUs: drain and resume, reservations, quotas and shares."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, option_groups, subcommand
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_indices

if TYPE_CHECKING:
    from gpuyard.client.client import Client


def warn_of_unknown(client: Client, names: Iterable[str]) -> None:
    """Warn of users and groups (`@name`) that this machine does not know: a misspelt name would have no effect."""
    if client.host is not None:  # those of that machine count
        return
    for name in names:
        if name != "*" and not _is_known(name):
            kind, bare = ("group", name[1:]) if name.startswith("@") else ("user", name)
            output.say(f"gpuyard: warning: this machine knows no {kind} {bare}; it counts once there is one")


def _is_known(name: str) -> bool:
    import grp
    import pwd

    try:
        if name.startswith("@"):
            grp.getgrnam(name[1:])
        else:
            pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


What = Annotated[
    list[str] | None, argument("[gpu 3]", "gpu and indices, as in: gpu 3, or gpu 0-1; none: all.", show_default=False)
]


@option_groups
def drain(
    daemon: DaemonOptions,
    what: What = None,
    reason: Annotated[str, option("--reason", "TEXT", "Why, for the record.")] = "",
    json: Json = False,
) -> None:
    """Let nothing more start on some GPUs, or on the whole machine; what runs goes on."""
    client = daemon.client()
    gpus = _read(what)
    drained = client.drain(gpus, reason)
    if json:
        output.print_json({"drained": drained})
        return
    wanted = drained if gpus is None else gpus
    running = [job for job in client.jobs(state="running") if set(job["gpus"]) & set(wanted)]
    still = [f"job {job['id']} (GPU {', '.join(map(str, job['gpus']))})" for job in running]
    rest = f"; still running: {', '.join(still)}" if still else ""
    output.say(f"nothing starts on GPU {', '.join(map(str, wanted))} until gpuyard resume{rest}")


@option_groups
def resume(daemon: DaemonOptions, what: What = None, json: Json = False) -> None:
    """Let drained GPUs be used again."""
    left = daemon.client().resume(_read(what))
    if json:
        output.print_json({"drained": left})
    else:
        output.say(f"still drained: GPU {', '.join(map(str, left))}" if left else "no GPU is drained")


def _read(what: list[str] | None) -> list[int] | None:
    """The GPUs that words like `gpu 3` mean; None: all."""
    words = list(what or ())
    if words and words[0].lower() in ("gpu", "gpus"):
        words = words[1:]
        if not words:
            raise UserError("which GPU? write its index, as in: gpuyard drain gpu 3; gpuyard drain alone means all")
    if not words or [word.lower() for word in words] in (["all"], ["node"]):
        return None
    return parse_indices(",".join(words))


@option_groups
def reserve(
    daemon: DaemonOptions,
    gpus: Annotated[str, argument("GPUS", "Which GPUs, as in 0-1 or 0,3.")],
    begin: Annotated[str, option("--begin", "WHEN", "From when on, as in 'fri 14:00' or now+1hour.")] = "now",
    end: Annotated[str | None, option("--end", "WHEN", "Until when, as in 16:00.")] = None,
    duration: Annotated[str | None, option("--duration", "TIME", "Or for how long, as in 2h.")] = None,
    name: Annotated[str, option("--name", "-n", "NAME", "What to call it (r1, r2, ...).")] = "",
    user: Annotated[list[str] | None, option("--user", "U", "Who may use them then (you); may be repeated.")] = None,
    nobody: Annotated[bool, option("--nobody", "Nobody's jobs: for work outside of the queue.")] = False,
    json: Json = False,
) -> None:
    """Keep GPUs for some people at a certain time."""
    if user and nobody:
        raise UserError("--user and --nobody exclude each other")
    begins, ends = _span(begin, end, duration)
    users = [] if nobody else user
    client = daemon.client()
    found = client.reserve(parse_indices(gpus), begins, ends, name=name, users=users)
    warn_of_unknown(client, users or ())
    if json:
        output.print_json(found)
        return
    print(found["name"])
    output.say(_describe(found))
    if found["in_the_way"]:
        jobs = ", ".join(found["in_the_way"])
        output.say(f"gpuyard: warning: job {jobs} may still run there then, and nobody will stop it")


@option_groups
def reservations(daemon: DaemonOptions, json: Json = False) -> None:
    """List the reservations that are not over."""
    from gpuyard.cli.terminal.text_table import print_list

    heads = ("NAME", "GPUS", "BEGIN", "END", "FOR", "")
    print_list(daemon.client().reservations(), json, heads, _reservation_row, "no GPU is reserved")


def _reservation_row(found: dict[str, Any]) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock, instant, now

    active = "now" if instant(found["begin_at"]) <= now() else ""
    return found["name"], _gpus(found), clock(found["begin_at"]), clock(found["end_at"]), _users(found), active


@option_groups
def unreserve(daemon: DaemonOptions, name: Annotated[str, argument("NAME", "Which reservation.")]) -> None:
    """Give a reservation up."""
    daemon.client().unreserve(name)
    output.say(f"reservation {name} is given up")


def _span(begin: str, end: str | None, duration: str | None) -> tuple[float, float]:
    from gpuyard.spec.times import parse_when

    if (end is None) == (duration is None):
        raise UserError("say until when: either --end, as in 16:00, or --duration, as in 2h")
    begins = parse_when(begin, time.time())
    if duration is not None:
        return begins, begins + parse_duration(duration)
    return begins, parse_when(str(end), begins)


def _describe(found: dict[str, Any]) -> str:
    from gpuyard.cli.terminal.text_table import clock

    span = f"from {clock(found['begin_at'])} to {clock(found['end_at'])}"
    gpus = f"GPUs {_gpus(found)} are" if len(found["gpus"]) > 1 else f"GPU {_gpus(found)} is"
    return f"{gpus} reserved for {_users(found)} {span}"


def _gpus(found: dict[str, Any]) -> str:
    return ", ".join(map(str, found["gpus"]))


def _users(found: dict[str, Any]) -> str:
    return ", ".join(found["users"]) or "nobody"


Name = Annotated[str, argument("NAME", "A user, a group as @name, or * for everybody else.")]

quota = command_group(
    "Show or set what people may have: GPUs at once, GPU-hours a week, queued jobs.", invoke_without_command=True
)
share = command_group("Show or set what share of the GPUs people deserve.", invoke_without_command=True)


@quota.callback()
@share.callback()
@option_groups
def _root(context: typer.Context, daemon: DaemonOptions, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        _show(daemon.client().rules(), json)


@subcommand(quota, "set")
def set_quota(
    daemon: DaemonOptions,
    name: Name,
    gpus: Annotated[int | None, option("--gpus", "-g", "N", "GPUs at once; 0: any.", min=0)] = None,
    gpu_hours: Annotated[
        float | None, option("--gpu-hours", "H", "GPU-hours in any seven days; 0: any.", min=0)
    ] = None,
    queued: Annotated[int | None, option("--queued", "N", "Jobs in the queue; 0: as usual (200,000).", min=0)] = None,
    json: Json = False,
) -> None:
    """Limit what a user, a group or everybody else may have."""
    if gpus is None and gpu_hours is None and queued is None:
        raise UserError("say what the quota is: --gpus 2, --gpu-hours 40, --queued 1000, or several of these")
    client = daemon.client()
    found = client.set_quota(name, gpus=gpus, gpu_hours=gpu_hours, queued=queued)
    warn_of_unknown(client, [name])
    said = [f"{output.many(gpus, 'GPU') if gpus else 'any number of GPUs'} at once"] if gpus is not None else []
    said += [f"{f'{gpu_hours:g}' if gpu_hours else 'any number of'} GPU-hours a week"] if gpu_hours is not None else []
    said += [f"{f'{queued:,}' if queued else 'the usual number of'} jobs in the queue"] if queued is not None else []
    _show(found, json, f"{_label(name)} may have {' and '.join(said)} from now on")


@subcommand(quota, "clear")
def clear_quota(daemon: DaemonOptions, name: Name, json: Json = False) -> None:
    """Lift a quota."""
    found = daemon.client().set_quota(name, gpus=0, gpu_hours=0.0, queued=0)
    _show(found, json, f"{_label(name)} has no quota of its own any more")


@subcommand(share, "set")
def set_share(
    daemon: DaemonOptions,
    name: Name,
    weight: Annotated[float, argument("WEIGHT", "Relative to the others' 1.")],
    json: Json = False,
) -> None:
    """Say what share a user, a group or everybody else deserves."""
    client = daemon.client()
    found = client.set_share(name, weight)
    warn_of_unknown(client, [name])
    _show(found, json, f"{_label(name)} has a share of {weight:g} from now on, where others have 1")


@subcommand(share, "clear")
def clear_share(daemon: DaemonOptions, name: Name, json: Json = False) -> None:
    """Take a share back, so that it is as everybody's."""
    found = daemon.client().set_share(name, 1.0)
    _show(found, json, f"{_label(name)} has no share of its own any more")


def _label(name: str) -> str:
    if name == "*":
        return "everybody else"
    return f"group {name[1:]}" if name.startswith("@") else name


def _show(found: dict[str, Any], json: bool, done: str = "") -> None:
    from gpuyard.cli.terminal.text_table import print_table
    from gpuyard.units import format_duration

    if json:
        output.print_json(found)
        return
    heads = ("NAME", "GROUP", "SHARE", "GPUS", "MAY HAVE", "WEEK", "MAY USE", "MAY QUEUE", "LATELY")
    rows = [
        (
            user["name"], user["group"] or "-", f"{user['weight']:g}",
            str(user["gpus"]), "any" if user["quota_gpus"] is None else str(user["quota_gpus"]),
            _hours(user["week_gpu_hours"]), _hours(user["quota_gpu_hours"]),
            "usual" if user["quota_queued"] is None else f"{user['quota_queued']:,}", _hours(user["faded_gpu_hours"]),
        )
        for user in found["users"]
    ]  # fmt: skip
    if rows:
        print_table(heads, rows)
    elif not done:
        output.say("nobody has submitted anything yet, and nobody has a quota")
    if done:
        output.say(done)
    elif found["half_life"] and rows:
        after = format_duration(found["half_life"])
        output.say(f"LATELY is what fair shares go by: GPU-hours, which count half after {after}")


def _hours(value: float | None) -> str:
    if value is None:
        return "any"
    return f"{value:.1f} h" if value < 1000 else f"{value:,.0f} h"
