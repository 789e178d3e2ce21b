"""`python -m gpuyard.page --fd N --socket PATH`: serve the page on a socket that the daemon listens at."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from gpuyard.client.transport import reachable
from gpuyard.page import process


def _go_first() -> None:
    """Under memory pressure, let the kernel kill the page before jobs and the daemon: the daemon restarts it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpuyard.page", description="The process of gpuyard's page.")
    parser.add_argument("--fd", type=int, required=True, help="The listening socket, inherited from the daemon.")
    parser.add_argument("--socket", required=True, help="Where the daemon listens.")
    parser.add_argument("--traces", default="", help="A folder of traces, to be simulated by who looks.")
    given = parser.parse_args()
    process.prepare()

    _go_first()
    process.end_with_daemon()

    from gpuyard.page.page_app import make_app
    from gpuyard.page.simulations import trace_sources

    with reachable(given.socket) as daemon:  # a short address, while this process lives
        app = make_app(daemon, given.traces)
        if process.drops_root():
            trace_sources.make_code_cache(process.NOBODY)
        process.drop_root()
        process.serve(given.fd, app)


if __name__ == "__main__":
    main()
