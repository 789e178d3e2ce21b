"""Real users of this machine, made for tests, and things done as they would do them.

What a user does runs in a fork of this process that has become the user: Python itself may lie where users cannot go.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuyard.client.client import Client
from gpuyard.client.transport import Refused
from tests.yard import Done, Yard

PATH = "/usr/local/bin:/usr/bin:/bin"
NEEDED = "real users can be made by root only, with useradd; run as root, or in a container"


def require_root() -> None:
    """Skip where no users can be made."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("useradd", "userdel", "groupadd", "groupdel", "setpriv"))):
        pytest.skip(NEEDED)


@dataclass(frozen=True)
class User:
    """A user with a home of its own, closed to others."""

    name: str
    uid: int
    gid: int
    groups: frozenset[int]
    home: Path

    def do(self, action: Callable[[], Any], limits: Mapping[int, tuple[int, int]] | None = None) -> Any:
        """What an action answers if this user does it; what JSON can say arrives here."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._become(action, limits or {}, writing)
        os.close(writing)
        with open(reading, "rb") as stream:
            said = stream.read()
        os.waitpid(child, 0)
        assert said, f"{self.name} could not do it"
        found = json.loads(said)
        if "refused" in found:
            raise Refused(*found["refused"])
        assert "error" not in found, found["error"]
        return found["answer"]

    def _become(self, action: Callable[[], Any], limits: Mapping[int, tuple[int, int]], writing: int) -> None:
        found: dict[str, Any] = {}
        try:
            if limits:  # what this process has open would count
                os.dup2(writing, 3)
                writing = 3
                os.closerange(4, 2**16)
            for which, values in limits.items():
                resource.setrlimit(which, values)
            os.setgroups(sorted(self.groups))
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
            os.chdir(self.home)
            os.umask(0o027)
            found["answer"] = action()
        except Refused as error:
            found["refused"] = [error.status, str(error)]
        except BaseException as error:
            found["error"] = repr(error)
        finally:
            os.write(writing, json.dumps(found).encode())
            os._exit(0)

    def environment(self) -> dict[str, str]:
        """What a login would give, but for a home that is not the user's."""
        return {"PATH": PATH, "HOME": "/elsewhere", "USER": "somebody", "LANG": "C.UTF-8"}


@contextlib.contextmanager
def made(folder: Path, name: str, *groups: str) -> Iterator[User]:
    """A user, until the end."""
    home = folder / f"home-{name}"
    more = ["--groups", ",".join(groups)] if groups else []
    subprocess.run(["useradd", "-r", "-U", "-M", "-d", home, "-s", "/bin/sh", *more, name], check=True)
    try:
        entry = pwd.getpwnam(name)
        home.mkdir(mode=0o700)
        os.chown(home, entry.pw_uid, entry.pw_gid)
        found = frozenset(os.getgrouplist(name, entry.pw_gid))
        yield User(name, entry.pw_uid, entry.pw_gid, found, home)
    finally:
        gone = subprocess.run(["userdel", name], check=False, capture_output=True)
        assert gone.returncode in (0, 6), gone  # 6: the test has done it


@contextlib.contextmanager
def group(name: str) -> Iterator[str]:
    """A Unix group, until the end."""
    subprocess.run(["groupadd", "-r", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["groupdel", name], check=False, capture_output=True)


@contextlib.contextmanager
def reachable_folder() -> Iterator[Path]:
    """A directory that others can enter, unlike those that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-users-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Desk:
    """A yard, as a user sees it."""

    def __init__(self, yard: Yard, user: User) -> None:
        self.yard, self.user = yard, user

    def ask(self, action: Callable[[Client], Any]) -> Any:
        """What the daemon answers to this user."""
        return self.user.do(lambda: action(self.yard.client))

    def submit(self, *command: str, limits: Mapping[int, tuple[int, int]] | None = None, **wishes: Any) -> str:
        """Queue a command; the job's id."""
        given = {"environment": self.user.environment(), **wishes}
        return str(self.user.do(lambda: self.yard.client.submit(command, **given), limits))

    def run(self, *command: str, **wishes: Any) -> str:
        """What a command prints that runs to its good end as a job of this user."""
        job = self.yard.wait(self.submit(*command, **wishes))
        printed = self.yard.client.log(job["id"]).data.decode()
        assert job["state"] == "succeeded", (job, printed)
        return printed

    def cli(self, *arguments: str) -> Done:
        """Give a command; what it needs must be loaded already."""
        return Done(*self.user.do(lambda: self.yard(*arguments)))
