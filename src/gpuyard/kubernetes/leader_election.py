"""Leader election among replicas by a lease, and the namespace of the scheduler's own objects."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Api, ApiError, core, group
from gpuyard.kubernetes.api_writes import timestamp

USUAL = "gpuyard-system"
_ELSE = "kube-system"


def own_namespace(api: Api) -> str:
    """The namespace of the manifests if it exists or may exist; else one that every cluster has."""
    if api.connection.in_pod:
        return api.connection.namespace
    try:
        api.get(core("namespaces", "", USUAL))
    except ApiError as error:
        return _ELSE if error.missing else USUAL
    return USUAL


log = logging.getLogger("gpuyard.kubernetes")
_GROUP = "coordination.k8s.io/v1"


class Election(threading.Thread):
    def __init__(
        self,
        api: Api,
        identity: str,
        namespace: str,
        seconds: float,
        *,
        annotations: Mapping[str, str],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="election", daemon=True)
        self._api, self.identity, self._seconds, self._clock = api, identity, seconds, clock
        self._namespace, self._annotations, self._changed = namespace, dict(annotations), changed
        self._stopped = threading.Event()
        self._until = -1.0
        self._seen: tuple[str, str, int] | None = None
        self._seen_at = 0.0
        self.leader = ""  # the holder, as far as is known
        self.trouble = ""

    @property
    def holds(self) -> bool:
        """Whether we lead; false before another replica may believe that it leads."""
        return self._clock() < self._until

    @property
    def path(self) -> str:
        return group(_GROUP, "leases", self._namespace, names.LEASE)

    def run(self) -> None:
        led = False
        while not self._stopped.is_set():
            try:
                self._try()
                self.trouble = ""
            except GpuyardError as error:
                if not (isinstance(error, ApiError) and error.conflict):
                    self._complain(str(error))
            if self.holds != led:
                led = not led
                log.warning("%s %s", self.identity, "leads now" if led else "does not lead any more")
                self._changed()
            self._stopped.wait(self._seconds / 4)

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("the lease %s/%s cannot be had: %s", self._namespace, names.LEASE, trouble)
        self.trouble = trouble

    def _try(self) -> None:
        asked = self._clock()
        try:
            lease = self._api.get(self.path)
        except ApiError as error:
            if not error.missing:
                raise
            self._api.post(group(_GROUP, "leases", self._namespace), self._lease({}, {}))
            self._won(asked)
            return
        spec = lease.get("spec") or {}
        self.leader = spec.get("holderIdentity") or ""
        if self.leader == self.identity or self._is_free(spec, asked):
            self._api.put(self.path, self._lease(lease["metadata"], spec))
            self._won(asked)

    def _won(self, asked: float) -> None:
        self.leader = self.identity
        self._until = asked + 0.75 * self._seconds

    def _is_free(self, spec: Mapping[str, Any], now: float) -> bool:
        """Whether the holder has not renewed the lease for its duration, by our own clock."""
        seen = (spec.get("holderIdentity") or "", spec.get("renewTime") or "", spec.get("leaseTransitions") or 0)
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return not seen[0] or now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._seconds)

    def _lease(self, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        now = timestamp(time.time(), 6)
        ours = spec.get("holderIdentity") == self.identity
        return {
            "apiVersion": _GROUP, "kind": "Lease",
            "metadata": {
                "name": names.LEASE, "namespace": self._namespace, "annotations": self._annotations,
                **({"resourceVersion": meta["resourceVersion"]} if meta else {}),
            },
            "spec": {
                "holderIdentity": self.identity, "leaseDurationSeconds": max(1, round(self._seconds)), "renewTime": now,
                "acquireTime": spec.get("acquireTime") if ours else now,
                "leaseTransitions": (spec.get("leaseTransitions") or 0) + (not ours),
            },
        }  # fmt: skip

    def stop(self) -> None:
        """Release the lease, so that another replica can take over at once."""
        self._stopped.set()
        self.join(5.0)
        if not self.holds:
            return
        self._until = -1.0
        try:
            lease = self._api.get(self.path)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                self._api.put(self.path, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except GpuyardError as error:
            log.warning("the lease could not be given back: %s", error)
