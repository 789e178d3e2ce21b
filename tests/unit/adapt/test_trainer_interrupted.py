"""Trainings that are told to end, or just killed: taken up again they come to the very same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.smalltraining import Choose, data, network, same, training
from torch.utils.data import DataLoader, Dataset

from gpuyard.adapt import ops
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.deciders import make_decider
from gpuyard.adapt.decisions import Asking
from gpuyard.adapt.signals import Interrupted, Signals
from gpuyard.adapt.training.snapshots import Checkpoints
from gpuyard.adapt.training.trainer import BudgetedTrainer
from gpuyard.errors import UserError

ROOT = Path(__file__).parents[3]


def whole() -> BudgetedTrainer:
    """The training that nobody disturbs."""
    trainer = training(120, "virtual", 0, 1)
    trainer.fit()
    return trainer


def told(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def during_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ops.deepen

    def deepen(model: Any, site: Any, **named: Any) -> Any:
        if named.get("verify", True):  # not when prices are found out
            monkeypatch.undo()
            told()
        return real(model, site, **named)

    monkeypatch.setattr(ops, "deepen", deepen)


def during_pricing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ops.sites

    def sites(*given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        told()
        return real(*given, **named)

    monkeypatch.setattr(ops, "sites", sites)


def during_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(file: int) -> None:
        monkeypatch.undo()
        told()
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)


def during_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = torch.optim.Adam.step, [0]

    def step(self: Any, *given: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] == 57:
            told()
        return real(self, *given, **named)

    monkeypatch.setattr(torch.optim.Adam, "step", step)


@pytest.mark.parametrize("disturb", [during_growth, during_pricing, during_a_checkpoint, during_a_step])
def test_sigterm_anywhere_is_taken_up_to_the_last_bit(
    disturb: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    log = tmp_path / "log.jsonl"
    first = training(120, "virtual", 0, 1, checkpoints=tmp_path, log=log)
    disturb(monkeypatch)
    with pytest.raises(Interrupted, match="SIGTERM") as caught:
        first.fit()
    monkeypatch.undo()
    assert caught.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is before
    torch.manual_seed(12345)  # another process has other random numbers
    second = training(120, "virtual", 0, 1, checkpoints=tmp_path, log=log)
    second.fit()
    assert first.steps < second.steps
    assert same(second, whole())
    events = [line.split('"')[3] for line in log.read_text().splitlines()]
    assert events.count("interrupted") == events.count("resumed") == events.count("end") == 1
    assert events.count("decision") == 2


@pytest.mark.parametrize("times", [7, 23])
def test_being_interrupted_over_and_over(times: int, tmp_path: Path) -> None:
    for attempt in range(100):
        trainer = training(120, "virtual", 0, 1, checkpoints=tmp_path)
        end = (attempt + 1) * times
        real = trainer.batches.next

        def following(trainer: Any = trainer, end: int = end, real: Any = real) -> Any:
            if trainer.steps == end:
                told()
            return real()

        trainer.batches.next = following  # type: ignore[method-assign]
        try:
            trainer.fit()
            break
        except Interrupted:
            continue
    assert attempt >= 3
    assert same(trainer, whole())


@pytest.mark.parametrize("seed", range(3))
def test_a_decider_that_draws_goes_on_drawing_where_it_was(seed: int, tmp_path: Path) -> None:
    def build(**settings: Any) -> BudgetedTrainer:
        asking = Asking(fractions=(0.2, 0.4, 0.6, 0.8))
        return training(60, decider=make_decider(f"random:seed={seed}"), asking=asking, **settings)

    straight, first, second = build(), build(checkpoints=tmp_path), build(checkpoints=tmp_path)
    first.log._listeners.append(lambda event: told() if event["event"] == "decision" and event["time"] > 20 else None)
    straight.fit()
    with pytest.raises(Interrupted):
        first.fit()
    second.fit()
    assert second.actions == straight.actions
    assert same(second, straight)


KILLED = """
import os, signal, sys
from tests.smalltraining import training
from gpuyard.adapt import ops

def die(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)

where, directory = sys.argv[1:]
trainer = training(120, "virtual", 0, 1, checkpoints=directory, checkpoint_every=0.0)
if where == "growing":
    trainer.advance()
    import gpuyard.adapt.ops.optimizers, gpuyard.adapt.ops.depth as deepening
    deepening.join = die
    trainer.apply(trainer.decider.decide(trainer.pending))
elif where == "writing":
    trainer.advance()
    os.replace = die
    os.fsync = die
    trainer.apply(trainer.decider.decide(trainer.pending))
    trainer.advance()
print("nobody killed it")
"""


@pytest.mark.parametrize("where", ["growing", "writing"])
def test_killed_at_once_is_taken_up_from_the_last_checkpoint(where: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, where, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    trainer = training(120, "virtual", 0, 1, checkpoints=tmp_path)
    assert trainer.resume()
    assert trainer.steps > 10
    trainer.fit()
    assert same(trainer, whole())
    assert len(list(tmp_path.iterdir())) == 2  # two checkpoints, and nothing half written


def test_sigusr1_writes_a_checkpoint_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUYARD_JOB_ID", raising=False)
    written: list[int] = []

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation" and 40 < event["time"] < 46:
            told(signal.SIGUSR1)
        if event["event"] == "checkpoint":
            written.append(event["step"])

    trainer = training(120, "virtual", 0, 1, checkpoints=tmp_path, callbacks=[heard])
    result = trainer.fit()
    assert len(written) == 3  # at first, when asked, and at the end
    assert 0 < written[1] < result.steps
    assert same(trainer, whole())


def test_in_a_job_sigusr1_is_a_notice_to_end() -> None:
    for environment, ends in (({}, False), ({"GPUYARD_JOB_ID": "7"}, True)):
        with Signals(environment) as watch:
            assert not watch.any
            told(signal.SIGUSR1)
            assert watch.any
            assert watch.save
            assert bool(watch.end) is ends
            watch.saved()
            assert watch.any is ends


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = training(120, "virtual", 0, 1, checkpoints=tmp_path, checkpoint_every=0.0)
    trainer.advance()
    newest, before = trainer.checkpoints.all()  # type: ignore[union-attr]
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    second = training(120, "virtual", 0, 1, checkpoints=tmp_path)
    second.fit()
    assert f"{newest} is damaged" in capsys.readouterr().err
    assert same(second, whole())
    for path in [*Checkpoints(tmp_path).all()]:
        path.write_bytes(before.name.encode())
    with pytest.raises(UserError, match="remove them"):
        training(120, checkpoints=tmp_path).fit()


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    first = training(60, "virtual", 0, checkpoints=tmp_path).fit()
    second = training(60, "virtual", 0, checkpoints=tmp_path)
    assert second.fit() == first
    assert len(second.log.history) == len(first.events)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    training(60, checkpoints=tmp_path).fit()
    with pytest.raises(UserError, match="another training"):
        training(60, checkpoints=tmp_path, batch_size=16).fit()


def test_only_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new")
    assert checkpoints.read() is None
    for number in range(5):
        checkpoints.write({"number": number})
    assert [path.name for path in checkpoints.all()] == ["checkpoint-00000005.pt", "checkpoint-00000004.pt"]
    assert checkpoints.read() == {"number": 4}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be kept"):
        Checkpoints(tmp_path / "file" / "below")


def test_a_fork_goes_on_by_itself_and_can_be_made_again() -> None:
    trunk = training(120)
    assert trunk.advance() is not None
    state = trunk.state()
    ends: dict[int, BudgetedTrainer] = {}
    for action in (0, 1, 2, 0):
        branch = training(120)
        branch.load_state(state)
        assert branch.pending is not None
        branch.apply(Choose(action).decide(branch.pending))
        while (situation := branch.advance()) is not None:
            branch.apply(Choose(9, 1).decide(situation))
        branch.finish()
        if action in ends:
            assert same(branch, ends[action])
        ends[action] = branch
    straight = training(120, "virtual", 0, 1)
    straight.fit()
    assert same(straight, ends[0])
    assert len({branch.parameters for branch in ends.values()}) > 1
    trunk.load_state(state)  # and the trunk itself, which has not moved
    trunk.apply(Choose(0).decide(trunk.pending))  # type: ignore[arg-type]
    trunk.load_state(state)  # back from what has grown
    trunk.apply(Choose(9).decide(trunk.pending))  # type: ignore[arg-type]
    while (situation := trunk.advance()) is not None:
        trunk.apply(Choose(9, 1).decide(situation))
    trunk.finish()
    assert same(trunk, ends[2])


def test_a_fork_while_the_larger_network_still_teaches() -> None:
    changes = [{"time": 20, "change": "up"}, {"time": 60, "change": "down"}]
    settings: dict[str, Any] = {"asking": Asking(most=1), "gpu_changes": changes, "evaluate_every": 0.05}
    first = training(120, "virtual", 0, **settings)
    states: list[Any] = []
    first.log._listeners.append(lambda event: states.append(first.state()) if event["event"] == "shrunk" else None)
    first.fit()
    # The state is of the middle of what goes with a change, where the trainer itself takes none: evaluate as it would.
    second = training(120, "virtual", 0, **settings)
    second.load_state(states[0])
    assert second.teacher is not None
    second._evaluate()
    second.fit()
    assert same(first, second)


class Rows(Dataset[Any]):
    """Samples one by one, some noise added from everybody's random numbers."""

    def __init__(self) -> None:
        self.inputs, self.targets = data(120)

    def __len__(self) -> int:
        return 120

    def __getitem__(self, number: int) -> Any:
        return self.inputs[number] + 0.1 * torch.randn(12), self.targets[number]


@pytest.mark.parametrize("kind", ["dataset", "loader", "stream"])
def test_other_kinds_of_data_are_taken_up_in_the_middle_of_an_epoch(kind: str) -> None:
    inputs, targets = data(120)
    kinds: dict[str, Any] = {
        "dataset": Rows(),
        "loader": DataLoader(Rows(), batch_size=16, shuffle=True),
        "stream": [(inputs[k : k + 16], targets[k : k + 16]) for k in range(0, 120, 16)],
    }

    def build() -> BudgetedTrainer:
        return BudgetedTrainer(
            network(), kinds[kind], data(50, 1), Budget(40, "virtual"), batch_size=16, decider=Choose(0),
            asking=Asking(fractions=(0.3,)),
        )  # fmt: skip

    first, second = build(), build()
    situation = first.advance()
    state = first.state()
    assert situation is not None
    first.apply(Choose(0).decide(situation))
    first.fit()
    second.load_state(state)
    second.fit()
    assert same(first, second)


def test_workers_give_the_same_batches_from_the_middle_on() -> None:
    inputs, targets = data(64)
    rows = torch.utils.data.TensorDataset(inputs, targets)

    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, number: int) -> Any:
            return rows[number]

    def build() -> BudgetedTrainer:
        loader = DataLoader(Plain(), batch_size=16, num_workers=1, multiprocessing_context="fork")
        return BudgetedTrainer(network(), loader, data(50, 1), Budget(10, "virtual"), asking=Asking(fractions=(0.55,)))

    first, second = build(), build()
    assert first.advance() is not None
    state = first.state()
    first.fit()
    second.load_state(state)
    second.fit()
    assert same(first, second)
