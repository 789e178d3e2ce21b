"""A pod in words: where it is, by what it was let in, what it is counted with. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpuyard.page.cluster.model import WAITING, Cluster, Facts
from gpuyard.page.parts import priority, size, span
from gpuyard.page.table import Column, Row

STATES = {
    "waiting": ("queued", "waiting"), "gated": ("held", "gated"), "bound": ("running", "starting"),
    "running": ("running", "running"), "ending": ("cancelled", "ending"),
}  # fmt: skip
"""The colour of each phase, by the state of a job that has it, and what people call it."""
_BY = {
    "fit": "what it asked for was asked for by nobody else there (fit)",
    "history": "what it needs was left there, if everybody comes to what their like used so far (history)",
    "cbp": "free memory there was steady, and what was hardly ever used is enough for it (correlation-based "
    "prediction, CBP)",
    "pp": "free memory there follows a pattern, and its forecast is enough for it (peak prediction, PP)",
}


class Said(NamedTuple):
    """A fact of a pod: what it is about, and a sentence."""

    term: str
    text: str


def chip_of(pod: Facts) -> dict[str, str]:
    """Its phase, as a table has it."""
    state, text = STATES.get(pod["phase"], ("", pod["phase"]))
    return {"state": state, "text": text}


def asks(pod: Facts) -> str:
    """`2 GPUs`, or `6 GiB of 1 GPU`."""
    gpus = f"{pod['gpu_count']} GPU{'s' * (pod['gpu_count'] != 1)}"
    return f"{size(pod['gpu_memory'])} of {gpus}" if pod["gpu_memory"] else gpus


def gpus_of(pod: Facts) -> str:
    """`GPU 0 and 2`; where nobody knows, how many."""
    if not pod["gpus"]:
        return f"{pod['gpu_count']} of its GPUs"
    *most, last = map(str, pod["gpus"])
    return f"GPU {', '.join(most)} and {last}" if most else f"GPU {last}"


def facts(pod: Facts, cluster: Cluster) -> Iterator[Said]:
    """All that is to be told of a pod, but its times."""
    ours = cluster.is_ours(pod)
    if not ours:
        yield Said("Scheduler", f"{pod['scheduler']}, not gpuyard: what it holds is foreign, and left alone")
    yield Said("Asks for", _asked(pod))
    if pod["phase"] not in WAITING and ours:
        yield Said("Let in", _let_in(pod["admitted_by"]))
        yield Said("Counted with", _charged(pod))
    yield Said("Priority", _priority(pod))
    yield Said("Expected", _expected(pod))
    if pod["gang"]:
        yield Said("Gang", _gang(pod, cluster.gang_of(pod)))


def _asked(pod: Facts) -> str:
    if pod["gpu_memory"]:
        each = f" on each of {pod['gpu_count']} GPUs of one node" if pod["gpu_count"] > 1 else ""
        return f"{size(pod['gpu_memory'])} of a GPU's memory{each}, which it shares"
    count = pod["gpu_count"]
    if not count:
        return "no GPU"
    return "a GPU for itself" if count == 1 else f"{count} GPUs for itself"


def _let_in(by: str) -> str:
    known = _BY.get(by.partition(":")[0].strip().lower())
    return f"since {known}" if known else by or "nothing is written of why"


def _charged(pod: Facts) -> str:
    if not pod["charged"]:
        return "all of its GPUs" if pod["gpu_count"] > 1 else "all of its GPU"
    each = " on each of them" if pod["gpu_count"] > 1 else ""
    less = pod["gpu_memory"] - pod["charged"]
    saved = f", {size(less)} less than it asks for" if less >= 2**20 else ""
    return f"{size(pod['charged'])}{each}{saved}"


def _priority(pod: Facts) -> str:
    return f"{priority(pod['priority'])} (higher runs first)" if pod["priority"] else "0, as most have"


def _expected(pod: Facts) -> str:
    if pod["estimate"] is None:
        return "nothing is said of how long it runs"
    return f"to run for {span(pod['estimate'])}"


def _gang(pod: Facts, members: Sequence[Facts]) -> str:
    phases = Counter(STATES.get(one["phase"], ("", one["phase"]))[1] for one in members)
    told = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    return f"{pod['gang']}: all of its members start together, or none does; {told}"


# -- tables -------------------------------------------------------------------------------------------

COLUMNS = (
    Column("Pod", "link", grow=True), Column("Namespace"), Column("State", "chip"), Column("Node", "link"),
    Column("GPUs"), Column("Priority", right=True), Column("For", "since", right=True),
    Column("How it stands", "stand", grow=True),
)  # fmt: skip


def row(pod: Facts, cluster: Cluster, path: str, node_path: str) -> Row:
    """A pod in a table."""
    waits = pod["phase"] in WAITING
    tags = [pod["gang"]] * bool(pod["gang"]) + [pod["scheduler"]] * (not cluster.is_ours(pod))
    cells: tuple[Any, ...] = (
        {"text": pod["name"], "href": path, "title": f"{pod['namespace']}/{pod['name']}", "tags": tags},
        pod["namespace"],
        chip_of(pod),
        {"text": pod["node"], "href": node_path, "title": pod["node"]} if pod["node"] else None,
        asks(pod) if waits else _has(pod),
        priority(pod["priority"]),
        pod["created_at"] if waits else pod["started_at"],
        {"fraction": None, "text": _standing(pod, cluster), **_ends(pod)},
    )
    return Row(f"{pod['namespace']}/{pod['name']}", f"pod {pod['name']}", cells)


def _has(pod: Facts) -> str:
    return f"{gpus_of(pod)}, {size(pod['charged'])}" if pod["charged"] else gpus_of(pod)


def _standing(pod: Facts, cluster: Cluster) -> str:
    """How it stands, in a cell: its place in the queue and why it waits, or by what it runs."""
    if pod["phase"] == "running":
        by = pod["admitted_by"]
        return f"Placed by {pod['scheduler']}" if not cluster.is_ours(pod) else f"Let in by {by}" if by else ""
    return f"{pod['position']:,}. {sentence_of(pod)}" if pod["position"] else sentence_of(pod)


def sentence_of(pod: Facts) -> str:
    """Why it waits, or does not run yet or much longer."""
    if pod["phase"] == "gated":
        return pod["reason"] or "It has scheduling gates, which somebody else is to take away."
    if pod["phase"] == "waiting":
        why = pod["reason"] or "about to be placed"
        return why[:1].upper() + why[1:]
    if pod["phase"] == "bound":
        return "A node is chosen; its containers are about to start."
    if pod["phase"] == "ending":
        return "It was deleted, and has still to end."
    return ""


def _ends(pod: Facts) -> dict[str, float]:
    if pod["phase"] != "running" or pod["estimate"] is None or pod["started_at"] is None:
        return {}
    return {"end": pod["started_at"] + pod["estimate"]}
