"""`gpuyard status`: how the daemon is."""

from __future__ import annotations

from typing import Any

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.policytext import describe_learned


@shared
def status(yard: Yard, json: Json = False) -> None:
    """Tell how the daemon is: its GPUs, its queue, its policy, its store."""
    found = yard.client().status()
    if json:
        output.print_json(found)
    else:
        print("\n".join(f"{name:<10}{value}" for name, value in _facts(found)))


def describe_gpus(status: dict[str, Any]) -> str:
    """`4 simulated GPUs`."""
    total = sum(status["gpus"].get(state, 0) for state in ("free", "ours", "foreign", "unknown", "drained"))
    return output.many(total, "simulated GPU" if status["simulated"] else "GPU")


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    from gpuyard.cli.table import clock

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
    """Where the page is, and how its process does."""
    if found is None or found["state"] == "off":
        return "none"
    again = output.many(found["starts"] - 1, "restart") if found["starts"] > 1 else ""
    return ", ".join(filter(None, (found["url"], found["state"], f"pid {found['pid']}" if found["pid"] else "", again)))


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)
