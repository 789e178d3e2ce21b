"""The page's own sheets and scripts, and NiceGUI's: packed once, and not asked for again by who has them."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FOLDER = Path(__file__).parent / "assets"
_SHEET = "all.css"
_FOR_EVER = "public, max-age=31536000, immutable"
_PACKED_FROM = 1000  # bytes; less is not worth it
_MOST_KEPT = 2**25  # bytes of NiceGUI's files, packed, of which there are some 2 MB


class File(NamedTuple):
    """What is sent, and what tells whether that has changed."""

    content: bytes
    packed: bytes
    kind: str
    mark: str


def _file(name: str, content: bytes) -> File:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return File(content, gzip.compress(content) if len(content) >= _PACKED_FROM else b"", kind, mark)


def _read() -> dict[str, File]:
    """All files, and all sheets as one: that of all views first, since the others build on it."""
    read = {file.name: file.read_bytes() for file in sorted(_FOLDER.iterdir()) if file.is_file()}
    sheets = sorted((name for name in read if name.endswith(".css")), key=lambda name: (name != "page.css", name))
    read[_SHEET] = b"\n".join(read[name] for name in sheets)
    return {name: _file(name, content) for name, content in read.items()}


class Files:
    """Gives them."""

    def __init__(self) -> None:
        self._files = _read()

    @property
    def head(self) -> str:
        """What every page has in its head; the addresses change with what is there, so that all of it can be kept."""
        sheet, script = (f"/page/assets/{name}?v={self._files[name].mark[1:-1]}" for name in (_SHEET, "page.js"))
        return f'<link rel="stylesheet" href="{sheet}"><script src="{script}"></script>'

    def add_to(self, app: FastAPI) -> None:
        """Make the route known, and keep what NiceGUI packs."""
        app.add_api_route("/page/assets/{name}", self.give, include_in_schema=False)
        app.add_middleware(Kept)

    async def give(self, request: Request, name: str) -> Response:
        """A file, unless the browser has it."""
        file = self._files.get(name)
        if file is None:
            return Response("There is no such file.", 404)
        named = request.query_params.get("v") == file.mark[1:-1]
        headers = {"Cache-Control": _FOR_EVER if named else "no-cache", "ETag": file.mark, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.mark:
            return Response(status_code=304, headers=headers)
        if file.packed and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.kind)
        return Response(file.content, headers=headers, media_type=file.kind)


class Kept:
    """NiceGUI's own files as it sent them last: it would read and pack each of them again for every browser."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: dict[tuple[str, bool], list[Message]] = {}
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from what is kept, or keep the answer."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/_nicegui/"):
            return await self._app(scope, receive, send)
        key = scope["path"], b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b"")
        if key in self._kept:
            for message in self._kept[key]:
                await send(message)
            return None
        sent: list[Message] = []

        async def note(message: Message) -> None:
            sent.append(message)
            await send(message)

        await self._app(scope, receive, note)
        self._keep(key, sent)
        return None

    def _keep(self, key: tuple[str, bool], sent: list[Message]) -> None:
        """Keep what may be kept for ever, as its head says; all of it, or nothing."""
        if not sent or sent[0].get("status") != 200 or sent[-1].get("more_body"):
            return
        size = sum(len(message.get("body", b"")) for message in sent)
        lasting = b"immutable" in dict(sent[0]["headers"]).get(b"cache-control", b"")
        if lasting and self._size + size <= _MOST_KEPT:
            self._kept[key] = sent
            self._size += size
