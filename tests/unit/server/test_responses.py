"""Times in sentences, as who asks wants them."""

from __future__ import annotations

import contextvars

import pytest

from gpuyard.server.responses import clock, iso, set_time_format


@pytest.mark.parametrize(
    ("value", "exact"), [(b"times=iso", True), (b"respond-async, times = iso", True), (b"times=local", False)]
)
def test_a_header_chooses_how_times_in_sentences_are_told(value: bytes, exact: bool) -> None:
    def told() -> str:
        set_time_format([(b"host", b"box"), (b"prefer", value)])
        return clock(1.8e9)

    plain = contextvars.copy_context().run(clock, 1.8e9)
    assert contextvars.copy_context().run(told) == (iso(1.8e9) if exact else plain)
    assert plain != iso(1.8e9)
