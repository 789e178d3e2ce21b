"""`python -m gpuyard.page.cluster --fd N --scheduler URL`: serve the dashboard on an inherited socket."""

from __future__ import annotations

import argparse
import contextlib

from gpuyard.page import process


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpuyard.page.cluster", description="The process of the cluster's pages.")
    parser.add_argument("--fd", type=int, required=True, help="The listening socket.")
    parser.add_argument("--scheduler", required=True, help="Where the scheduler tells of the cluster.")
    parser.add_argument("--host", action="append", default=[], help="A name by which it may be asked for.")
    parser.add_argument("--addresses", action="store_true", help="It may be asked for by any address.")
    given = parser.parse_args()
    process.prepare()

    from gpuyard.page.cluster.cluster_app import AllowedHosts, make_app

    app = make_app(given.scheduler, AllowedHosts(given.host, addresses=given.addresses))
    with contextlib.suppress(KeyboardInterrupt):
        process.serve(given.fd, app)


if __name__ == "__main__":
    main()
