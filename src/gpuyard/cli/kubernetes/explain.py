"""`gpuyard kubernetes explain`: why a pod waits, or why it is on its node."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import Json, argument, option, option_groups
from gpuyard.cli.kubernetes.connection import ClusterOptions
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError
from gpuyard.units import format_duration, format_size

if TYPE_CHECKING:
    from gpuyard.kubernetes.api_client import Api
    from gpuyard.kubernetes.cluster.pods import Pod
    from gpuyard.kubernetes.cluster_snapshot import ClusterSnapshot


@option_groups
def explain(
    cluster: ClusterOptions,
    pod: Annotated[str, argument("pod/NAME", "The pod.")],
    namespace: Annotated[str | None, option("--namespace", "-n", "NAME", "Where it is (the context's).")] = None,
    lease_namespace: Annotated[
        str | None, option("--lease-namespace", "NAME", "Where the scheduler's lease is.")
    ] = None,
    json: Json = False,
) -> None:
    """Tell why a pod waits and what keeps it from each node; or by what it was let in where it is."""
    from gpuyard.kubernetes.cluster_snapshot import ClusterSnapshot

    kind, slash, name = pod.rpartition("/")
    if slash and kind not in ("pod", "pods", "po"):
        raise UserError(f"'{pod}' is no pod; write pod/NAME")
    with closing(cluster.api()) as api:
        where = namespace or api.connection.namespace
        look = ClusterSnapshot(api, lease_namespace)
        found = _explain(look, _read_pod(look, where, name), api)
    if json:
        output.print_json(found)
        return
    _print(found)


def _read_pod(look: ClusterSnapshot, namespace: str, name: str) -> Pod:
    from gpuyard.kubernetes.api_client import ApiError

    try:
        return look.pod(namespace, name)
    except ApiError as error:
        if error.missing:
            raise UserError(f"there is no pod {name} in namespace {namespace}; -n names another") from None
        raise


def _explain(look: ClusterSnapshot, pod: Pod, api: Api) -> dict[str, Any]:
    from gpuyard.kubernetes.explanations import verdict

    world, messages = look.world, look.scheduler.messages
    ours = pod.scheduler == look.settings.scheduler
    waits = pod.waits and ours and pod.gpus > 0
    found: dict[str, Any] = {
        "pod": pod.key, "phase": pod.phase, "scheduler": pod.scheduler, "node": pod.node, "gpus": list(pod.indices),
        "gpu_count": pod.gpus, "gpu_memory": pod.gpu_memory, "charged": pod.charged, "admitted_by": pod.admitted_by,
        "priority": pod.priority, "gang": pod.gang.name if pod.gang else "", "estimate": world.expected(pod),
        "policy": world.planner.text, "leader": look.leader,
        "reason": "", "nodes": {}, "events": _events(api, pod),
    }  # fmt: skip
    if waits:
        plan = look.plan()
        starts = set() if plan is None else {start.job for start in plan.starts}
        job = world.job_of.get(pod.uid, "")
        found["reason"] = "is about to start" if job in starts else messages.reason(pod)
        found["nodes"] = verdict(world, pod).by_node
        if plan is not None and (held := plan.held.get(job)) is not None:
            found["queue"] = str(held)
    elif not ours:
        found["reason"] = f"is not ours, but a pod of {pod.scheduler}; ours say {look.settings.scheduler}"
    elif pod.waits:
        found["reason"] = "asks for no GPU"
    return found


def _events(api: Api, pod: Pod) -> list[dict[str, Any]]:
    from gpuyard.kubernetes.api_client import core

    selector = f"involvedObject.name={pod.name},involvedObject.uid={pod.uid}"
    items = api.list(core("events", pod.namespace), fieldSelector=selector).items
    rows = [{"at": one.get("lastTimestamp") or one["metadata"].get("creationTimestamp"), "reason": one.get("reason"),
             "message": one.get("message"), "count": one.get("count") or 1} for one in items]  # fmt: skip
    return sorted(rows, key=lambda row: str(row["at"]))


def _print(found: dict[str, Any]) -> None:
    wants = f"{found['gpu_count']} GPU{'' if found['gpu_count'] == 1 else 's'}"
    if found["gpu_memory"]:
        wants += f", {format_size(found['gpu_memory'])} of each"
    rows = [("pod", found["pod"]), ("asks for", wants)]
    if found["node"]:
        which = ", ".join(map(str, found["gpus"])) or "not known"
        by = f", let in by {found['admitted_by']}" if found["admitted_by"] else ""
        rows.append((found["phase"].lower(), f"on {found['node']}, GPU {which}{by}"))
    else:
        rows.append(("waits", found["reason"]))
    if found.get("queue"):
        rows.append(("queue", found["queue"]))
    if found["estimate"]:
        rows.append(("run time", f"about {format_duration(found['estimate'])}"))
    rows.append(("policy", f"{found['policy']}{', led by ' + found['leader'] if found['leader'] else ''}"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")
    reasons = [(node, why or "has room") for node, why in found["nodes"].items()]
    if reasons and len(reasons) <= 50:
        print("\nnodes")
        wide = max(len(node) for node, _ in reasons)
        for node, why in reasons:
            print(f"  {node:<{wide}}  {why}")
    if found["events"]:
        print("\nevents")
        for event in found["events"][-10:]:
            print(f"  {event['at']}  {event['reason']}: {event['message']}")
