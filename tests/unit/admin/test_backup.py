"""Backups: what is in them, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuyard.admin.backup import alone, losses, make_backup, open_backup, put_back_files, restore
from gpuyard.config import Settings
from gpuyard.core.events import Event, Exited, Opened, Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.daemon.store.database import Mark
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.engines.local import output, stored_attempts
from gpuyard.errors import UserError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    return Settings(tmp_path / "data", tmp_path / "s")


def queue(settings: Settings, **jobs: str) -> Store:
    """A store with these jobs: `over`, `running` or `queued`."""
    store = Store(settings.database)
    if not store.last:
        store.append([Record(Opened(1.0, Cluster((2,)), ("a", "b")))])
    for n, (name, state) in enumerate(jobs.items()):
        job = name.lstrip("_")
        records = [Record(Submitted(2.0, job, Request()), {"work": {"command": ["true"]}})]
        if state != "queued":
            records += [Record(Placed(3.0, job, 1, (n % 2,))), Record(Started(3.0, job, 1))]
            folder = settings.jobs_dir / job / "1"
            folder.mkdir(parents=True)
            (folder / "pid").write_text("claim\n")
            (folder / "output.log").write_text(f"hello of {job}\n")
        if state == "over":
            records.append(Record(Exited(4.0, job, 1)))
        store.append(records)
    return store


def test_a_backup_holds_the_store_and_what_open_attempts_wrote_down(settings: Settings, tmp_path: Path) -> None:
    store = queue(settings, _1="over", _2="running", _3="queued")
    manifest = make_backup(settings, tmp_path / "b.tar")
    assert (manifest.jobs, manifest.open_jobs, manifest.events, manifest.logs) == (3, 2, store.last, False)
    with tarfile.open(tmp_path / "b.tar") as archive:
        assert archive.getnames() == ["manifest.json", "gpuyard.db", "jobs/2/1/pid"]
    make_backup(settings, tmp_path / "b.tar.gz", logs=True)
    with tarfile.open(tmp_path / "b.tar.gz", "r:gz") as archive:
        names = archive.getnames()[2:]
    assert names == [f"jobs/{job}/1/{file}" for job in (1, 2) for file in ("pid", "output.log")]
    assert sorted(os.listdir(tmp_path)) == ["b.tar", "b.tar.gz", "data"]
    store.append([Record(Submitted(5.0, "4", Request()), {"work": {}})])
    store.close()


def test_output_with_a_hole_is_as_small_in_a_backup_as_on_the_disk(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over").close()
    log = settings.jobs_dir / "1/1/output.log"
    with log.open("wb") as file:
        file.write(b"begin\n")
        file.truncate(2**32)
        file.seek(0, 2)
        file.write(b"end\n")
    make_backup(settings, tmp_path / "b.tar", logs=True)
    assert (tmp_path / "b.tar").stat().st_size < 2**20
    log.unlink()
    assert put_back_files(tmp_path / "b.tar", settings.data_dir) == 1
    text = output.read(log, 0, 2**20)[1]
    assert text.startswith(b"begin\n")
    assert text.endswith(b"end\n")
    assert b"bytes left out]" in text


def test_a_backup_of_nothing_or_over_something_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is nothing to back up"):
        make_backup(settings, tmp_path / "b.tar")
    queue(settings).close()
    with pytest.raises(UserError, match="is not a directory"):
        make_backup(settings, tmp_path / "none" / "b.tar")
    (tmp_path / "b.tar").write_text("precious")
    with pytest.raises(UserError, match="is there already"):
        make_backup(settings, tmp_path / "b.tar")
    assert (tmp_path / "b.tar").read_text() == "precious"


def test_a_damaged_store_gives_no_backup(settings: Settings, tmp_path: Path) -> None:
    store = queue(settings, **{f"_{n}": "queued" for n in range(1, 200)})
    store.close()
    content = bytearray(settings.database.read_bytes())
    content[8192:12288] = b"\xff" * 4096
    settings.database.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged|cannot be copied"):
        make_backup(settings, tmp_path / "b.tar")
    assert os.listdir(tmp_path) == ["data"]


def _repack(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    with tarfile.open(path) as archive:
        members = [(info.name, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            if (new := change(name, content)) is not None:
                info = tarfile.TarInfo(name)
                info.size = len(new)
                archive.addfile(info, io.BytesIO(new))


def _manifest(**changes: Any) -> Callable[[str, bytes], bytes | None]:
    def change(name: str, content: bytes) -> bytes:
        return json.dumps({**json.loads(content), **changes}).encode() if name == "manifest.json" else content

    return change


def _flip(name: str, content: bytes) -> bytes:
    return content[:5000] + b"\xff" + content[5001:] if name == "gpuyard.db" else content


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_flip, "is damaged: the store in it is not the one that its manifest tells of"),
        (_manifest(schema=99), r"made by a newer version of gpuyard \(0.1.0\)"),
        (_manifest(format=2), "made by a newer version"),
        (lambda name, content: b"{" if name == "manifest.json" else content, "makes no sense"),
        (lambda name, content: b"[]" if name == "manifest.json" else content, "makes no sense"),
        (lambda name, content: None if name == "manifest.json" else content, "is not a backup of gpuyard"),
        (lambda name, content: None if name == "gpuyard.db" else content, "is not a backup of gpuyard"),
    ],
)
def test_what_is_wrong_with_a_backup_is_told(
    settings: Settings, tmp_path: Path, change: Callable[[str, bytes], bytes | None], told: str
) -> None:
    queue(settings, _1="over").close()
    path = tmp_path / "b.tar"
    make_backup(settings, path)
    _repack(path, change)
    with pytest.raises(UserError, match=told), open_backup(path, tmp_path):
        pass


@pytest.mark.parametrize(
    "content", [b"", b"hello", gzip.compress(b"hello"), None], ids=["empty", "text", "gzip", "none"]
)
def test_what_is_no_backup_is_told(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "b.tar").write_bytes(content)
    with (
        pytest.raises(UserError, match=r"is not a backup of gpuyard|does not exist"),
        open_backup(tmp_path / "b.tar", tmp_path),
    ):
        pass


def test_a_backup_cut_short_is_told(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over").close()
    path = tmp_path / "b.tar.gz"
    make_backup(settings, path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match="is not a backup of gpuyard, or is damaged"), open_backup(path, tmp_path):
        pass


def test_nothing_is_written_outside_the_jobs_directory(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("../evil", "jobs/1/1/../../../evil", "/evil", "gpuyard.db", "jobs/1/1/pid", "jobs/x/1/pid"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
        link = tarfile.TarInfo("jobs/1/1/output.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert put_back_files(path, settings.data_dir) == 1
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if not p.is_dir()] == [
        "b.tar",
        "data/jobs/1/1/pid",
    ]


# -- going back ----------------------------------------------------------------------------------------


def test_what_would_be_lost(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over", _2="running", _3="queued", _4="queued").close()
    make_backup(settings, tmp_path / "b.tar")
    store = Store(settings.database)
    events: list[Event] = [
        Placed(5.0, "3", 1, (1,)),
        Started(5.0, "3", 1),
        Exited(6.0, "2", 1),
        Submitted(7.0, "11", Request()),
        Submitted(7.0, "12_3", Request(array="12")),
    ]
    store.append([Record(event, {"work": {}} if isinstance(event, Submitted) else {}) for event in events])
    store.close()
    with open_backup(tmp_path / "b.tar", tmp_path) as backup:
        found = losses(settings, backup)
    assert (found.unknown, found.out_of_step, found.revived, found.newest) == (["11", "12_3"], ["3"], ["2"], 12)


def test_the_former_store_is_kept_with_all_that_was_written(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over").close()
    make_backup(settings, tmp_path / "b.tar")
    store = Store(settings.database)
    store.append([Record(Submitted(7.0, "2", Request()), {"work": {}})])  # in the file beside it, as after a crash
    for expected in (2, 1):
        with open_backup(tmp_path / "b.tar", tmp_path) as backup, alone(settings.data_dir):
            aside = restore(settings, backup, 2)
        assert aside is not None
        assert sqlite3.connect(aside).execute("SELECT count(*) FROM jobs").fetchone() == (expected,)
        again = Store(settings.database)
        assert (list(again.open), again.newest) == ([], 2)
        again.close()
    store.close()
    assert sorted(os.listdir(settings.jobs_dir)) == ["1", "2"], "job 2 is given up, but its id is not"


def test_what_a_backup_lacks_is_no_loss(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over").close()
    make_backup(settings, tmp_path / "b.tar")
    store = Store(settings.database)
    store.append([Record(Submitted(7.0, "2", Request()), {"work": {}})])
    store.close()
    attempt = settings.jobs_dir / "2" / "1"
    attempt.mkdir(parents=True)
    (attempt / "pid").touch()
    with open_backup(tmp_path / "b.tar", tmp_path) as backup, alone(settings.data_dir):
        restore(settings, backup, 2)
    again = Store(settings.database, begun=partial(stored_attempts.begun_after, settings.jobs_dir))
    assert again.lost == Mark()
    again.close()


def test_a_damaged_store_is_not_backed_up(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over").close()
    content = bytearray(settings.database.read_bytes())
    content[4096:8192] = bytes(4096)
    settings.database.write_bytes(content)
    with pytest.raises(UserError, match=r"gpuyard.db is damaged .*gpuyard recover"):
        make_backup(settings, tmp_path / "b.tar")
    assert not list(tmp_path.glob("*b.tar*"))


def test_a_damaged_store_is_moved_away_whole(settings: Settings, tmp_path: Path) -> None:
    queue(settings, _1="over").close()
    make_backup(settings, tmp_path / "b.tar")
    settings.database.write_bytes(b"\xff" * 8192)
    settings.database.with_name("gpuyard.db-wal").write_bytes(b"\xff" * 100)
    with open_backup(tmp_path / "b.tar", tmp_path) as backup, alone(settings.data_dir):
        assert losses(settings, backup).unknown == []
        aside = restore(settings, backup, 1)
    assert aside is not None
    assert aside.read_bytes() == b"\xff" * 8192
    assert aside.with_name(f"{aside.name}-wal").read_bytes() == b"\xff" * 100
    again = Store(settings.database)
    assert again.jobs == 1
    again.close()


def test_a_backup_of_an_older_version_is_put_back(settings: Settings, tmp_path: Path) -> None:
    old = sqlite3.connect(settings.database)
    old.executescript((Path(__file__).parents[2] / "stores" / "version-1.sql").read_text())
    old.close()
    assert make_backup(settings, tmp_path / "b.tar").schema == 1
    settings.database.unlink()
    with open_backup(tmp_path / "b.tar", tmp_path) as backup, alone(settings.data_dir):
        assert losses(settings, backup).newest == 4
        assert restore(settings, backup, 4) is None
    again = Store(settings.database)
    assert set(again.open) == {"2", "4"}
    again.close()


def test_nobody_goes_back_under_a_daemon(settings: Settings) -> None:
    refused = pytest.raises(UserError, match=r"is on .* and does not answer; end it first")
    with alone(settings.data_dir), refused, alone(settings.data_dir):
        pass
