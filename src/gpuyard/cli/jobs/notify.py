"""`gpuyard notify`: notifications about jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, subcommand
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import format_duration, parse_duration

app = command_group("Be told of your jobs: by mail, Slack, DingTalk, webhooks and many more.")
Which = Annotated[str, argument("NAME", "The subscription's name or id.")]


@subcommand(app, "add")
def add(
    daemon: DaemonOptions,
    url: Annotated[str, argument("URL", "Where: a URL of apprise, or an address; - reads it from the input.")],
    on: Annotated[
        str | None, option("--on", "EVENTS", "Of what: start,finish,failure,timeout,long-wait,tasks, or all.")
    ] = None,
    long_wait: Annotated[
        str | None, option("--long-wait", "TIME", "What is a long wait (1h); tells of it, too.")
    ] = None,
    name: Annotated[str | None, option("--name", "-n", "NAME", "What to call it.")] = None,
    title: Annotated[str | None, option("--title", "TEXT", "A title of your own, as in '{name}: {state}'.")] = None,
    body: Annotated[str | None, option("--body", "TEXT", "A text of your own, with fields in braces.")] = None,
    json: Json = False,
) -> None:
    """Be told of your jobs at a URL, from now on."""
    events = None if on is None else on.replace(",", " ").split()
    if long_wait is not None:
        events = [*(events or ("finish", "failure", "timeout")), "long-wait"]
    seconds = None if long_wait is None else parse_duration(long_wait)
    found = daemon.client().subscribe(
        _given(url), name=name, events=events, long_wait=seconds, title=title, body=body
    )  # fmt: skip
    if json:
        output.print_json(found)
        return
    print(found["name"])
    output.say(
        f"from now on {found['target']} is told of {_events(found)}; gpuyard notify test {found['name']} tries it"
    )


def _given(url: str) -> str:
    """The URL; - reads it without an echo, or from a pipe."""
    if url != "-":
        return url
    import sys

    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("URL: ").strip()
    return sys.stdin.readline().strip()


@subcommand(app, "list")
def list_(daemon: DaemonOptions, json: Json = False) -> None:
    """List where you are told of your jobs; secrets are not shown."""
    from gpuyard.cli.terminal.text_table import print_list

    def row(one: Mapping[str, Any]) -> tuple[str, ...]:
        return one["id"], one["name"], one["target"], _events(one)

    empty = "you are told of nothing; gpuyard notify add URL changes that"
    print_list(daemon.client().subscriptions(), json, ("ID", "NAME", "TO", "OF"), row, empty)


@subcommand(app, "remove")
def remove(daemon: DaemonOptions, which: Which) -> None:
    """Be told no more there."""
    found = daemon.client().unsubscribe(which)
    output.say(f"{found['target']} ({found['name']}) is told no more")


@subcommand(app, "test")
def try_out(
    daemon: DaemonOptions,
    which: Annotated[str | None, argument("NAME", "The subscription; all if not said.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Send something now, and tell whether it went out."""
    client = daemon.client()
    names = [which] if which is not None else [one["id"] for one in client.subscriptions()]
    if not names:
        raise UserError("you have no subscription to try; add one with gpuyard notify add URL")
    done = [client.test_subscription(name) for name in names]
    if json:
        output.print_json(done)
    else:
        for one in done:
            failed = f"failed: {one['error']}"
            output.say(f"{one['subscription']} ({one['target']}): {failed if one['error'] else 'sent'}")
    if any(one["error"] for one in done):
        raise SystemExit(1)


@subcommand(app, "log")
def log(
    daemon: DaemonOptions,
    job: Annotated[str | None, option("--job", "ID", "Of one job or array only.")] = None,
    failed: Annotated[bool, option("--failed", "Only what could not be sent.")] = False,
    every: Annotated[bool, option("--all", "Everybody's, without where they go; for admins.")] = False,
    limit: Annotated[int, option("--limit", "N", "How many (100).", min=1, max=10_000)] = 100,
    json: Json = False,
) -> None:
    """List what you were told, or are to be, the latest first, and what became of it."""
    from gpuyard.cli.terminal.text_table import clock, print_list

    def row(one: Mapping[str, Any]) -> tuple[str, ...]:
        user = (one["user"],) if every else ()
        target = one["target"] or "-"
        return clock(one["at"]), *user, one["job"] or "-", one["event"], target, one["state"], problem(one)

    heads = ("WHEN", *(("USER",) if every else ()), "JOB", "EVENT", "TO", "STATE", "")
    found = daemon.client().notifications(job=job, failed=failed, all=every, limit=limit)
    print_list(found, json, heads, row, "nothing of the kind" if failed or job else "nothing was told yet")


def problem(one: Mapping[str, Any]) -> str:
    if not one["error"]:
        return ""
    from gpuyard.cli.terminal.text_table import clock

    count = one["attempts"]
    tried = f"; tried {count} time{'s' * (count != 1)}" if count else ""
    then = "" if one["next_at"] is None else f", again at {clock(one['next_at'], seconds=True)}"
    return f"{one['error']}{tried}{then}"


def notification_lines(notices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of `gpuyard show` about notifications."""
    lines = []
    for one in reversed(notices):
        to = f"{one['event']} to {one['target']}"
        if one["state"] == "delivered":
            lines.append(f"{to}: sent")
        else:
            lines.append(f"{to} failed: {problem(one)}" if one["error"] else f"{to}: to be sent")
    return lines


def _events(one: Mapping[str, Any]) -> str:
    long = f"long-wait ({format_duration(one['long_wait'])})"
    return ", ".join(long if event == "long-wait" else event for event in one["events"])
