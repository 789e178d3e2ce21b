"""A real systemd, as a user's own in a place of its own: jobs outlive whatever it does to the daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.yard import Done, until

from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon

PROGRAM = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if os.access(path, os.X_OK)), "")
BEGIN = f"mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/user/0 && exec {PROGRAM} --user"
GO_ON = "echo on; while [ ! -e go ]; do sleep 0.02; done; exit 6"


class Systemd:
    """The systemd of root's own services, with a /run that nobody else sees."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_RUNTIME_DIR": "/run/user/0",
            "PYTHONPATH": str(REPOSITORY / "src"),
        }
        self.client = Client(home / "data" / "gpuyard.sock")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", BEGIN],
            env=self.environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __call__(self, *command: str) -> Done:
        """Run a command where it is."""
        inside = ["nsenter", "--mount", "--target", str(self.process.pid), *command]
        done = subprocess.run(
            inside, env=self.environment, cwd=self.home, capture_output=True, text=True, check=False, timeout=60
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def gpuyard(self, *arguments: str) -> Done:
        """A command of ours; the cheap ones need not be."""
        where = ["--data-dir", str(self.home / "data")]
        return self(sys.executable, "-m", "gpuyard", *where, *arguments)

    def runs(self) -> bool:
        """Whether it answers."""
        assert self.process.poll() is None, "systemd ended"
        return self("systemctl", "--user", "is-system-running").out.strip() in ("running", "degraded", "starting")

    def daemon(self, other_than: int = 0) -> int:
        """The daemon's process, once there is one that answers."""
        return int(until(lambda: (pid := self._pid()) != other_than and pid, "an answer of the daemon"))

    def _pid(self) -> int:
        try:
            return int(self.client.status()["pid"])
        except NoDaemon:
            return 0


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    if not PROGRAM or shutil.which("nsenter") is None:
        pytest.skip("no systemd to try; apt-get install systemd util-linux")
    trial = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/run"]
    if os.geteuid() != 0 or subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("a systemd in a place of its own needs root; run the tests as root")
    found = Systemd(tmp_path)
    try:
        try:
            until(lambda: found.runs() or found.process.poll() is not None, "an answer of systemd")
        except AssertionError:
            pytest.skip("systemd does not start in a place of its own here: it needs cgroups that can be written")
        yield found
    finally:
        (tmp_path / "go").touch()  # a job outlives systemd, too
        found.process.terminate()
        found.process.wait(60)


def test_jobs_outlive_all_that_systemd_does_to_the_daemon(systemd: Systemd) -> None:
    done = systemd.gpuyard("service", "install", "--user", "--simulate-gpus", "2x16G")
    assert "the service is started, and starts at every boot" in done.out, done
    first = systemd.daemon()
    job = systemd.client.submit(["sh", "-c", GO_ON], directory=str(systemd.home))
    systemd.client.job(job, wait=30, until="start")

    assert systemd("systemctl", "--user", "restart", "gpuyard").code == 0
    second = systemd.daemon(other_than=first)
    assert systemd.client.job(job)["state"] == "running"
    os.kill(second, 9)
    third = systemd.daemon(other_than=second)
    assert systemd.client.job(job)["state"] == "running"

    (unit,) = json.loads(systemd.gpuyard("service", "status", "--json").out)
    assert (unit["enabled"], unit["active"], unit["pid"]) == ("enabled", "active", third)
    file = str(systemd.home / "b.tar")
    assert systemd.gpuyard("backup", file).code == 0
    restored = systemd.gpuyard("restore", file)
    assert restored.code == 0, restored
    fourth = systemd.daemon(other_than=third)
    (unit,) = json.loads(systemd.gpuyard("service", "status", "--json").out)
    assert (unit["active"], unit["pid"]) == ("active", fourth), "it was started again, but not by systemd"

    again = systemd.gpuyard("service", "install", "--user", "--simulate-gpus", "2x16G", "--policy", "sjf")
    assert "started anew; jobs go on" in again.out, again
    systemd.daemon(other_than=fourth)
    assert systemd.client.policy()["name"] == "sjf"
    (systemd.home / "go").touch()
    ended = systemd.client.wait(job, timeout=60)
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 6, 1)
    assert systemd.gpuyard("service", "uninstall", "--user").code == 0
    with pytest.raises(NoDaemon):
        systemd.client.status()
