"""How a command reaches a cluster (kubeconfig) and its scheduler (HTTP)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from gpuyard.cli.common_options import option
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.kubernetes.api_client import Api


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    kubeconfig: Annotated[str | None, option("--kubeconfig", "FILE", "How to reach the cluster ($KUBECONFIG).")] = None
    context: Annotated[str | None, option("--context", "NAME", "A context of the kubeconfig (its current one).")] = None

    def api(self) -> Api:
        from gpuyard.kubernetes.api_client import Api
        from gpuyard.kubernetes.kubeconfig import connect

        return Api(connect(self.kubeconfig, self.context))


USUAL = "http://127.0.0.1:10260"  # default address of a scheduler
_PATIENCE = 5.0


class NoScheduler(GpuyardError):
    """No scheduler answers."""


def scheduler_at(text: str) -> str:
    """The URL of a scheduler from `http://box:10260` or `box:10260`."""
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isascii()
    except ValueError:
        good = None
    if not good or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise UserError(f"'{text}' is no address of a scheduler; write it as in {USUAL}")
    return url


def ask(url: str) -> dict[str, Any]:
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(f"{url}/cluster", timeout=_PATIENCE) as answer:
            found = json.loads(answer.read())
        found["nodes"], found["pods"], found["counts"]
    except (OSError, HTTPException) as error:
        if getattr(error, "code", 0):
            raise NoScheduler(f"what answers at {url} is not gpuyard's scheduler; check --scheduler") from error
        raise NoScheduler(f"no scheduler answers at {url}; check --scheduler, and whether it runs") from error
    except (ValueError, TypeError, KeyError) as error:
        raise NoScheduler(f"what answers at {url} is not gpuyard's scheduler; check --scheduler") from error
    return dict(found)
