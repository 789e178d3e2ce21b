"""What experiments on a cluster need in tests: somebody who runs pods, records and schedules; and the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.kubernetes import names
from tests.kube.cluster import Cluster
from tests.kube.hollow import Hollow
from tests.prometheus import RealPrometheus
from tests.yard import PATIENCE, Done, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "kube-knots.yaml"


@contextmanager
def at_work(cluster: Cluster, folder: Path, every: str = "250ms") -> Iterator[tuple[Hollow, RealPrometheus]]:
    """A node with one GPU of 32,510 MiB, somebody who runs pods there, records the GPU, and schedules."""
    cluster.node("gpu-1", gpus=1, labels={names.NODE_GPU_MODEL: "Tesla-V100-SXM2-32GB"})
    with Hollow(cluster.api) as hollow:
        prometheus = RealPrometheus(folder / "prometheus", [hollow.target], every)
        prometheus.start()
        flags = ("--admission", "usage", "--prometheus", prometheus.url, "--sample-period", "0.2")
        try:
            until(lambda: prometheus.query("DCGM_FI_DEV_FB_USED"), "the first scrape")
            with cluster.scheduler(*flags):
                yield hollow, prometheus
        finally:
            prometheus.stop()


@contextmanager
def begun(
    cluster: Cluster, *words: str | Path, prometheus: str = "http://127.0.0.1:9", output: int | None = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A command under way, as a process of its own, which can be interrupted."""
    environment = {
        **os.environ, "KUBECONFIG": str(cluster.server.kubeconfig()), "GPUYARD_PROMETHEUS_URL": prometheus,
        "GPUYARD_PROMETHEUS_PATIENCE": "0",
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "gpuyard", "kubernetes", *map(str, words)], env=environment, cwd=cluster.folder,
        stdout=output, stderr=output, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=3 * PATIENCE)
    return Done(process.returncode, out, err)


def run(cluster: Cluster, *words: str | Path, prometheus: str = "http://127.0.0.1:9") -> Done:
    with begun(cluster, *words, prometheus=prometheus) as process:
        return ended(process)
