"""The page that the daemon itself serves: GPUs, queue and what is over, live, in three files of our own.

It holds nothing secret, and anybody may have it; what it shows it asks the API for, with the rights of whoever looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Response

from gpuyard.server.permissions import May

_HERE = Path(__file__).parent / "front"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_ROUTES = {"/": "index.html", "/page/page.css": "page.css", "/page/page.js": "page.js"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def add_front(app: FastAPI) -> None:
    """Make the page's files known."""
    everybody = {"x-may": May.EVERYBODY.value}
    for path, name in _ROUTES.items():
        app.add_api_route(path, _giving(_HERE / name), include_in_schema=False, openapi_extra=everybody)


def _giving(file: Path) -> Callable[[], Awaitable[Response]]:
    content = file.read_bytes()

    async def give() -> Response:
        return Response(content, media_type=_KINDS[file.suffix], headers=_HEADERS)

    return give
