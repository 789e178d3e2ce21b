"""Our scheduler for Kubernetes as a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kube.processes import free_port, kill, spawn
from tests.yard import PATIENCE


class Scheduler:
    """A running `gpuyard kubernetes scheduler`, and what it serves."""

    def __init__(
        self, kubeconfig: Path, folder: Path, environment: Mapping[str, str], flags: Sequence[str] = ()
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / f"scheduler-{port}.log"
        command = [sys.executable, "-m", "gpuyard", "kubernetes", "scheduler",
                   "--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{port}", *flags]  # fmt: skip
        self.process: subprocess.Popen[bytes] = spawn(command, self._log, environment)

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self.process.pid

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    def status(self, path: str) -> int:
        """The HTTP status of a path that it serves; 0: it does not answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def get(self, path: str) -> str:
        """What it serves at a path."""
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def json(self, path: str = "/cluster") -> Any:
        """What it serves at a path, read."""
        return json.loads(self.get(path))

    def wait_ready(self, path: str = "/readyz") -> None:
        """Return once it says that it is."""
        end = time.monotonic() + PATIENCE
        while self.status(path) != 200:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < end, f"it is not ready after {PATIENCE} s:\n{self.log()}"
            time.sleep(0.02)

    def stop(self) -> int:
        """End it as a kubelet would; its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End it without a word."""
        kill(self.process)
