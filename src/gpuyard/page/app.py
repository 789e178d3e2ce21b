"""The application of the page: which views there are, and who gets in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import app as pages
from nicegui import ui

from gpuyard.page import exporting
from gpuyard.page.api import Api, Away, Refused
from gpuyard.page.feed import Feed
from gpuyard.page.frame import frame
from gpuyard.page.furnishing import PATIENCE, furnish, theme
from gpuyard.page.login import CAME_IN, login
from gpuyard.page.simulations.bench import Bench
from gpuyard.page.views import VIEWS, View
from gpuyard.page.visit import Viewer, Visit


def make_app(socket: str, traces: str = "") -> FastAPI:
    """The application, which asks the daemon at a socket, and offers the traces of a folder to be simulated."""
    api = Api(socket)
    feed = Feed(api)
    bench = pages.state.bench = Bench(traces)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        await feed.start()
        yield
        await bench.line.close()
        await feed.stop()

    app = FastAPI(openapi_url=None, lifespan=living)
    exporting.add_to(app, api)
    bench.add_to(app, api)
    for view in VIEWS:
        _add(view, api, feed)
    ui.page("/login", title="Log in · gpuyard")(_log_in)
    furnish(
        app,
        "The daemon does not answer; it may be restarting.",
        "Jobs go on meanwhile. This page tries again by itself.",
        "The page made a mistake, which the daemon's log tells of.",
    )
    return app


def _log_in(request: Request) -> None:
    theme(request)
    login(request.query_params.get("reason", ""))


def _add(view: View, api: Api, feed: Feed) -> None:
    """Make a view known: it is built for whoever the daemon says looks at it."""

    async def build(request: Request) -> Response | None:
        asking = api.as_viewer(request.headers.get("x-gpuyard-ticket", ""))
        if "x-gpuyard-ticket" not in request.headers:
            return _to_login(request)
        try:
            viewer = Viewer(await asking.get("/session"))
        except Refused:
            return _to_login(request)
        except Away:
            return Response("The daemon does not answer at the moment; reload in a second.", 503, {"Retry-After": "1"})
        theme(request)
        visit = Visit(viewer, asking, feed, request.cookies)
        with frame(visit, view.path, view.title if view.headed else ""):
            status = await view.build(visit, **request.path_params)
        return visit.client.build_response(request, status) if status else None

    ui.page(view.path, title=f"{view.title} · gpuyard", response_timeout=PATIENCE)(build)


def _to_login(request: Request) -> Response:
    ui.context.client.delete()  # which nobody will open
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    ended = CAME_IN in request.cookies
    said = (*(["reason=ended"] if ended else ()), *([f"next={quote(wanted)}"] if wanted != "/" else ()))
    answer = RedirectResponse(f"/login{'?' * bool(said)}{'&'.join(said)}", 303)
    if ended:
        answer.delete_cookie(CAME_IN)  # it is told once
    return answer
