"""The cluster dashboard's application: its four views, and the check of host names and origins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import Response
from nicegui import ui
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.page.cluster import cluster_views
from gpuyard.page.cluster.cluster_feed import ClusterFeed, ClusterVisit
from gpuyard.page.frame import Place, head, one_main
from gpuyard.page.nicegui_setup import BUILD_TIMEOUT, apply_theme, set_up_nicegui
from gpuyard.page.parts import Section

_WEBSOCKET_PATH = "/_nicegui_ws/"
_READ_METHODS = ("GET", "HEAD")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy",  # Vue compiles templates, and NiceGUI has inline scripts
     b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
     b"img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
     b"form-action 'none'; frame-ancestors 'none'"),
)  # fmt: skip


class AllowedHosts:
    """Host names by which the page answers: localhost, given names, and on request any address.

    The port does not matter: `kubectl port-forward` uses another one than we listen at, and no page can choose it.
    """

    def __init__(self, given: Iterable[str] = (), *, addresses: bool = False) -> None:
        self._given = {"localhost", *(name.lower() for name in given)}
        self._addresses = addresses

    def __contains__(self, host: str) -> bool:
        name = _name(host)
        if name in self._given:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._addresses  # no DNS can redirect an address


class RequestGuard:
    """Refuses foreign host names, foreign origins, and requests that would change something."""

    def __init__(self, app: ASGIApp, names: AllowedHosts) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        refused = self._refused(scope)
        if scope["type"] == "websocket" and refused:
            return await send({"type": "websocket.close", "code": 1008})

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [header for header in _HEADERS if header[0] not in there]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        answer: ASGIApp = PlainTextResponse(refused[1], refused[0]) if refused else self._app
        return await answer(scope, receive, careful)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or hosts[0] not in self._names:
            return 421, (
                f"This page does not answer as {', '.join(hosts) or 'nobody'}; if it should, name that with "
                "gpuyard kubernetes dashboard --allowed-host.\n"
            )
        if any(not _is_same(origin, hosts[0]) for origin in origins):
            return 403, f"A page of {', '.join(origins)} may not ask this one.\n"
        if (
            scope["type"] == "http"
            and scope["method"] not in _READ_METHODS
            and not scope["path"].startswith(_WEBSOCKET_PATH)
        ):
            return 405, "There is nothing to change here: the cluster is only looked at.\n"
        return None


def _values(scope: Scope, wanted: bytes) -> Sequence[str]:
    return [value.decode("latin-1").strip() for name, value in scope["headers"] if name == wanted]


def _name(host: str) -> str:
    """The name in `name:port`; empty if malformed."""
    try:
        found = urlsplit(f"//{host.lower()}")
        port = found.port
    except ValueError:
        return ""
    rest = f":{port}" if port is not None else ""
    whole = found.netloc == host.lower() and found.username is None
    return (found.hostname or "").removesuffix(".") if whole and found.netloc.endswith(rest) else ""


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin is this host; a proxy may have terminated TLS."""
    scheme, _, there = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme)
    return usual is not None and there.removesuffix(usual) == host.lower().removesuffix(usual)


_PLACES = (Place("/", "Cluster", "grid_view"), Place("/pods", "Pods", "list"))
_VIEWS: dict[str, tuple[str, Callable[..., int | None]]] = {
    "/": ("Cluster", lambda look: look.follow(cluster_views.ClusterOverview(look).show)),
    "/pods": ("Pods", lambda look: look.follow(cluster_views.PodList(look).show)),
    "/pods/{namespace}/{name}": ("Pod", cluster_views.build_pod),
    "/nodes/{name}": ("Node", cluster_views.build_node),
}


def make_app(scheduler: str, names: AllowedHosts) -> RequestGuard:
    feed = ClusterFeed(scheduler)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        await feed.start()
        yield
        await feed.stop()

    app = FastAPI(openapi_url=None, lifespan=living)
    for path, (title, build) in _VIEWS.items():
        _add(path, title, build, feed)
    set_up_nicegui(
        app,
        "The dashboard does not answer; it may have been ended.",
        "The cluster goes on without it. This page tries again by itself.",
        "The page made a mistake, which the dashboard's output tells of.",
    )
    return RequestGuard(app, names)


def _add(path: str, title: str, build: Callable[..., int | None], feed: ClusterFeed) -> None:
    async def built(request: Request) -> Response | None:
        await feed.fresh()
        apply_theme(request)
        look = ClusterVisit(feed, request.cookies)
        one_main()
        head(path, None, _PLACES)
        _banner(look)
        with ui.element("main").classes("gy-main gy-cl").props("id=main tabindex=-1"):
            status = build(look, **request.path_params)
        return look.client.build_response(request, status) if status else None

    ui.page(path, title=f"{title} · gpuyard", response_timeout=BUILD_TIMEOUT)(built)


def _banner(look: ClusterVisit) -> None:
    banner = Section("gy-banner", props="role=status")

    async def show() -> None:
        away, cluster = look.feed.away, look.feed.cluster
        of = "" if cluster is None else f" What you see is of {look.when(cluster.at, seconds=True)}."
        said = f"{away}{of} This page waits for it; pods go on meanwhile." if away else ""
        banner.show(said, lambda: ui.label(said), visible=bool(said))

    look.live(show)
