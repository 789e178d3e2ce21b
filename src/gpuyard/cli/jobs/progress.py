"""`gpuyard progress`: a shell script reports its progress. It imports almost nothing: scripts call it often."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.errors import UserError


def progress(
    amount: Annotated[str, typer.Argument(metavar="37/100", help="Done and in all, or done in per cent: 37%.")],
) -> None:
    """Tell from inside a job how far it is."""
    from gpuyard.client import progress as reporting

    reported = reporting.amount(amount)
    if reported is None:
        raise UserError(f"'{amount}' does not say how far a job is; write for example 37/100 or 37%")
    reporting.progress(*reported)
