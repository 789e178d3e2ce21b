"""Nodes, GPUs and pods as the dashboard shows them. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.page.api import Facts
from gpuyard.page.cluster.cluster_feed import WAITING, Cluster, key_of
from gpuyard.page.parts import capitalized, priority, size, span
from gpuyard.page.table import Column, Row

_GRAIN = 2**24  # bytes; smaller changes of memory use are not sent
_TOLERANCE = 2**26  # bytes; smaller differences do not matter
_TOTALS = {"bound_total": "bound", "evicted_total": "evicted", "bind_failures_total": "bindings failed"}


def node_path(name: str) -> str:
    return f"/nodes/{quote(name, safe='')}"


def pod_path(pod: Facts) -> str:
    return f"/pods/{quote(pod['namespace'], safe='')}/{quote(pod['name'], safe='')}"


def troubles(node: Facts) -> list[str]:
    return [*(() if node["ready"] else ("not ready",)), *(("cordoned",) if node["cordoned"] else ())]


def is_full(gpu: Facts) -> bool:
    total = gpu["memory_total"]
    return gpu["state"] == "ours" and (not total or total - gpu["memory_charged"] < _TOLERANCE)


def standings(node: Facts) -> set[str]:
    """States of a node for the filter: `room`, `full` or `closed`; and `foreign` if others use GPUs there."""
    room = any(gpu["state"] in ("free", "ours") and not is_full(gpu) for gpu in node["gpus"])
    foreign = any(gpu["state"] == "foreign" for gpu in node["gpus"])
    return {"closed" if troubles(node) else "room" if room else "full", *(("foreign",) if foreign else ())}


def is_over(gpu: Facts) -> bool:
    used = gpu["memory_used"]
    return used is not None and bool(gpu["pods"]) and used > gpu["memory_charged"] + _TOLERANCE


# -- the overview -------------------------------------------------------------------------------------


def figures(cluster: Cluster) -> dict[str, Any]:
    facts, nodes = cluster.facts, cluster.nodes.values()
    gpus = [gpu for node in nodes for gpu in node["gpus"]]
    used = [gpu["memory_used"] for gpu in gpus if gpu["memory_used"] is not None]
    phases = Counter(pod["phase"] for pod in cluster.pods.values())
    return {
        "nodes": len(nodes), "ready": sum(not troubles(node) for node in nodes),
        "unready": sum(not node["ready"] for node in nodes), "cordoned": sum(node["cordoned"] for node in nodes),
        "gpus": len(gpus), "busy": sum(bool(gpu["pods"]) or gpu["state"] == "foreign" for gpu in gpus),
        "foreign": sum(gpu["state"] == "foreign" for gpu in gpus), "over": sum(map(is_over, gpus)),
        "total": sum(gpu["memory_total"] for gpu in gpus), "charged": sum(gpu["memory_charged"] for gpu in gpus),
        "used": round(sum(used) / _GRAIN) * _GRAIN if used else None,
        "running": phases["running"], "bound": phases["bound"], "ending": phases["ending"],
        "waiting": phases["waiting"], "gated": phases["gated"],
        "totals": [f"{facts['counts'][name]:,} {word}" for name, word in _TOTALS.items() if facts["counts"].get(name)],
        **{name: facts[name] for name in ("server", "scheduler", "policy", "admission", "leader", "prometheus")},
    }  # fmt: skip


def node_box(node: Facts) -> dict[str, Any]:
    """A node among hundreds: a bar for each GPU."""
    return {
        "name": node["name"], "href": node_path(node["name"]), "model": node["model"], "troubles": troubles(node),
        "cells": [_cell(gpu) for gpu in node["gpus"]],
    }  # fmt: skip


def _cell(gpu: Facts) -> list[Any]:
    """State, percent charged and used, and number of pods."""
    used = gpu["memory_used"]
    total = gpu["memory_total"]
    charged = _percent(gpu["memory_charged"], total) if total else 100 * bool(gpu["pods"])
    state = "over" if is_over(gpu) and gpu["state"] == "ours" else gpu["state"]
    return [state, charged, None if used is None or not total else _percent(used, total), len(gpu["pods"])]


def _percent(part: float, whole: float) -> int:
    return min(100, round(100 * part / whole))


def node_tile(node: Facts, cluster: Cluster) -> dict[str, Any]:
    """A node among a few: its GPUs and their pods."""
    return {
        "name": node["name"], "href": node_path(node["name"]), "model": node["model"], "troubles": troubles(node),
        "cpus": [node["cpus_free"], node["cpus"]], "memory": [node["memory_free"], node["memory"]],
        "gpus": [_gpu(gpu, cluster) for gpu in node["gpus"]],
        "elsewhere": _unplaced(node, cluster),
    }  # fmt: skip


def _gpu(gpu: Facts, cluster: Cluster) -> dict[str, Any]:
    used, load = gpu["memory_used"], gpu["utilization"]
    return {
        "index": gpu["index"], "state": gpu["state"], "total": gpu["memory_total"], "charged": gpu["memory_charged"],
        "used": None if used is None else round(used / _GRAIN) * _GRAIN,
        "load": None if load is None else round(load), "over": is_over(gpu),
        "pods": [_tenant(key, cluster) for key in gpu["pods"]],
    }  # fmt: skip


def _tenant(key: str, cluster: Cluster) -> dict[str, Any]:
    pod = cluster.pods.get(key)
    namespace, _, name = key.partition("/")
    if pod is None:
        return {"key": key, "namespace": namespace, "name": name, "href": "", "charged": 0, "scheduler": ""}
    others = "" if cluster.is_ours(pod) else pod["scheduler"]
    return {
        "key": key, "namespace": namespace, "name": name, "href": pod_path(pod), "charged": pod["charged"],
        "scheduler": others,
    }  # fmt: skip


def _unplaced(node: Facts, cluster: Cluster) -> list[dict[str, Any]]:
    placed = {key for gpu in node["gpus"] for key in gpu["pods"]}
    there = [pod for pod in cluster.on(node["name"]) if pod["gpu_count"] and key_of(pod) not in placed]
    return [_tenant(key_of(pod), cluster) for pod in there]


def next_pods(pods: Sequence[Facts]) -> list[dict[str, Any]]:
    return [
        {
            "key": key_of(pod), "href": pod_path(pod), "place": pod["position"], "namespace": pod["namespace"],
            "name": pod["name"], "gpus": pod["gpu_count"], "memory": pod["gpu_memory"], "gang": pod["gang"],
            "since": pod["created_at"], "reason": pod["reason"], "gated": pod["phase"] == "gated",
        }
        for pod in pods
        if pod["phase"] in WAITING
    ]  # fmt: skip


def nodes_like(cluster: Cluster, text: str, namespace: str) -> list[Facts]:
    wanted = text.casefold()
    return [
        node
        for node in cluster.nodes.values()
        if (not wanted or wanted in f"{node['name']} {node['model']}".casefold())
        and (not namespace or any(pod["namespace"] == namespace for pod in cluster.on(node["name"])))
    ]


STATES = {
    "waiting": ("queued", "waiting"), "gated": ("held", "gated"), "bound": ("running", "starting"),
    "running": ("running", "running"), "ending": ("cancelled", "ending"),
}  # fmt: skip
"""Colour (named by a job's state) and name of each phase."""
_BY = {
    "fit": "what it asked for was asked for by nobody else there (fit)",
    "history": "what it needs was left there, if everybody comes to what their like used so far (history)",
    "cbp": "free memory there was steady, and what was hardly ever used is enough for it (correlation-based "
    "prediction, CBP)",
    "pp": "free memory there follows a pattern, and its forecast is enough for it (peak prediction, PP)",
}


class PodFact(NamedTuple):
    term: str
    text: str


def chip_of(pod: Facts) -> dict[str, str]:
    state, text = STATES.get(pod["phase"], ("", pod["phase"]))
    return {"state": state, "text": text}


def request_text(pod: Facts) -> str:
    """`2 GPUs`, or `6 GiB of 1 GPU`."""
    gpus = f"{pod['gpu_count']} GPU{'s' * (pod['gpu_count'] != 1)}"
    return f"{size(pod['gpu_memory'])} of {gpus}" if pod["gpu_memory"] else gpus


def gpus_text(pod: Facts) -> str:
    """`GPU 0 and 2`; the count if the indices are not known."""
    if not pod["gpus"]:
        return f"{pod['gpu_count']} of its GPUs"
    *most, last = map(str, pod["gpus"])
    return f"GPU {', '.join(most)} and {last}" if most else f"GPU {last}"


def pod_facts(pod: Facts, cluster: Cluster) -> Iterator[PodFact]:
    ours = cluster.is_ours(pod)
    if not ours:
        yield PodFact("Scheduler", f"{pod['scheduler']}, not gpuyard: what it holds is foreign, and left alone")
    yield PodFact("Asks for", _asked(pod))
    if pod["phase"] not in WAITING and ours:
        by = pod["admitted_by"]
        known = _BY.get(by.partition(":")[0].strip().lower())
        yield PodFact("Let in", f"since {known}" if known else by or "nothing is written of why")
        yield PodFact("Counted with", _charged(pod))
    higher = f"{priority(pod['priority'])} (higher runs first)"
    yield PodFact("Priority", higher if pod["priority"] else "0, as most have")
    unknown = pod["estimate"] is None
    text = "nothing is said of how long it runs" if unknown else f"to run for {span(pod['estimate'])}"
    yield PodFact("Expected", text)
    if pod["gang"]:
        yield PodFact("Gang", _gang(pod, cluster.gang_of(pod)))


def _asked(pod: Facts) -> str:
    if pod["gpu_memory"]:
        each = f" on each of {pod['gpu_count']} GPUs of one node" if pod["gpu_count"] > 1 else ""
        return f"{size(pod['gpu_memory'])} of a GPU's memory{each}, which it shares"
    count = pod["gpu_count"]
    if not count:
        return "no GPU"
    return "a GPU for itself" if count == 1 else f"{count} GPUs for itself"


def _charged(pod: Facts) -> str:
    if not pod["charged"]:
        return "all of its GPUs" if pod["gpu_count"] > 1 else "all of its GPU"
    each = " on each of them" if pod["gpu_count"] > 1 else ""
    less = pod["gpu_memory"] - pod["charged"]
    saved = f", {size(less)} less than it asks for" if less >= 2**20 else ""
    return f"{size(pod['charged'])}{each}{saved}"


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


def pod_row(pod: Facts, cluster: Cluster) -> Row:
    waits = pod["phase"] in WAITING
    tags = [pod["gang"]] * bool(pod["gang"]) + [pod["scheduler"]] * (not cluster.is_ours(pod))
    cells: tuple[Any, ...] = (
        {"text": pod["name"], "href": pod_path(pod), "title": key_of(pod), "tags": tags},
        pod["namespace"],
        chip_of(pod),
        {"text": pod["node"], "href": node_path(pod["node"]), "title": pod["node"]} if pod["node"] else None,
        request_text(pod) if waits else gpus_text(pod) + (f", {size(pod['charged'])}" if pod["charged"] else ""),
        priority(pod["priority"]),
        pod["created_at"] if waits else pod["started_at"],
        {"fraction": None, "text": _standing(pod, cluster), **_ends(pod)},
    )
    return Row(key_of(pod), f"pod {pod['name']}", cells)


def _standing(pod: Facts, cluster: Cluster) -> str:
    if pod["phase"] == "running":
        by = pod["admitted_by"]
        return f"Placed by {pod['scheduler']}" if not cluster.is_ours(pod) else f"Let in by {by}" if by else ""
    return f"{pod['position']:,}. {waiting_text(pod)}" if pod["position"] else waiting_text(pod)


def waiting_text(pod: Facts) -> str:
    if pod["phase"] == "gated":
        return pod["reason"] or "It has scheduling gates, which somebody else is to take away."
    if pod["phase"] == "waiting":
        return capitalized(pod["reason"] or "about to be placed")
    if pod["phase"] == "bound":
        return "A node is chosen; its containers are about to start."
    if pod["phase"] == "ending":
        return "It was deleted, and has still to end."
    return ""


def _ends(pod: Facts) -> dict[str, float]:
    if pod["phase"] != "running" or pod["estimate"] is None or pod["started_at"] is None:
        return {}
    return {"end": pod["started_at"] + pod["estimate"]}
