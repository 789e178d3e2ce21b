"""No secret in a log: not even of a token that somebody put where none belongs, or of a ticket."""

from __future__ import annotations

import logging
import re

_TOKEN = re.compile(r"(gy_[a-z0-9]+)_[A-Za-z0-9_-]{16,}")
_TICKET = re.compile(r"\bgt_[A-Za-z0-9_.-]{16,}")


def without_secrets(text: str) -> str:
    """The text with tokens of which only the id is left, and tickets of which nothing is."""
    return _TICKET.sub("gt_...", _TOKEN.sub(r"\1_...", text))


class Discreet(logging.Formatter):
    """Writes lines of a log, tracebacks and all, without the secrets of tokens."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return without_secrets(super().format(record))
