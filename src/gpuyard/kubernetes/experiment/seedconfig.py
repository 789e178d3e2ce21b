"""The configuration of Kube-Knots' workload generator: a list in JSON of models, each with numbers of queries.

It says what runs, not how it is compared; the rest is as it was published: three schedulers, a job every 20 to 40
seconds, drawn and mixed by the seed 2020, and up to 250 % over-provisioning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuyard.experiments import keys
from gpuyard.experiments.keys import Keys
from gpuyard.kubernetes import names
from gpuyard.kubernetes.experiment.settings import dns_name

_REST: dict[str, Any] = {
    "arrivals": {"process": "uniform", "min": "20s", "max": "40s", "seed": 2020, "shuffle": True},
    "over_provisioning": [0, 50, 100, 150, 200, 250],
    "schedulers": [
        {"name": "exclusive", "sharing": "exclusive"},
        {"name": "requests", "sharing": "requests", "kubernetes": {"ask": names.ALIYUN_MEMORY}},
        {"name": "usage", "sharing": "usage", "kubernetes": {"ask": names.SEED_MEMORY}},
    ],
    "kubernetes": {"host_ipc": True},
}
_EXPECTED = "it looks like [{model: ssd-mobilenet, container_name: ..., image_name: ..., list: [{queries: 1024, ...}]}]"


def experiment_of(given: list[Any], file: Path) -> dict[str, Any]:
    """What such a list says, as an experiment's file would."""
    models = Keys({"models": given}, file).several("models", _EXPECTED)
    return {"name": file.stem, **_REST, "workloads": [found for one in models for found in _workloads(one)]}


def _workloads(given: Keys) -> list[dict[str, Any]]:
    """A workload for each number of queries of a model."""
    backend, model, scenario = (given.need(key, keys.text, _EXPECTED) for key in ("backend", "model", "scenario"))
    container = given.take("container_name", keys.text, f"{backend}-{model}")
    image = given.need("image_name", keys.text, _EXPECTED)
    memory = given.need("memory_request_MiB", keys.whole(1, 10**7), "the memory of a GPU that it asks for, in MiB")
    gib = given.take("memory_request_GB", keys.whole(1, 10**4), 0)
    folders = {key: text for key in ("MODEL_DIR", "DATA_DIR") if (text := given.take(key, keys.text, ""))}
    found = []
    for one in given.several("list", "how often with how many queries, as in: list: [{queries: 1024, replicas: 30}]"):
        queries = one.need("queries", keys.whole(1, 10**9), "how many queries it makes")
        replicas = one.take("replicas", keys.whole(0, 10**5), 1)
        one.done()
        if replicas:
            found.append({
                "name": f"{dns_name(container, 40)}-{queries}", "replicas": replicas, "image": image,
                "gpu_memory": f"{memory}M", "environment": folders,
                "kubernetes": {
                    "container": dns_name(container, 63), "memory_gib": gib, "pod": _mounted(folders),
                    "args": ["./run_local.sh", backend, model, "gpu", "--scenario", scenario, "--count", str(queries)],
                },
            })  # fmt: skip
    given.done()
    return found


def _mounted(folders: dict[str, str]) -> dict[str, Any]:
    """The node's folders of models and data, at the same place in the pod."""
    if not folders:
        return {}
    named = [(key.lower().replace("_", "-"), path) for key, path in folders.items()]
    mounts = [{"name": name, "mountPath": path} for name, path in named]
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in named]
    return {"spec": {"volumes": volumes, "containers": [{"volumeMounts": mounts}]}}
