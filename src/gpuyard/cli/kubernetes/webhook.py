"""`gpuyard kubernetes webhook`: add to pods what names their GPUs to them."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from gpuyard.kubernetes.names import SCHEDULER


def webhook(
    cert: Annotated[
        str,
        typer.Option("--cert", "--tls-cert", metavar="FILE", help="The certificate; a new one is taken up."),
    ],
    key: Annotated[str, typer.Option("--key", "--tls-key", metavar="FILE", help="Its key.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the API server finds it; port 0: any.")
    ] = "127.0.0.1:8443",
    scheduler_name: Annotated[
        str, typer.Option("--scheduler-name", metavar="NAME", help="Whose pods are changed.")
    ] = SCHEDULER,
    set_scheduler: Annotated[
        bool,
        typer.Option(
            "--set-scheduler", help="Give pods that say gpuyard.dev/gpu-memory, and no scheduler, that scheduler."
        ),
    ] = False,
) -> None:
    """Answer an API server's admission reviews: pods that share a GPU get NVIDIA_VISIBLE_DEVICES, until Ctrl-C."""
    import logging

    from gpuyard.kubernetes.serving import address_of
    from gpuyard.kubernetes.webhook import PATH, Certificate, Rules, Webhook
    from gpuyard.server import tls

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    address = address_of(listen)
    tls.examined(cert, key)  # what is wrong with it is said in a sentence
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Webhook(address, Certificate(cert, key), Rules(scheduler_name, set_scheduler)) as server:
        logging.info("reviews are answered at https://%s:%d%s", address[0], server.port, PATH)
        ended.wait()
    logging.info("ended")
