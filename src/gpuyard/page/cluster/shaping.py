"""What the scheduler tells, as the overview and a node's page show it. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gpuyard.page.cluster.model import WAITING, Cluster, Facts, key_of

_GRAIN = 2**24  # bytes; what is used changes by less all the time
_TOLERANCE = 2**26  # bytes more than is charged that do not matter
_TOTALS = {"bound_total": "bound", "evicted_total": "evicted", "bind_failures_total": "bindings failed"}


def node_path(name: str) -> str:
    """Where a node is shown."""
    return f"/nodes/{quote(name, safe='')}"


def pod_path(pod: Facts) -> str:
    """Where a pod is shown."""
    return f"/pods/{quote(pod['namespace'], safe='')}/{quote(pod['name'], safe='')}"


def troubles(node: Facts) -> list[str]:
    """Why nothing is started on a node, in words."""
    return [*(() if node["ready"] else ("not ready",)), *(("cordoned",) if node["cordoned"] else ())]


def is_full(gpu: Facts) -> bool:
    """Whether all of it is charged."""
    total = gpu["memory_total"]
    return gpu["state"] == "ours" and (not total or total - gpu["memory_charged"] < _TOLERANCE)


def standings(node: Facts) -> set[str]:
    """How a node stands, as the filter has it: `room`, `full` or `closed`; and `foreign` if others have GPUs there."""
    room = any(gpu["state"] in ("free", "ours") and not is_full(gpu) for gpu in node["gpus"])
    foreign = any(gpu["state"] == "foreign" for gpu in node["gpus"])
    return {"closed" if troubles(node) else "room" if room else "full", *(("foreign",) if foreign else ())}


def is_over(gpu: Facts) -> bool:
    """Whether more is used of it than is charged to those who are there."""
    used = gpu["memory_used"]
    return used is not None and bool(gpu["pods"]) and used > gpu["memory_charged"] + _TOLERANCE


# -- the overview -------------------------------------------------------------------------------------


def figures(cluster: Cluster) -> dict[str, Any]:
    """The cluster in a few numbers."""
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


def box(node: Facts) -> dict[str, Any]:
    """A node among hundreds: a bar for each GPU."""
    return {
        "name": node["name"], "href": node_path(node["name"]), "model": node["model"], "troubles": troubles(node),
        "cells": [_cell(gpu) for gpu in node["gpus"]],
    }  # fmt: skip


def _cell(gpu: Facts) -> list[Any]:
    """State, percent charged and used, and how many pods are on it."""
    used = gpu["memory_used"]
    total = gpu["memory_total"]
    charged = _percent(gpu["memory_charged"], total) if total else 100 * bool(gpu["pods"])
    state = "over" if is_over(gpu) and gpu["state"] == "ours" else gpu["state"]
    return [state, charged, None if used is None or not total else _percent(used, total), len(gpu["pods"])]


def _percent(part: float, whole: float) -> int:
    return min(100, round(100 * part / whole))


def tile(node: Facts, cluster: Cluster) -> dict[str, Any]:
    """A node among a few: each of its GPUs, and who is on it."""
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
    """Pods of a node that hold GPUs, of which nobody knows which ones."""
    placed = {key for gpu in node["gpus"] for key in gpu["pods"]}
    there = [pod for pod in cluster.on(node["name"]) if pod["gpu_count"] and key_of(pod) not in placed]
    return [_tenant(key_of(pod), cluster) for pod in there]


def head(pods: Sequence[Facts]) -> list[dict[str, Any]]:
    """Who comes next, and why not yet."""
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
    """The nodes that somebody looks for: by what they are called, and whose pods are there."""
    wanted = text.casefold()
    return [
        node
        for node in cluster.nodes.values()
        if (not wanted or wanted in f"{node['name']} {node['model']}".casefold())
        and (not namespace or any(pod["namespace"] == namespace for pod in cluster.on(node["name"])))
    ]
