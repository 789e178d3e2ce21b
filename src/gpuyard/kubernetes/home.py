"""Where the scheduler keeps what it writes for itself: its lease, and what it has learned."""

from __future__ import annotations

from gpuyard.kubernetes.api import Api, ApiError, core

USUAL = "gpuyard-system"
_ELSE = "kube-system"


def home_of(api: Api) -> str:
    """The namespace of the manifests, where it exists or may exist; else one that every cluster has."""
    if api.connection.in_pod:
        return api.connection.namespace
    try:
        api.get(core("namespaces", "", USUAL))
    except ApiError as error:
        return _ELSE if error.missing else USUAL
    return USUAL
