"""What the tests of trace files share."""

from __future__ import annotations

import pytest

from gpuyard.errors import UserError
from gpuyard.sim.traces import read


def problem(path: str, format: str | None = None) -> str:
    """The one sentence a user gets for this file."""
    with pytest.raises(UserError) as caught:
        read(path, format)
    message = str(caught.value)
    assert message.isprintable()
    return message
