"""A real Prometheus on loopback, where Debian's is installed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.yard import until


def tool(name: str) -> str:
    """A program of Debian's prometheus; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}; apt-get install -y --no-install-recommends prometheus")
    return found


class RealPrometheus:
    """A server that scrapes some targets, and that can be stopped and started again."""

    def __init__(self, folder: Path, targets: Sequence[str], interval: str = "500ms") -> None:
        self._command = tool("prometheus")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self._address}"
        scrape = {"job_name": "gpus", "scrape_interval": interval, "static_configs": [{"targets": list(targets)}]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))  # YAML is JSON as well

    @property
    def blocks(self) -> Path:
        """Where its data is."""
        return self._folder / "tsdb"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [self._command, f"--config.file={self._folder}/prometheus.yml",
                   f"--storage.tsdb.path={self.blocks}", f"--web.listen-address={self._address}"]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: self.query("vector(1)"), "an answer of Prometheus")

    def stop(self) -> None:
        """End it as the system would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def query(self, text: str) -> list[Mapping[str, Any]]:
        """What an expression is now; nothing while the server is not up."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': text})}") as answer:
                found: list[Mapping[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:
                    return []
                raise AssertionError(f"{text}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return []
