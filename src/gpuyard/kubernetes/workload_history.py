"""Memory and run time of finished pods by workload, stored in a ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpuyard.kubernetes.api_client import Api, ApiError, core
from gpuyard.predict.similar_runs import LATEST, Prediction, Run, predict

NAME = "gpuyard-peaks"
_KEPT = 10  # runs of a signature that are written down
_MOST = 2000  # signatures that are


class WorkloadHistory:
    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._runs: dict[str, list[Run]] = {}
        self._told: dict[str, Prediction] = {}
        self.changed = False

    def add(self, signature: str, run: Run) -> None:
        self._runs[signature] = [*self._runs.pop(signature, []), run][-LATEST:]
        self._told.pop(signature, None)
        self.changed = True

    def of(self, signature: str) -> Prediction:
        if signature not in self._told:
            self._told[signature] = predict(self._runs.get(signature, ()), (), 0.0, self._margin)
        return self._told[signature]

    def __len__(self) -> int:
        return len(self._runs)

    # -- on the cluster -----------------------------------------------------------------------------

    def to_data(self) -> dict[str, str]:
        """As the ConfigMap has it: a line for each signature, the latest last."""
        rows = {
            signature: [[round(run.at), round(run.seconds, 3), run.outcome, run.peak] for run in runs[-_KEPT:]]
            for signature, runs in list(self._runs.items())[-_MOST:]
        }
        return {"runs.json": json.dumps(rows, separators=(",", ":"))}

    def load(self, data: Mapping[str, str]) -> None:
        """Add stored runs; unreadable data is ignored."""
        try:
            rows = json.loads(data.get("runs.json", "{}"))
            known = {
                str(signature): [Run(float(at), float(took), str(how), float(peak)) for at, took, how, peak in runs]
                for signature, runs in rows.items()
            }
        except (ValueError, TypeError, AttributeError):
            return
        self._runs = {**known, **self._runs}
        self._told = {}


def read(api: Api, namespace: str) -> Mapping[str, str]:
    """The stored runs; empty without any."""
    try:
        return api.get(core("configmaps", namespace, NAME)).get("data") or {}
    except ApiError as error:
        if error.missing or error.status == 403:
            return {}
        raise


def write(api: Api, namespace: str, data: Mapping[str, str]) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": namespace}, "data": data}
    try:
        api.put(core("configmaps", namespace, NAME), body)
    except ApiError as error:
        if not error.missing:
            raise
        api.post(core("configmaps", namespace), body)
