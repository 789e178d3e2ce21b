"""The unit for systemd: real files, judged by systemd itself where it is installed.

No systemd runs where tests do, so what would be asked of it is written down by a program of its name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standin import StandIn
from tests.yard import Done, Yard

from gpuyard.admin.service import Place, Unit, found_units

ANSWERS = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
*enable*--now*) [ -z "$READY" ] || mv "$READY" "$SOCKET" ;;
*is-active*) echo "${ACTIVE:-active}" ;;
*is-enabled*) echo enabled ;;
esac
"""


class Machine(Yard):
    """A yard, and a systemctl that writes down what it is asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data", folder)
        self.calls = folder / "calls"
        self.unit = folder / "config/systemd/user/gpuyard.service"
        self.environment |= {"XDG_CONFIG_HOME": str(folder / "config"), "CALLS": str(self.calls)}
        del self.environment["GPUYARD_CONFIG"], self.environment["GPUYARD_DATA_DIR"]

    def with_systemctl(self, text: str = ANSWERS) -> None:
        """Put it before all others."""
        program = self.cwd / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(0o755)
        self.environment["PATH"] = f"{program.parent}:{self.environment['PATH']}"

    def service(self, *arguments: str) -> Done:
        return self("service", *arguments)

    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def started(machine: Machine) -> Iterator[StandIn]:
    """A daemon that answers as soon as systemd has started it."""
    machine.with_systemctl()
    machine.data_dir.mkdir()
    ready = machine.cwd / "ready"
    machine.environment |= {"READY": str(ready), "SOCKET": str(machine.data_dir / "gpuyard.sock")}
    with StandIn(ready) as daemon:
        daemon.answers["GET", "/status"] = 200, {"pid": os.getpid()}
        yield daemon


def test_the_unit_is_written_and_started(machine: Machine, started: StandIn) -> None:
    done = machine.service("install", "--user", "--data-dir", "data", "--policy", "sjf")
    assert done.code == 0, done
    assert done.out.splitlines() == [
        f"{machine.unit} is written",
        "the service is started, and starts at every boot",
    ]
    assert "loginctl enable-linger" in done.err
    assert machine.asked()[:2] == ["--user daemon-reload", "--user enable --now gpuyard.service"]
    unit = Unit(machine.unit, machine.unit.read_text())
    assert unit.value("ExecStart") == (
        f"{sys.executable} -P -m gpuyard serve --data-dir {machine.data_dir} --policy sjf"
    )
    assert (unit.spares_jobs, unit.value("Restart"), unit.value("Delegate")) == (True, "on-failure", "yes")
    assert unit.value("LimitNOFILE") == "1024:524288", "of which the daemon takes all, and a job what it had before"
    assert oct(machine.unit.stat().st_mode & 0o777) == "0o644"
    assert os.listdir(machine.unit.parent) == [machine.unit.name]
    again = machine.service("install", "--user", "--data-dir", "data", "--policy", "sjf")
    assert "was as it should be already" in again.out
    assert "a daemon runs already" in again.err
    assert "gpuyard down && systemctl --user start gpuyard.service" in again.err


def test_showing_the_unit_changes_nothing(machine: Machine) -> None:
    machine.with_systemctl()
    done = machine.service("install", "--system", "--print")
    assert done.code == 0
    assert "KillMode=process\n" in done.out
    assert "WantedBy=multi-user.target\n" in done.out
    assert "time-sync.target" in done.out
    assert (machine.asked(), machine.unit.exists()) == ([], False)


def test_without_starting(machine: Machine) -> None:
    machine.with_systemctl()
    done = machine.service("install", "--user", "--no-start")
    assert (done.code, machine.asked(), machine.unit.exists()) == (0, [], True)
    assert "systemctl --user enable --now gpuyard.service does that" in done.err


@pytest.mark.parametrize("systemctl", [None, '#!/bin/sh\necho "Failed to connect to bus" >&2; exit 1\n'])
def test_where_no_systemd_answers_it_is_told_what_to_do(machine: Machine, systemctl: str | None) -> None:
    if systemctl is None:
        machine.environment["PATH"] = str(machine.cwd)
    else:
        machine.with_systemctl(systemctl)
    done = machine.service("install", "--user")
    assert (done.code, machine.unit.exists()) == (0, True)
    why = "there is no systemctl on this machine" if systemctl is None else "Failed to connect to bus"
    assert f"({why}); where it runs: systemctl --user daemon-reload && systemctl --user enable --now" in done.err
    assert machine.service("uninstall", "--user").code == 0
    assert not machine.unit.exists()


def test_a_service_that_does_not_start_is_an_error(machine: Machine) -> None:
    machine.with_systemctl('#!/bin/sh\ncase "$*" in *enable*) echo "Unit is masked." >&2; exit 1 ;; esac\n')
    done = machine.service("install", "--user")
    assert done.code == 1
    assert "could not be started: Unit is masked. (see journalctl --user -u gpuyard.service)" in done.err


def test_a_service_that_does_not_stay_up_is_an_error(machine: Machine) -> None:
    machine.with_systemctl(ANSWERS.replace("${ACTIVE:-active}", "activating"))
    done = machine.service("install", "--user", "--data-dir", "data")
    assert done.code == 1
    assert "was started, but does not answer; it is activating (see journalctl --user -u gpuyard.service)" in done.err


def test_uninstall_and_status(machine: Machine) -> None:
    machine.with_systemctl()
    assert "nothing to remove" in machine.service("uninstall", "--user").err
    if not Place(True).unit.exists():
        assert "no unit is installed" in machine.service("status").err
    machine.service("install", "--user", "--no-start")
    found = json.loads(machine.service("status", "--json").out)[0]
    assert (found["unit"], found["enabled"], found["active"]) == (str(machine.unit), "enabled", "active")
    machine.unit.write_text(machine.unit.read_text().replace("KillMode=process", "KillMode=mixed"))
    told = machine.service("status")
    assert "mixed" in told.out
    assert "ends jobs with the daemon; install it anew to mend that" in told.err
    machine.calls.unlink()
    assert machine.service("uninstall", "--user").code == 0
    assert machine.asked() == ["--user disable --now gpuyard.service", "--user daemon-reload"]
    assert not machine.unit.exists()


def test_what_the_service_would_not_find_by_itself_is_said_in_the_unit(machine: Machine) -> None:
    more = {"XDG_DATA_HOME": "/elsewhere", "GPUYARD_SOCKET": "/s", "GPUYARD_POLICY": "sjf"}
    done = machine("service", "install", "--user", "--print", more=more)
    assert "serve" in done.out
    assert "--socket /s" in done.out
    assert ("--data-dir /elsewhere/gpuyard" in done.out) == (os.geteuid() != 0)
    assert "GPUYARD_POLICY is set here, but the service will not see it" in done.err
    assert "GPUYARD_SOCKET" not in done.err


def test_a_units_program_is_found_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("/usr/bin/python3", "/with blank/100%/$HOME/python", '/a"b\\c'):
        monkeypatch.setattr(sys, "executable", program)
        machine.service("install", "--user", "--no-start")
        monkeypatch.setenv("XDG_CONFIG_HOME", machine.environment["XDG_CONFIG_HOME"])
        assert found_units(machine.cwd)[0].program == program


@pytest.mark.program
@pytest.mark.parametrize("whose", ["--user", "--system"])
def test_systemd_finds_nothing_wrong_with_the_unit(machine: Machine, whose: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze to judge the unit; apt-get install systemd")
    (machine.cwd / "my data").mkdir()
    text = machine.service("install", whose, "--print", "--data-dir", "my data", "--policy", "wfp3:power=2").out
    path = machine.cwd / "gpuyard.service"
    environment = {**machine.environment, "XDG_RUNTIME_DIR": str(machine.cwd)}
    command = ["systemd-analyze", whose, "verify", str(path)]
    for broken in (False, True):
        path.write_text(text.replace("KillMode=process", "KillMode=nobody") if broken else text)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        complaints = [line for line in done.stderr.splitlines() if str(path) in line]
        assert bool(complaints) == broken, done


def test_a_unit_for_the_network(machine: Machine) -> None:
    done = machine.service("install", "--print", "--host", "0.0.0.0", "--port", "7000", "--token", "required")
    assert "gpuyard serve --host 0.0.0.0 --port 7000 --token required" in done.out
    if os.geteuid() == 0:
        assert "After=network-online.target" in done.out
    assert "network-online" not in machine.service("install", "--print", "--port", "7000").out
