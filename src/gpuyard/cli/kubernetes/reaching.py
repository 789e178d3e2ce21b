"""Which cluster a command is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpuyard.kubernetes.api import Api


@dataclass(frozen=True, slots=True)
class Reaching:
    """How to reach a cluster."""

    kubeconfig: Annotated[
        str | None, typer.Option("--kubeconfig", metavar="FILE", help="How to reach the cluster ($KUBECONFIG).")
    ] = None
    context: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="A context of the kubeconfig (its current one).")
    ] = None

    def api(self) -> Api:
        """Calls to its API server."""
        from gpuyard.kubernetes.api import Api
        from gpuyard.kubernetes.kubeconfig import connect

        return Api(connect(self.kubeconfig, self.context))
