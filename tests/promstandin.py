"""What listens where a Prometheus should: series that tests make up, and refusals of all kinds."""

from __future__ import annotations

import bisect
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Refusal = tuple[int, str]
Pairs = Sequence[tuple[float, str]]
_JOIN: dict[str, Callable[[list[float]], float]] = {"avg": lambda v: sum(v) / len(v), "min": min, "max": max}


class PromStandIn(ThreadingHTTPServer):
    """Answers the three questions that a source asks, in the forms in which it asks them, and remembers them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.series: list[tuple[Mapping[str, str], Pairs]] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.headers: list[Mapping[str, str]] = []
        self.refuse: Callable[[str, Mapping[str, str]], Refusal | None] = lambda path, query: None
        """A status and a body in place of an answer."""
        self.most = 11_000
        """Points of a series that it tells at once."""

    def __enter__(self) -> PromStandIn:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def add(self, metric: str, values: Pairs, /, **labels: str) -> None:
        """A series."""
        self.series.append(({"__name__": metric, **labels}, values))

    def answer(self, path: str, query: Mapping[str, str]) -> Refusal:
        """What is said to a question."""
        if (refusal := self.refuse(path, query)) is not None:
            return refusal
        if path == "series":
            found: Any = [labels for labels, _ in self._matching(query["match[]"])]
            return 200, json.dumps({"status": "success", "data": found})
        ways: dict[str, Callable[[Mapping[str, str]], list[Any]]] = {"query": self._samples, "query_range": self._spans}
        result = ways[path](query)
        if path == "query_range" and any(len(one["values"]) > self.most for one in result):
            error = "exceeded maximum resolution of 11,000 points per timeseries"
            return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": error})
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})

    def _matching(self, selector: str) -> list[tuple[Mapping[str, str], Pairs]]:
        name = re.match(r"(\w*)\{", selector)
        assert name is not None, selector
        tests = dict(re.findall(r'(\w+)=~"((?:[^"\\]|\\.)*)"', selector))
        if name[1]:
            tests["__name__"] = name[1]
        patterns = {label: pattern.replace("\\\\", "\\") for label, pattern in tests.items()}
        return [
            (labels, values) for labels, values in self.series
            if all(re.fullmatch(pattern, labels.get(label, "")) for label, pattern in patterns.items())
        ]  # fmt: skip

    def _samples(self, query: Mapping[str, str]) -> list[Any]:
        match = re.fullmatch(r"(\{.*\})\[(\d+)(ms|s)\]", query["query"])
        assert match is not None, query
        end = float(query["time"])
        start = end - float(match[2]) * (0.001 if match[3] == "ms" else 1.0)
        inside = ((labels, _between(values, start, end)) for labels, values in self._matching(match[1]))
        return [{"metric": labels, "values": values} for labels, values in inside if values]

    def _spans(self, query: Mapping[str, str]) -> list[Any]:
        match = re.fullmatch(r"(avg|min|max)_over_time\((\w+\{.*\})\[(\d+)ms\]\)", query["query"])
        assert match is not None, query
        start, end, step, width = (float(text) for text in (query["start"], query["end"], query["step"], match[3]))
        found = []
        for labels, pairs in self._matching(match[2]):
            values = []
            for number in range(int((end - start) / step + 1e-6) + 1):
                at = start + number * step
                inside = [float(value) for _, value in _between(pairs, at - width / 1000, at)]
                if inside:
                    values.append((at, str(_JOIN[match[1]](inside))))
            if values:
                found.append({"metric": {k: v for k, v in labels.items() if k != "__name__"}, "values": values})
        return found


def _between(pairs: Pairs, start: float, end: float) -> Pairs:
    first = bisect.bisect_left(pairs, start - 1e-6, key=lambda pair: pair[0])
    return pairs[first : bisect.bisect_right(pairs, end + 1e-6, key=lambda pair: pair[0])]


class _Handler(BaseHTTPRequestHandler):
    server: PromStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path.removeprefix("/api/v1/")
        self.server.asked.append((path, query))
        self.server.headers.append(dict(self.headers))
        status, body = self.server.answer(path, query)
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
