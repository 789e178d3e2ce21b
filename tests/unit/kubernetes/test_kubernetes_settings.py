"""How a scheduler is told to work: flags and a file, and what it says to those that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.yard import Done, Yard

from gpuyard.core.model import Quota
from gpuyard.errors import UserError
from gpuyard.kubernetes.settings import Settings, read_file, settings_of


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    """Commands without a server: who gets as far as asking one has taken the flags."""
    (tmp_path / "data").mkdir(mode=0o700)
    config = {
        "current-context": "c", "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [], "contexts": [{"name": "c", "context": {"cluster": "k"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    return Yard(tmp_path / "data", tmp_path)


def schedule(yard: Yard, *flags: str) -> Done:
    return yard("kubernetes", "scheduler", *flags, more={"KUBECONFIG": str(yard.cwd / "kubeconfig")})


def test_a_server_that_does_not_answer(yard: Yard) -> None:
    done = schedule(yard)
    assert (done.code, done.out) == (1, "")
    assert "http://127.0.0.1:1 does not answer" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--policy", "nonsense"], "nonsense"),
        (["--policy", "learned:nonsense.npz"], "nonsense.npz"),
        (["--discipline", "nonsense"], "nonsense"),
        (["--placement", "nonsense"], "nonsense"),
        (["--admission", "luck"], "admission is requests or usage, not 'luck'"),
        (["--admission", "usage"], "say where Prometheus is with --prometheus URL"),
        (["--gpu-memory", "much"], "much"),
        (["--gpu-buffer", "much"], "much"),
        (["--default-duration", "soon"], "soon"),
        (["--default-duration", "0s"], "above 0"),
        (["--sample-period", "often"], "often"),
        (["--sample-period", "0"], "above 0"),
        (["--context", "other"], "has no context 'other'; it has c"),
        (["--kubeconfig", "missing"], "there is no kubeconfig missing"),
        (["--config", "missing.yaml"], "missing.yaml cannot be read: No such file or directory"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_flags(yard: Yard, flags: list[str], why: str) -> None:
    done = schedule(yard, *flags)
    assert (done.code, done.out) == (2, ""), done
    assert why in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("policy: [", "is no YAML"),
        ("just words", "must hold settings, as in 'policy: sjf'"),
        ("polcy: sjf\n", "there is no setting 'polcy'; did you mean 'policy'?"),
        ("durations: {a: soon}\n", "durations: "),
        ("durations: 90s\n", "durations: "),
        ("quotas: {a: many}\n", "quotas: "),
        ("quotas: {a: -1}\n", "quotas: "),
        ("shares: {a: much}\n", "shares: "),
        ("shares: {a: 0}\n", "shares: "),
        ("gpu-memory: much\n", "gpu-memory: 'much'"),
        ("lease: 0s\n", "lease"),
        ("resync: 0s\n", "resync"),
        ("memory-margin: -1\n", "memory-margin"),
        ("admission: luck\n", "admission is requests or usage"),
    ],
)
def test_bad_settings(yard: Yard, text: str, why: str) -> None:
    (yard.cwd / "bad.yaml").write_text(text)
    done = schedule(yard, "--config", "bad.yaml")
    assert (done.code, done.out) == (2, ""), done
    assert why in done.err, done.err


def test_all_settings_can_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("""
        scheduler-name: gpus
        policy: sjf
        discipline: skip
        placement: spread
        admission: usage
        prometheus: http://prometheus:9090
        gpu-memory: 16Gi
        gpu-buffer: 1G
        memory-margin: 0.1
        default-duration: 10m
        durations: {lstm*: 36s, "*": 1h}
        half-life: 7d
        shares: {red: 2}
        quotas: {red: 4, blue: {gpus: 2, gpu-hours: 10}}
        preemption: false
        resync: 1m
        lease: 4s
    """)
    found = settings_of(path, policy=None, discipline="easy")
    assert (found.scheduler, found.policy, found.discipline, found.placement) == ("gpus", "sjf", "easy", "spread")
    assert (found.gpu_memory, found.buffer, found.memory_margin) == (16 * 2**30, 2**30, 0.1)
    assert (found.default_duration, found.half_life, found.resync, found.lease) == (600, 7 * 86400, 60, 4)
    assert (found.shares, found.quotas) == ((("red", 2.0),), (("red", Quota(4)), ("blue", Quota(2, 10.0))))
    assert not found.preemption
    assert [found.duration_of(name, "") for name in ("lstm-3", "other")] == [36, 3600]
    path.write_text("")
    assert read_file(path) == {}
    assert settings_of(path) == Settings()


def test_run_times_by_name_or_workload() -> None:
    settings = Settings(durations=(("a*", 1.0), ("work", 2.0)))
    assert settings.duration_of("abc", "work") == 1.0
    assert settings.duration_of("b", "work") == 2.0
    assert settings.duration_of("b", "") is None


def test_a_buffer_is_left_where_usage_counts() -> None:
    assert Settings().buffer == 0
    assert Settings(admission="usage", prometheus="http://x").buffer == 512 * 2**20
    with pytest.raises(UserError, match="Prometheus"):
        Settings(admission="usage")
