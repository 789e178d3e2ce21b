"""What a request holds, where a handler reads it by itself."""

from __future__ import annotations

import json
from typing import Any

from gpuyard.errors import UserError


class NotJson(UserError):
    """The request is not JSON."""


def read_json(body: bytes) -> Any:
    """The value in a body."""
    try:
        return json.loads(body)
    except RecursionError:
        raise NotJson("the request is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"the request is not JSON: {error}") from error
