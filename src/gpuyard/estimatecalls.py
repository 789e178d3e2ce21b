"""What a client may ask of estimates: what is known of jobs, and what is expected of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import quote

from gpuyard.expectations import Estimate, Expectation


class _Asking(Protocol):
    def _get(self, target: str, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class EstimateCalls:
    """Part of `Client`."""

    def estimates(self: _Asking, user: str | None = None, limit: int | None = None) -> list[Estimate]:
        """What is known of jobs by their signature, the latest first."""
        return cast("list[Estimate]", self._get("/estimates", user=user, limit=limit)["estimates"])

    def estimate(self: _Asking, id: str) -> Expectation:
        """What is expected of a job by now, and by which runs."""
        return cast(Expectation, self._get(f"/jobs/{quote(id, safe='')}/estimate"))

    def guess(self: _Asking, command: Sequence[str], directory: str | None = None, **more: Any) -> Expectation:
        """What would be expected of a command in a directory there; `tags` and `gpus` matter, too."""
        where = {} if directory is None else {"directory": directory}
        return cast(Expectation, self._ask("POST", "/estimates", {"command": list(command), **where, **more}))

    def forget_estimate(self: _Asking, signature: str) -> int:
        """Forget the runs of a signature; returns how many there were."""
        return int(self._ask("DELETE", f"/estimates/{quote(signature, safe='')}", {})["runs"])
