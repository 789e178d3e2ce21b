"""The page's application: its views, the login page and the check of sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import app as pages
from nicegui import ui

from gpuyard.page.api import Api, Refused, Unavailable
from gpuyard.page.feed import Feed
from gpuyard.page.frame import frame, head, one_main
from gpuyard.page.nicegui_setup import BUILD_TIMEOUT, apply_theme, set_up_nicegui
from gpuyard.page.parts import command, heading, tagged
from gpuyard.page.simulations.runs import Comparisons
from gpuyard.page.views import VIEWS, View, history_tables
from gpuyard.page.visit import Viewer, Visit

_ENDED = "You were logged out: your token was revoked or has expired, or was not used here for 12 hours."
REASONS = {"ended": _ENDED, "refused": f"{_ENDED} What you asked for last was not done."}
"""Why a viewer is sent to the login page, by the `reason` in the URL; other values are not shown."""
LOGGED_IN_COOKIE = "gpuyard_came_in"
"""Session cookie, no secret, that marks a browser as logged in until it logs out or closes."""


def login_form(reason: str = "") -> None:
    one_main()
    head("/login", None)
    with ui.element("main").classes("gy-main gy-door").props("id=main tabindex=-1"):
        heading("Log in", 1)
        if reason in REASONS:
            ui.label(REASONS[reason]).classes("gy-refusal").props("role=alert")
        ui.label("This daemon wants to know who looks. Paste a token; an admin of this machine makes one with")
        command("gpuyard token create NAME")
        with ui.element("form").classes("gy-login").props('id=login onsubmit="gyLogIn(event)"'):
            tagged("label", "Token").props("for=token")
            ui.element("input").props(
                "id=token name=token type=password autocomplete=current-password required autofocus"
            )
            tagged("button", "Log in").props("type=submit").classes("gy-submit")
        ui.element("p").props("id=refusal role=alert").classes("gy-refusal")


def make_app(socket: str, traces: str = "") -> FastAPI:
    """The application: asks the daemon at a socket, and offers traces from a folder for simulation."""
    api = Api(socket)
    feed = Feed(api)
    comparisons = pages.state.comparisons = Comparisons(traces)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        await feed.start()
        yield
        await comparisons.queue.close()
        await feed.stop()

    app = FastAPI(openapi_url=None, lifespan=living)
    history_tables.add_export(app, api)
    comparisons.add_to(app, api)
    for view in VIEWS:
        _add(view, api, feed)
    ui.page("/login", title="Log in · gpuyard")(_log_in)
    set_up_nicegui(
        app,
        "The daemon does not answer; it may be restarting.",
        "Jobs go on meanwhile. This page tries again by itself.",
        "The page made a mistake, which the daemon's log tells of.",
    )
    return app


def _log_in(request: Request) -> None:
    apply_theme(request)
    login_form(request.query_params.get("reason", ""))


def _add(view: View, api: Api, feed: Feed) -> None:
    """Register a view; it is built for the viewer that the daemon recognises."""

    async def build(request: Request) -> Response | None:
        asking = api.as_viewer(request.headers.get("x-gpuyard-ticket", ""))
        if "x-gpuyard-ticket" not in request.headers:
            return _to_login(request)
        try:
            viewer = Viewer(await asking.get("/session"))
        except Refused:
            return _to_login(request)
        except Unavailable:
            return Response("The daemon does not answer at the moment; reload in a second.", 503, {"Retry-After": "1"})
        apply_theme(request)
        visit = Visit(viewer, asking, feed, request.cookies)
        with frame(visit, view.path, view.title if view.headed else ""):
            status = await view.build(visit, **request.path_params)
        return visit.client.build_response(request, status) if status else None

    ui.page(view.path, title=f"{view.title} · gpuyard", response_timeout=BUILD_TIMEOUT)(build)


def _to_login(request: Request) -> Response:
    ui.context.client.delete()  # the page is not opened
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    ended = LOGGED_IN_COOKIE in request.cookies
    said = (*(["reason=ended"] if ended else ()), *([f"next={quote(wanted)}"] if wanted != "/" else ()))
    answer = RedirectResponse(f"/login{'?' * bool(said)}{'&'.join(said)}", 303)
    if ended:
        answer.delete_cookie(LOGGED_IN_COOKIE)  # show the reason once
    return answer
