"""Making a cluster empty again between two tests: what they made goes, what an API server makes for itself stays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpuyard.kubernetes.api_client import Api, ApiError, Object, core, group
from tests.yard import until

RBAC, POLICY = "rbac.authorization.k8s.io/v1", "policy/v1beta1"
_MANY = (core("pods"), core("events"))
"""Kinds of which there may be thousands: they go a namespace at a time."""
_FEW = (
    core("nodes"), core("configmaps"), core("serviceaccounts"), core("services"), core("secrets"),
    core("resourcequotas"), core("limitranges"), group("coordination.k8s.io/v1", "leases"),
    group(POLICY, "poddisruptionbudgets"), group("apps/v1", "deployments"), group("batch/v1", "jobs"),
    group(RBAC, "roles"), group(RBAC, "rolebindings"), group(RBAC, "clusterroles"), group(RBAC, "clusterrolebindings"),
    group("scheduling.k8s.io/v1", "priorityclasses"),
    group("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    group("apiextensions.k8s.io/v1", "customresourcedefinitions"),
)  # fmt: skip
_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SYSTEM_NAMES = ("kubernetes", "extension-apiserver-authentication", "system-node-critical", "system-cluster-critical")


def sweep(api: Api) -> None:
    """Remove all that tests made."""
    for path in _MANY:
        until(partial(_removed, api, path), f"an end of {path}")
    for path in _FEW:
        _remove(api, path, (one for one in api.list(path).items if not _is_system(one)))
    for namespace in api.list(core("namespaces")).items:
        _reset(api, namespace)


def _removed(api: Api, path: str) -> bool:
    """Whether there are none; remove up to a thousand in each namespace that has some."""
    found = {one["metadata"]["namespace"] for one in api.get(path, limit=1000)["items"]}
    for namespace in found:
        api.delete(path.replace("/v1", f"/v1/namespaces/{namespace}"), gracePeriodSeconds=0, limit=1000)
    return not found


def _is_system(found: Object) -> bool:
    meta = found["metadata"]
    return "kubernetes.io/bootstrapping" in meta.get("labels", {}) or meta["name"] in _SYSTEM_NAMES


def _remove(api: Api, kind: str, objects: Iterable[Object]) -> None:
    root, _, plural = kind.rpartition("/")
    for one in objects:
        meta = one["metadata"]
        within = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
        try:
            api.delete(f"{root}{within}/{plural}/{meta['name']}", gracePeriodSeconds=0)
        except ApiError as error:
            if not error.missing:  # it may have gone by itself
                raise


def _reset(api: Api, namespace: Object) -> None:
    """Remove a namespace, or what tests said of one that stays."""
    meta = namespace["metadata"]
    path = core("namespaces", name=meta["name"])
    if meta["name"] not in _SYSTEM_NAMESPACES:
        api.delete(path)
        # a controller that is not here would do this once the namespace is empty, which it is
        left = {**api.get(path), "spec": {"finalizers": []}}
        api.put(f"{path}/finalize", left)
        return
    ours = {
        kind: dict.fromkeys(name for name in meta.get(kind, {}) if name.startswith("gpuyard.dev/"))
        for kind in ("labels", "annotations")
    }
    if any(ours.values()):
        api.patch(path, {"metadata": ours})
