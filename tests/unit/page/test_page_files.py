"""Sheets and scripts of the page: packed once, and not sent to who has them."""

from __future__ import annotations

import asyncio
import re

import httpx
from fastapi import FastAPI, Response

from gpuyard.page.nicegui_setup import Assets

FOR_EVER = "public, immutable"


class Browser:
    def __init__(self, app: FastAPI) -> None:
        self._transport = httpx.ASGITransport(app)

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async def got() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://page") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(got())


def served() -> tuple[Browser, Assets, list[str]]:
    app, files, made = FastAPI(), Assets(), list[str]()
    files.add_to(app)

    async def static(name: str) -> Response:
        made.append(name)
        lasting = FOR_EVER if name != "changing.js" else "no-store"
        return Response(name, 404 if name == "none.js" else 200, {"Cache-Control": lasting})

    app.add_api_route("/_nicegui/{name}", static)
    return Browser(app), files, made


def test_what_a_page_has_in_its_head_is_there_and_is_kept_for_ever() -> None:
    client, files, _ = served()
    addresses = re.findall(r'(?:href|src)="([^"]+)"', files.head)
    assert len(addresses) == 2
    for address in addresses:
        answer = client.get(address)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True), address
        assert answer.headers["content-encoding"] == "gzip"
        assert client.get(address, headers={"Accept-Encoding": ""}).text == answer.text


def test_all_sheets_are_one_and_the_shared_one_comes_first() -> None:
    client, *_ = served()
    whole = client.get("/page/assets/all.css").text
    assert whole.startswith(client.get("/page/assets/page.css").text)
    assert client.get("/page/assets/table.css").text in whole


def test_a_file_by_its_plain_name_is_asked_for_again_but_not_sent_again() -> None:
    client, *_ = served()
    first = client.get("/page/assets/words.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/page/assets/words.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/page/assets/words.js", headers={"If-None-Match": '"another"'}).status_code == 200
    assert client.get("/page/assets/words.js?v=other").headers["cache-control"] == "no-cache"


def test_there_is_nothing_else_to_be_had() -> None:
    client, *_ = served()
    for path in ("nothing.js", "..%2Fapp.py", "%2Fetc%2Fpasswd"):
        assert client.get(f"/page/assets/{path}").status_code == 404, path


def test_what_lasts_is_made_once() -> None:
    client, _, made = served()
    for _ in range(3):
        for name in ("vue.js", "changing.js", "none.js"):
            assert client.get(f"/_nicegui/{name}").text == name
    assert {name: made.count(name) for name in made} == {"vue.js": 1, "changing.js": 3, "none.js": 3}
