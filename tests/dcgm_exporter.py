"""An exporter of made-up GPUs as dcgm-exporter writes them, under its new names, its old ones or both.

By hand: `python -m tests.dcgm_exporter --port 9400`, with `--script FILE` for values of one's own. The file is a list
in JSON, of what all GPUs say (`{"utilization": 40, "power": 200}`), or of what each says (`{"0": {...}, "1": {...}}`),
one for each scrape; the last one stays. Without it every metric goes up and down.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

NEW = {
    "utilization": "DCGM_FI_DEV_GPU_UTIL",
    "memcopy": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "power": "DCGM_FI_DEV_POWER_USAGE",
    "temperature": "DCGM_FI_DEV_GPU_TEMP",
    "memory_used": "DCGM_FI_DEV_FB_USED",
    "memory_free": "DCGM_FI_DEV_FB_FREE",
    "sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    "memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "xid": "DCGM_FI_DEV_XID_ERRORS",
    "throttle": "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
}
OLD = {
    "utilization": "dcgm_gpu_utilization",
    "memcopy": "dcgm_mem_copy_utilization",
    "power": "dcgm_power_usage",
    "temperature": "dcgm_gpu_temp",
    "memory_used": "dcgm_fb_used",
    "memory_free": "dcgm_fb_free",
    "sm_clock": "dcgm_sm_clock",
    "memory_clock": "dcgm_memory_clock",
    "xid": "dcgm_xid_errors",
}
Values = Mapping[str, float]
"""By our names of metrics, but in DCGM's units: memory in MiB."""
Script = Callable[[int, int], Values]
"""What a GPU says at a scrape, both counted from 0."""


class Scrape(NamedTuple):
    """What was told when."""

    at: float
    gpus: list[Values]


def waves(scrape: int, gpu: int) -> Values:
    """Values that are all different, within what GPUs do."""
    height = 0.5 + 0.5 * math.sin(scrape / 5 + gpu)
    used = 1000 * gpu + round(20_000 * height)
    return {
        "utilization": round(100 * height), "memcopy": round(40 * height), "power": round(60 + 300 * height, 3),
        "temperature": 35 + round(40 * height), "memory_used": used, "memory_free": 81_920 - used,
        "sm_clock": 210 + round(1200 * height), "memory_clock": 1215, "xid": 0, "throttle": 0,
    }  # fmt: skip


def scripted(rows: Sequence[Mapping[str, Any]]) -> Script:
    """A script from a list of what GPUs say, scrape by scrape."""

    def values(scrape: int, gpu: int) -> Values:
        row = rows[min(scrape, len(rows) - 1)]
        return row.get(str(gpu), {}) if any(key.isdigit() for key in row) else row

    return values


class Exporter(ThreadingHTTPServer):
    """Answers every scrape, and remembers what it said."""

    daemon_threads = True

    def __init__(
        self,
        port: int = 0,
        *,
        gpus: int = 2,
        families: Sequence[Mapping[str, str]] = (NEW,),
        host: str = "n1",
        script: Script = waves,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.gpus, self.families, self.host, self.script = gpus, families, host, script
        self.more: dict[int, list[dict[str, str]]] = {}
        """Further labels by GPU, such as `pod`; a GPU has a series for each of these."""
        self.told: list[Scrape] = []
        self._lock = threading.Lock()

    @property
    def target(self) -> str:
        """What Prometheus calls it."""
        return f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Exporter:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def page(self) -> str:
        """The metrics, as of the next scrape."""
        with self._lock:
            values = [self.script(len(self.told), gpu) for gpu in range(self.gpus)]
            lines = [line for family in self.families for line in self._lines(family, values)]
            self.told.append(Scrape(time.time(), values))
        return "\n".join(lines) + "\n"

    def _lines(self, names: Mapping[str, str], values: Sequence[Values]) -> list[str]:
        lines = []
        for metric, name in names.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [
                f"{name}{{{self._labels(gpu, names is NEW, more)}}} {said[metric]}"
                for gpu, said in enumerate(values) if metric in said for more in self.more.get(gpu, [{}])
            ]  # fmt: skip
        return lines

    def _labels(self, gpu: int, new: bool, more: Mapping[str, str]) -> str:
        uuid = f"GPU-{self.host}-{gpu}"
        labels = {"gpu": str(gpu), "uuid": uuid, **more}
        if new:
            labels = {
                "gpu": str(gpu), "UUID": uuid, "device": f"nvidia{gpu}", "modelName": "NVIDIA A100-SXM4-80GB",
                "Hostname": self.host, "DCGM_FI_DRIVER_VERSION": "535.129.03", **more,
            }  # fmt: skip
        return ",".join(f'{name}="{value}"' for name, value in labels.items())


class _Handler(BaseHTTPRequestHandler):
    server: Exporter

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        data = self.server.page().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="An exporter of made-up GPUs, as dcgm-exporter writes them.")
    parser.add_argument("--port", type=int, default=9400)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--host", default="n1", help="what it calls its machine")
    parser.add_argument("--names", choices=("new", "old", "both"), default="new")
    parser.add_argument("--script", type=Path, help="what it says, scrape by scrape")
    given = parser.parse_args()
    families = {"new": (NEW,), "old": (OLD,), "both": (NEW, OLD)}[given.names]
    script = scripted(json.loads(given.script.read_text())) if given.script else waves
    with Exporter(given.port, gpus=given.gpus, families=families, host=given.host, script=script) as exporter:
        print(f"listening on http://{exporter.target}/metrics", file=sys.stderr, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
