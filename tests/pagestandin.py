"""What stands in for the page's process: `python tests/pagestandin.py --fd N --socket PATH`.

It tells what it was asked, echoes what comes by websockets, and does on purpose what a page does by mistake.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter
from typing import Any

asked: Counter[str] = Counter()
PIECE = b"0123456789abcdef" * 4096


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await _websocket(scope, receive, send)
        return
    path, body = scope["path"], 0
    if path == "/page/hasty":  # it says no before it has heard what about, and hangs up
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})
        return
    while (message := await receive())["type"] == "http.request":
        body += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    asked[path] += 1
    if path == "/page/slow":
        await asyncio.sleep(1.0)
    if path == "/page/deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    told = {name.decode(): value.decode() for name, value in scope["headers"]}
    query, me = scope["query_string"].decode(), {"pid": os.getpid(), "nice": os.nice(0), "asked": asked}
    said = json.dumps({"path": path, "query": query, "body": body, "headers": told, **me}).encode()
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"max-age=9"), (b"keep-alive", b"1"),
               (b"set-cookie", b"gpuyard_session=fixed"), (b"set-cookie", b"theme=dark")]  # fmt: skip
    if path == "/page/endless":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(1024):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
    elif path == "/page/cut":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        status = 303 if path == "/page/elsewhere" else 200
        length = (b"content-length", str(len(said)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": b"" if path == "/page/endless" else said})


async def _websocket(scope: Any, receive: Any, send: Any) -> None:
    """Tell the head, then echo; `flood` lets it send without end."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": json.dumps({k.decode(): v.decode() for k, v in scope["headers"]})})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "flood":
            while True:
                await send({"type": "websocket.send", "bytes": PIECE})
        await send({"type": "websocket.send", "text": message.get("text", "")})


def main() -> None:
    from gpuyard.page import process

    process.end_with_daemon()
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--socket")
    given, _ = parser.parse_known_args()
    print("page: a word", "gt_" + "x" * 40, file=sys.stderr, flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio",
                            timeout_graceful_shutdown=1)  # fmt: skip
    with socket.socket(fileno=given.fd) as listener:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
