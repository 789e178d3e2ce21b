"""The published experiment as a whole, on a real API server, in time that passes twenty times as fast.

    python -m tests.kube.published [--speed 20] [--percent 150] [--out DIR]

It needs what the tests of Kubernetes need (tests/kube/server.py), a quarter of an hour, and a machine with nothing else
to do: what takes a twentieth of a second here is a second there, so GPUs are sampled as often. The exit code is 1
unless sharing by usage is three times as fast as a GPU for each pod at 150 %, and nothing ran out of memory.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from tests.kube.cluster import Cluster
from tests.kube.experimenting import EXAMPLE, at_work, begun
from tests.kube.server import KubeServer

_FASTER = 3.0


def main() -> None:
    """Run it, and judge it."""
    parser = argparse.ArgumentParser(description="The published experiment, on a hollow cluster of one GPU.")
    parser.add_argument("--speed", type=float, default=20.0)
    parser.add_argument("--percent", default="0,150", help="of the over-provisionings, these; 150 is among them")
    parser.add_argument("--out", type=Path, default=Path("kube-knots-results"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # nothing that was started is to stay
    server = KubeServer()
    try:
        server.start()
        with tempfile.TemporaryDirectory() as folder:
            good = _good(Cluster(server, Path(folder)), given.out.absolute(), given.speed, given.percent)
    finally:
        server.stop()
    sys.exit(0 if good else 1)


def _good(cluster: Cluster, out: Path, speed: float, percent: str) -> bool:
    words = ("experiment", EXAMPLE, "--speed", str(speed), "--percent", percent, "--out", out)
    with (
        at_work(cluster, cluster.folder, f"{1000 / speed:.0f}ms") as (hollow, prometheus),
        begun(cluster, *words, prometheus=prometheus.url, output=None) as process,
    ):
        if process.wait() != 0:
            return False
        rows = json.loads((out / "results.json").read_text())["rows"]
        usage = next(row for row in rows if (row["scheduler"], row["percent"]) == ("usage", 150))
        faults = ", ".join(hollow.violations) or "none"
        print(f"at 150 %: {usage['speedup']:.2f} times as fast, {len(hollow.ooms)} out of memory, faults: {faults}")
        return usage["speedup"] >= _FASTER and not hollow.ooms and not hollow.restarts and not hollow.violations


if __name__ == "__main__":
    main()
