"""The application: four pages, all of them to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import Response
from nicegui import ui

from gpuyard.page.cluster import node, overview, pod, pods
from gpuyard.page.cluster.door import Door, Names
from gpuyard.page.cluster.feed import Feed
from gpuyard.page.cluster.look import Look
from gpuyard.page.frame import Place, head, one_main
from gpuyard.page.furnishing import PATIENCE, furnish, theme
from gpuyard.page.sections import Section

_PLACES = (Place("/", "Cluster", "grid_view"), Place("/pods", "Pods", "list"))
_VIEWS: dict[str, tuple[str, Callable[..., int | None]]] = {
    "/": ("Cluster", overview.build),
    "/pods": ("Pods", pods.build),
    "/pods/{namespace}/{name}": ("Pod", pod.build),
    "/nodes/{name}": ("Node", node.build),
}


def make_app(scheduler: str, names: Names) -> Door:
    """The application, which asks the scheduler at a URL, and answers by these names."""
    feed = Feed(scheduler)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        await feed.start()
        yield
        await feed.stop()

    app = FastAPI(openapi_url=None, lifespan=living)
    for path, (title, build) in _VIEWS.items():
        _add(path, title, build, feed)
    furnish(
        app,
        "The dashboard does not answer; it may have been ended.",
        "The cluster goes on without it. This page tries again by itself.",
        "The page made a mistake, which the dashboard's output tells of.",
    )
    return Door(app, names)


def _add(path: str, title: str, build: Callable[..., int | None], feed: Feed) -> None:
    async def built(request: Request) -> Response | None:
        await feed.fresh()
        theme(request)
        look = Look(feed, request.cookies)
        one_main()
        head(path, None, _PLACES)
        _banner(look)
        with ui.element("main").classes("gy-main gy-cl").props("id=main tabindex=-1"):
            status = build(look, **request.path_params)
        return look.client.build_response(request, status) if status else None

    ui.page(path, title=f"{title} · gpuyard", response_timeout=PATIENCE)(built)


def _banner(look: Look) -> None:
    """Tell that the scheduler is away, and of when it is that is shown."""
    banner = Section("gy-banner", props="role=status")

    async def show() -> None:
        away, cluster = look.feed.away, look.feed.cluster
        of = "" if cluster is None else f" What you see is of {look.when(cluster.at, seconds=True)}."
        said = f"{away}{of} This page waits for it; pods go on meanwhile." if away else ""
        banner.show(said, lambda: ui.label(said), visible=bool(said))

    look.live(show)
