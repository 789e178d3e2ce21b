"""Settings: who wins, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuyard import config
from gpuyard.config import config_file, daemon_socket, explained, settings, unknown_variables
from gpuyard.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture
def environment(file: Path) -> dict[str, str]:
    return {"HOME": "/home/ada", "GPUYARD_CONFIG": str(file)}


def test_flags_come_before_the_environment_before_the_file_before_defaults(
    file: Path, environment: dict[str, str]
) -> None:
    assert settings({}, environment).policy == "multifactor"
    file.write_text('policy = "sjf"\nplacement = "spread"\ngrace = "1m"\n')
    assert settings({}, environment).policy == "sjf"
    environment["GPUYARD_POLICY"] = "las"
    assert settings({"policy": None}, environment).policy == "las"
    found = settings({"policy": "fair"}, environment)
    assert (found.policy, found.placement, found.grace, found.discipline) == ("fair", "spread", 60.0, "")


def test_people_write_times_and_sizes(file: Path, environment: dict[str, str]) -> None:
    file.write_text('output_limit = "20M"\ngrace = 5\n')
    found = settings({}, {**environment, "GPUYARD_DEFAULT_ESTIMATE": "12h"})
    assert (found.output_limit, found.grace, found.default_estimate) == (20 * 2**20, 5, 43200)


def test_a_switch_is_on_or_off(file: Path, environment: dict[str, str]) -> None:
    file.write_text("cgroups = true\n")
    assert settings({}, environment).cgroups
    assert not settings({}, {**environment, "GPUYARD_CGROUPS": "no"}).cgroups


def test_an_empty_variable_sets_nothing(environment: dict[str, str]) -> None:
    assert settings({}, {**environment, "GPUYARD_POLICY": ""}).policy == "multifactor"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policy = sjf", "config.toml is not valid TOML"),
        ('polcy = "sjf"', "there is no setting 'polcy'; did you mean 'policy'?"),
        ('grace = "soon"', "grace: 'soon' is not a duration"),
        ('output_limit = "lots"', "'lots' is not a size"),
        ("policy = 3", "config.toml: policy cannot be 3"),
        ("grace = true", "config.toml: grace cannot be True"),
        ("grace = -1", "config.toml: grace cannot be -1"),
        ('keep_logs = "-1d"', "keep_logs is a time of 0 or more, not '-1d'"),
        ("cgroups = 1", "config.toml: cgroups cannot be 1"),
        ('cgroups = "perhaps"', "cgroups is true or false, not 'perhaps'"),
    ],
)
def test_a_mistake_in_the_file_is_told(file: Path, environment: dict[str, str], text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        settings({}, environment)
    assert told in str(caught.value)


def test_where_things_are(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = settings({}, environment)
    assert found.data_dir == Path("/home/ada/.local/share/gpuyard")
    assert found.socket == found.data_dir / "gpuyard.sock"
    assert (found.database, found.jobs_dir) == (found.data_dir / "gpuyard.db", found.data_dir / "jobs")
    runtime = {**environment, "XDG_RUNTIME_DIR": "/run/user/1000", "XDG_DATA_HOME": "/data"}
    assert settings({}, runtime).data_dir == Path("/data/gpuyard")
    assert settings({}, runtime).socket == Path("/run/user/1000/gpuyard/gpuyard.sock")
    assert settings({"data_dir": "/mine"}, runtime).socket == Path("/mine/gpuyard.sock")
    assert settings({}, {**runtime, "GPUYARD_SOCKET": "/s"}).socket == Path("/s")


def test_the_system_has_its_own_places(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = settings({}, environment)
    assert (found.data_dir, found.socket) == (Path("/var/lib/gpuyard"), Path("/run/gpuyard/gpuyard.sock"))


def test_priorities_are_numbers(file: Path, environment: dict[str, str]) -> None:
    assert settings({}, environment).max_priority is None
    file.write_text("max_priority = -1\n")
    assert settings({}, environment).max_priority == -1
    assert settings({}, {**environment, "GPUYARD_MAX_PRIORITY": "2.5"}).max_priority == 2.5
    with pytest.raises(UserError, match="max_priority is a number, not 'high'"):
        settings({}, {**environment, "GPUYARD_MAX_PRIORITY": "high"})


@pytest.mark.parametrize(
    ("name", "fine", "wrong", "told"),
    [
        ("oom_retries", ("0", "7", "100"), ("-1", "101", "1.5", "inf"), "a whole number from 0 to 100"),
        ("memory_margin", ("0", "0.1", "1"), ("-0.1", "5", "inf"), "a part from 0 to 1, as in 0.05"),
    ],
)
def test_some_numbers_have_bounds(
    file: Path, environment: dict[str, str], name: str, fine: tuple[str, ...], wrong: tuple[str, ...], told: str
) -> None:
    for text in fine:
        file.write_text(f"{name} = {text}\n")
        assert getattr(settings({}, environment), name) == float(text)
    for text in wrong:
        file.write_text(f"{name} = {text}\n")
        for variables in (environment, {**environment, f"GPUYARD_{name.upper()}": text}):
            with pytest.raises(UserError, match=f"{name} is {told}, not '{text}'"):
                settings({}, variables)


def test_who_has_no_daemon_asks_the_machines(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "_is_root", lambda: False)
    monkeypatch.setattr(config, "_SYSTEM", tmp_path / "run")
    environment["XDG_RUNTIME_DIR"] = str(tmp_path / "mine")
    own, everybodys = tmp_path / "mine" / "gpuyard" / "gpuyard.sock", tmp_path / "run" / "gpuyard.sock"
    assert daemon_socket({}, environment) == own
    everybodys.parent.mkdir()
    everybodys.touch()
    assert daemon_socket({}, environment) == everybodys
    assert daemon_socket({"data_dir": "/data"}, environment) == Path("/data/gpuyard.sock")
    assert daemon_socket({"socket": "/s"}, environment) == Path("/s")
    assert settings({}, environment).socket == own  # where a daemon of one's own would listen
    own.parent.mkdir(parents=True)
    own.touch()
    assert daemon_socket({}, environment) == own


def test_it_is_told_where_a_value_comes_from(file: Path, environment: dict[str, str]) -> None:
    file.write_text('policy = "sjf"\nplacement = "spread"\nkeep_logs = "30d"\n')
    environment |= {"GPUYARD_POLICY": "las", "GPUYARD_GRACE": "1m"}
    found = {one.name: one for one in explained({"data_dir": "/mine", "policy": None}, environment)}
    assert found["policy"] == ("policy", "las", "environment", "GPUYARD_POLICY")
    assert found["grace"] == ("grace", 60.0, "environment", "GPUYARD_GRACE")
    assert found["keep_logs"] == ("keep_logs", 30 * 86400.0, "file", str(file))
    assert found["data_dir"] == ("data_dir", Path("/mine"), "flag", "--data-dir")
    assert found["socket"] == ("socket", Path("/mine/gpuyard.sock"), "default", "")
    assert found["keep_history"] == ("keep_history", 0.0, "default", "")
    settled = settings({"data_dir": "/mine"}, environment)
    assert {name: getattr(settled, name) for name in found} == {name: one.value for name, one in found.items()}


def test_variables_that_set_nothing_are_told(environment: dict[str, str]) -> None:
    environment |= {"GPUYARD_POLCY": "sjf", "GPUYARD_JOB_ID": "3", "GPUYARD_FAULT": "", "GPUYARD_ARRAY_TASK_ID": "1"}
    assert unknown_variables(environment) == ["GPUYARD_POLCY: there is no setting 'polcy'; did you mean 'policy'?"]


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, file: Path, environment: dict[str, str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert config_file(environment) == file
    assert config_file({"HOME": "/home/ada"}) == Path("/home/ada/.config/gpuyard/config.toml")
