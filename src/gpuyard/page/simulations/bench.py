"""The comparisons of this process with all that they need, and the routes by which browsers bring and fetch."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Awaitable, Callable
from typing import IO, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gpuyard.errors import UserError
from gpuyard.page.api import Api, Away, Refused
from gpuyard.page.simulations import past
from gpuyard.page.simulations.choices import Choices
from gpuyard.page.simulations.places import Folder, Uploads
from gpuyard.page.simulations.runs import Line, Run

_PRIVATE = {"Cache-Control": "private, max-age=3600"}


class Bench:
    """Where viewers have policies compared."""

    def __init__(self, traces: str = "") -> None:
        self.line = Line()
        self.uploads = Uploads()
        self.folder = Folder(traces)

    def start(self, viewer: str, choices: Choices, api: Api) -> Run:
        """Have something simulated in a viewer's name."""
        return self.line.start(viewer, choices, self._opener(viewer, choices, api))

    def _opener(self, viewer: str, choices: Choices, api: Api) -> Callable[[], Awaitable[IO[bytes] | None]]:
        async def opened() -> IO[bytes] | None:
            if choices.source == "history":
                file, _ = await past.gather(api, choices.since, choices.whose)
                return file
            if choices.source == "file":
                return self.folder.open(choices.file)
            if choices.source == "upload":
                upload = self.uploads.find(viewer, choices.upload)
                if upload is None:
                    raise UserError("the file that was uploaded is no longer here; choose it again")
                return upload.file
            return None

        return opened

    def add_to(self, app: FastAPI, api: Api) -> None:
        """Make the routes known."""
        add = app.add_api_route
        add("/page/upload", _for_viewers(api, self._upload), methods=["POST"], include_in_schema=False)
        add("/page/simulations/{id}/{what}", _for_viewers(api, self._fetch), include_in_schema=False)

    async def _upload(self, request: Request, viewer: dict[str, Any]) -> Response:
        if viewer["role"] not in ("admin", "user"):
            return JSONResponse({"detail": "Your role lets you look, and not simulate."}, 403)
        try:
            name = request.query_params.get("name", "trace")
            found = await self.uploads.add(viewer["user"], name, request.stream())
        except UserError as error:
            return JSONResponse({"detail": _sentence(str(error))}, 413)
        return JSONResponse({"id": found.id, "name": found.name, "size": found.size})

    async def _fetch(self, request: Request, viewer: dict[str, Any]) -> Response:
        run = self.line.find(viewer["user"], request.path_params["id"])
        what: str = request.path_params["what"]
        if run is None or run.state != "done":
            return JSONResponse({"detail": "There is no such result any more; simulate it again."}, 404)
        if what == "curves":
            return Response(run.curves, media_type="application/json", headers=_PRIVATE)
        if what.isdecimal() and int(what) in run.charts:
            return Response(run.charts[int(what)], media_type="application/json", headers=_PRIVATE)
        if what == "comparison.json":
            return _download(json.dumps(document(run), indent=2), "application/json", what)
        if what == "comparison.csv":
            return _download(table(run), "text/csv", what)
        return JSONResponse({"detail": "There is no such thing."}, 404)


def document(run: Run) -> dict[str, Any]:
    """What `gpuyard compare --json` prints, and how to have it printed."""
    found = run.table
    told = {"trace": run.choices.title(), "commands": run.choices.commands(), "gpus": found["gpus"]}
    return {**told, "results": found["results"], **({"errors": found["errors"]} if found["errors"] else {})}


def table(run: Run) -> str:
    """The metrics as CSV, one policy a line."""
    text = io.StringIO()
    rows = run.table["results"]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _download(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


_Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


def _for_viewers(api: Api, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
    """A route for whom the daemon knows."""

    async def known(request: Request) -> Response:
        if "x-gpuyard-ticket" not in request.headers:
            return JSONResponse({"detail": "Log in first."}, 401)
        try:
            viewer = await api.as_viewer(request.headers["x-gpuyard-ticket"]).get("/session")
        except Refused as error:
            return JSONResponse({"detail": str(error)}, error.status)
        except Away:
            return JSONResponse({"detail": "The daemon does not answer at the moment; try again in a second."}, 503)
        return await handler(request, viewer)

    return known


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
