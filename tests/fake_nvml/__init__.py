"""NVIDIA GPUs that a test makes up, for programs that find them through NVML.

    def test_something(fake_nvml: FakeNvml) -> None:
        fake_nvml.add(mem_used=2**30, procs={6512: 2**30})
        subprocess.run([...], env=fake_nvml.env)
        fake_nvml.set(0, lost=1)

NVML is loaded once per process, so look at these GPUs from a process of their own: any command, or `watch()`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"

Value = str | int | Mapping[int, int | None]


def build(folder: Path) -> Path | None:
    """Compile the library into a folder; None without a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", LIBRARY, str(HERE / "fake_nvml.c")]
    subprocess.run(command, cwd=folder, check=True)
    return folder


class FakeNvml:
    """GPUs, MIG devices and a driver, as lines of a state file that can change at any time; fake_nvml.c has the keys.

    Processes are written as `{pid: bytes}`, with None for bytes that the driver does not know.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self.state = folder / "nvml-state.txt"
        self.env = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
            "FAKE_NVML_STATE": str(self.state),
        }
        self._lines: list[dict[str, Value]] = []
        self._driver: dict[str, Value] = {"driver": "550.54.15"}
        self._write()

    def add(self, **keys: Value) -> int:
        """One more line: a GPU, or with `mig_of` a MIG device of that GPU. Returns the number of the line."""
        self._lines.append(keys)
        self._write()
        return len(self._lines) - 1

    def set(self, number: int, **keys: Value) -> None:
        """Change a line."""
        self._lines[number].update(keys)
        self._write()

    def unset(self, number: int, *keys: str) -> None:
        """Take keys out of a line."""
        for key in keys:
            self._lines[number].pop(key, None)
        self._write()

    def remove(self, number: int) -> None:
        """Take a line away; the numbers of those after it become one less."""
        del self._lines[number]
        self._write()

    def driver(self, **keys: Value) -> None:
        """Change the driver: `loaded=0`, `fail="nvmlInit:18"`, `driver="535.54.03"`."""
        self._driver.update(keys)
        self._write()

    @contextmanager
    def watch(self, retry_driver: float = 0.0, retry_gpu: float = 0.0) -> Iterator[Watch]:
        """A process that has opened `NvmlGpus` and reads them when told to."""
        command = [sys.executable, "-m", "tests.fake_nvml.watch", str(retry_driver), str(retry_gpu)]
        folder, pipe = HERE.parent.parent, subprocess.PIPE
        with subprocess.Popen(command, cwd=folder, env=self.env, stdin=pipe, stdout=pipe, text=True) as process:
            watch = Watch(process)
            yield watch
            watch.end()

    def _write(self) -> None:
        lines = [";".join(f"{key}={_text(value)}" for key, value in keys.items()) for keys in self._all()]
        new = self.state.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.state)  # a reader sees the old file or the new one, never half of one

    def _all(self) -> list[dict[str, Value]]:
        # a line without any key would not count
        return [self._driver, *(keys or {"name": "NVIDIA A100-SXM4-80GB"} for keys in self._lines)]


class Watch:
    """What another process sees of the GPUs; see `FakeNvml.watch`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.problem: str | None = self._ask("")["problem"]
        """Why the GPUs could not be opened, if they could not."""
        self.devices: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """One reading of each device, as of now; `devices` are then up to date, too."""
        answer = self._ask("read\n")
        self.devices = answer["devices"]
        readings: list[dict[str, Any]] = answer["readings"]
        return readings

    def end(self) -> None:
        """Let the process close its GPUs and exit; it must do so without a complaint."""
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0

    def _ask(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question)
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _text(value: Value) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{pid}:{'-' if memory is None else memory}" for pid, memory in value.items())
    return str(value)
