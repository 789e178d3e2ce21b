"""`gpuyard status`, `gpus`, `policy` and `interference`:

the daemon, its GPUs, the scheduling policy, and jobs that slow each other down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, option_groups, subcommand
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.spec.notation import absolute, describe_learned

if TYPE_CHECKING:
    from gpuyard.api.types import Gpu, PolicyPreview


@option_groups
def gpus(daemon: DaemonOptions, json: Json = False) -> None:
    """List the GPUs, and who is on them."""
    from gpuyard.cli.terminal.text_table import print_rows, print_table

    found = daemon.client().gpus()
    if json:
        print_rows(found["gpus"])
        return
    if found["simulated"]:
        output.say(f"{output.many(len(found['gpus']), 'simulated GPU')}: no real GPU is used")
    heads = ("INDEX", "NAME", "STATE", "MEMORY", "PROMISED", "LEFT", "UTIL", "JOBS", "")
    print_table(heads, [_gpu_row(gpu, found["simulated"]) for gpu in found["gpus"]])


def _gpu_row(gpu: Gpu, simulated: bool) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import gpu_notes

    name = gpu["name"]
    if simulated and "simulated" not in name.lower():
        name = f"{name} (simulated)"
    return (
        str(gpu["index"]),
        name,
        gpu["state"],
        f"{output.size(gpu['memory_used'])}/{output.size(gpu['memory_total'])}",
        output.size(gpu.get("memory_promised") or None),
        output.size(gpu.get("memory_left") or None),
        "-" if gpu["utilization"] is None else f"{gpu['utilization']:.0f}%",
        (",".join(gpu["jobs"]) or "-") + (" (on loan)" if gpu.get("granted") else ""),
        gpu_notes(gpu),
    )


_VERDICTS = {"apart": "never together", "avoided": "only if there is no other room", "together": "may share"}


@option_groups
def interference(daemon: DaemonOptions, json: Json = False) -> None:
    """Tell which jobs slow each other down when they share a GPU."""
    from gpuyard.cli.terminal.text_table import print_table

    found = daemon.client().interference()
    if json:
        output.print_json(found)
        return
    heads = ("JOBS LIKE", "BESIDE JOBS LIKE", "TAKE", "EVIDENCE", "LAST SEEN", "CONSIDERATE")
    print_table(heads, map(_pair_row, found["pairs"]))
    if not found["pairs"]:
        output.say("no two jobs have shared a GPU for long enough to tell")
    elif not found["considered"]:
        output.say("nothing follows from this: gpuyard policy set POLICY --placement considerate would go by it")


def _pair_row(pair: dict[str, Any]) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock
    from gpuyard.units import format_duration

    return (
        _kind_label(pair["sufferer"]),
        _kind_label(pair["beside"]),
        f"{pair['slowdown']:.2f} x as long",
        f"{pair['evidence']}, {format_duration(pair['seconds'])}",
        clock(pair["at"]),
        _VERDICTS.get(pair["verdict"], pair["verdict"]),
    )


def _kind_label(kind: dict[str, str]) -> str:
    return f"{kind['job']} ({kind['name'] or kind['signature'][:8]})" if kind["job"] else kind["signature"][:8]


@option_groups
def status(daemon: DaemonOptions, json: Json = False) -> None:
    """Tell how the daemon is: its GPUs, its queue, its policy, its store."""
    found = daemon.client().status()
    output.print_either(json, found, lambda: print("\n".join(f"{name:<10}{value}" for name, value in _facts(found))))


def describe_gpus(status: dict[str, Any]) -> str:
    """`4 simulated GPUs`."""
    total = sum(status["gpus"].get(state, 0) for state in ("free", "ours", "foreign", "unknown", "drained"))
    return output.many(total, "simulated GPU" if status["simulated"] else "GPU")


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    from gpuyard.cli.terminal.text_table import clock

    plan, store = found.get("plan") or {}, found.get("store") or {}
    facts = [
        ("daemon", f"gpuyard {found['version']}, pid {found['pid']}, since {clock(found['since'])}"),
        ("GPUs", f"{describe_gpus(found)}: {_counts(found['gpus']) or 'none'}"),
        ("jobs", _counts(found["jobs"]) or "none"),
        ("policy", found["policy"] + (", admission by usage" if found.get("admission") == "usage" else "")),
    ]
    if found.get("learned"):
        facts.append(("trained", describe_learned(found["learned"])))
    if plan.get("last_ms") is not None:
        times = ", ".join(f"{name} {plan[f'{name}_ms']:.3g} ms" for name in ("last", "mean", "max"))
        facts.append(("planning", times))
    if store:
        facts.append(("store", store["state"] + (f": {store['problem']}" if store.get("problem") else "")))
    facts += [("data", found["data_dir"]), ("socket", found["socket"]), ("network", found["url"] or "none")]
    facts.append(("page", _page(found.get("page"))))
    return facts + [("warning", sentence) for sentence in found.get("warnings", ())]


def _page(found: dict[str, Any] | None) -> str:
    if found is None or found["state"] == "off":
        return "none"
    again = output.many(found["starts"] - 1, "restart") if found["starts"] > 1 else ""
    return ", ".join(filter(None, (found["url"], found["state"], f"pid {found['pid']}" if found["pid"] else "", again)))


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)


policy_app = command_group("Show or change the policy that decides which job is next.", invoke_without_command=True)


@policy_app.callback()
@option_groups
def policy(context: typer.Context, daemon: DaemonOptions, json: Json = False) -> None:
    """Show or change the policy that decides which job is next."""
    if context.invoked_subcommand is None:
        _print_policy(daemon, json)


@subcommand(policy_app, "show")
def show_policy(daemon: DaemonOptions, json: Json = False) -> None:
    """Show the policy that decides."""
    _print_policy(daemon, json)


@subcommand(policy_app, "set")
def set_policy(
    daemon: DaemonOptions,
    text: Annotated[
        str,
        argument(
            "POLICY", "name[:key=value,...][@discipline[@placement]], ./mine.py:my_policy or learned:./trained.json."
        ),
    ],
    discipline: Annotated[str | None, option("--discipline", "D", "Who may go ahead.")] = None,
    placement: Annotated[str | None, option("--placement", "P", "Which GPUs.")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Change nothing: tell what would change now.")] = False,
    force: Annotated[bool, option("--force", "Also a trained policy that has not passed its gate.")] = False,
    json: Json = False,
) -> None:
    """Let another policy decide from now on."""
    client = daemon.client()
    wanted = absolute(text) if client.host is None else text
    if dry_run:
        _print_preview(client.preview_policy(wanted, discipline=discipline, placement=placement), json)
        return
    client.set_policy(wanted, discipline=discipline, placement=placement, force=force)
    now = client.policy()
    if json:
        output.print_json(now)
    else:
        forced = ", though its gate is not passed" if (now.get("learned") or {}).get("forced") else ""
        output.say(f"from now on, {now['policy']} decides{forced}")


def _print_preview(found: PolicyPreview, json: bool) -> None:
    from gpuyard.cli.terminal.text_table import print_table

    if json:
        output.print_json(dict(found))
        return
    output.say(f"nothing is changed; with {found['policy']} now:")
    output.say(f"would start: {', '.join(found['starts']) or 'nobody'}")
    output.say(f"would be stopped, to wait again: {', '.join(found['stops']) or 'nobody'}")
    output.say(f"{found['moved']} of {output.many(found['waiting'], 'waiting job')} would have another place")
    if found["note"]:
        output.say(f"note: {found['note']}")
    if found["order"]:
        rows = [(str(one["place"]), str(one["was"]), one["id"], one["name"], one["user"]) for one in found["order"]]
        print_table(("PLACE", "WAS", "ID", "NAME", "USER"), rows)


def _print_policy(daemon: DaemonOptions, json: bool) -> None:
    from gpuyard.cli.terminal.text_table import clock

    now = daemon.client().policy()
    if json:
        output.print_json(now)
    else:
        by = "; GPU memory is given away by usage" if now.get("admission") == "usage" else ""
        print((f"{now['policy']} (since {clock(now['since'])})" if now.get("since") else now["policy"]) + by)
        if now.get("learned"):
            print(f"trained: {describe_learned(now['learned'])}")
        if now.get("warning"):
            print(f"warning: {now['warning']}")
