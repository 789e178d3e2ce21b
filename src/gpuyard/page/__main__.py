"""`python -m gpuyard.page --fd N --socket PATH`: serve the page on a socket that the daemon listens at."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from gpuyard.page import dropping, lifeline, serving
from gpuyard.unixhttp import reachable


def _go_first() -> None:
    """Where memory runs out, let this end, and what it has started, before any job and the daemon: it comes back."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="gpuyard.page", description="The process of gpuyard's page.")
    parser.add_argument("--fd", type=int, required=True, help="The listening socket, inherited from the daemon.")
    parser.add_argument("--socket", required=True, help="Where the daemon listens.")
    parser.add_argument("--traces", default="", help="A folder of traces, to be simulated by who looks.")
    given = parser.parse_args()
    serving.prepare()

    _go_first()
    lifeline.hold()

    from gpuyard.page.app import make_app
    from gpuyard.page.simulations import places

    with reachable(given.socket) as daemon:  # whose path may be too long for an address, for as long as this lives
        app = make_app(daemon, given.traces)
        if dropping.is_due():
            places.make_cache(dropping.NOBODY)
        dropping.drop()
        serving.serve(given.fd, app)


if __name__ == "__main__":
    main()
