"""Points where a test may have the process killed."""

from __future__ import annotations


def point(name: str) -> None:
    """Nothing, unless a test says otherwise."""
