"""Simulated GPUs: what people write for them, and what they read."""

from __future__ import annotations

import pytest

from gpuyard.errors import UserError
from gpuyard.gpus import open_gpus
from gpuyard.gpus.base import Gpus
from gpuyard.gpus.simulated import SimulatedGpus

G = 2**30


@pytest.mark.parametrize(
    ("text", "memories"),
    [
        ("4x16G", [16 * G] * 4),
        ("2x16G,1x80G", [16 * G, 16 * G, 80 * G]),
        ("8", [16 * G] * 8),
        (" 1 X 512MiB , 2", [G // 2, 16 * G, 16 * G]),
    ],
)
def test_gpus_are_written_as_people_count_them(text: str, memories: list[int]) -> None:
    gpus = SimulatedGpus.parse(text)
    assert [device.memory for device in gpus.devices] == memories
    assert [device.index for device in gpus.devices] == list(range(len(memories)))
    assert [device.uuid for device in gpus.devices] == [f"SIMULATED-{index}" for index in range(len(memories))]
    assert [device.visible_as for device in gpus.devices] == [str(index) for index in range(len(memories))]


@pytest.mark.parametrize(
    "text",
    ["", "x", "16G", "0x16G", "4x", "4x0", "-1x16G", "4x16G,", "4x16Q", "4x16Gx2", "1x1e400", "²", "9" * 5000, "1025"],
)
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="for example"):
        SimulatedGpus.parse(text)


def test_a_simulated_gpu_is_idle_and_says_what_it_is() -> None:
    gpus: Gpus = open_gpus("1x16G")
    (device,) = gpus.devices
    (reading,) = gpus.read()
    assert gpus.simulated
    assert device.simulated
    assert device.name == "Simulated GPU 16G"
    assert (reading.lost, reading.memory_used, reading.utilization, reading.processes) == (False, 0, 0, ())
    gpus.close()
