"""What simulated GPUs seem to do: plausible, and the same every time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.daemon.devices.simulation import SimulatedJob, taken_of
from gpuyard.daemon.store.views import JobView
from gpuyard.gpus.load_model import DeviceModel, Tenant, level
from gpuyard.gpus.simulated import SimulatedGpus

G = 2**30


def run(model: DeviceModel, begin: int, end: int, *tenants: Tenant) -> list[tuple[float, float, float]]:
    return [tuple(float(v[0]) for v in model.step(float(at), [tenants])[:3]) for at in range(begin, end)]  # type: ignore[misc]


def test_a_gpu_warms_up_under_load_and_cools_down_again() -> None:
    model = DeviceModel(1)
    idle = run(model, 0, 10)
    assert set(idle) == {(0.0, 31.0, 25.0)}
    busy = run(model, 10, 310, Tenant("17"))
    degrees = [temperature for _, temperature, _ in busy]
    assert degrees[0] < 33  # slowly
    assert degrees[0] < degrees[30] < degrees[120]
    assert 50 < degrees[-1] <= 80
    assert all(50 <= utilization <= 100 and 150 < power <= 300 for utilization, _, power in busy)
    assert len({utilization for utilization, _, _ in busy}) > 3  # it is not dead
    cooling = run(model, 310, 610)
    assert (cooling[0][0], cooling[0][2]) == (0.0, 25.0)
    assert cooling[0][1] > 50
    assert cooling[-1][1] == 31.0


def test_it_is_the_same_every_time_and_jobs_differ() -> None:
    assert run(DeviceModel(1), 0, 50, Tenant("17")) == run(DeviceModel(1), 0, 50, Tenant("17"))
    assert len({round(level(Tenant(str(n)), 0.0)) for n in range(30)}) > 10
    assert level(Tenant("17", 0.5), 5.0) < level(Tenant("17"), 5.0)


@given(
    st.lists(
        st.builds(Tenant, st.text(max_size=8), st.floats(0.0, 1.0), st.none() | st.floats(0.0, 100.0)), max_size=6
    ),
    st.lists(st.floats(0.0, 4e9), min_size=1, max_size=20),
)
def test_numbers_stay_within_what_gpus_do(tenants: list[Tenant], times: list[float]) -> None:
    model = DeviceModel(1)
    for at in sorted(times):
        load = model.step(at, [tenants])
        utilization, temperature, power, memcopy, sm_clock, memory_clock = (float(value[0]) for value in load)
        assert 0 <= memcopy <= utilization <= 100
        assert 30 <= temperature <= 80
        assert 25 <= power <= 300
        assert 210 <= sm_clock <= 1410
        assert memory_clock in (405, 1593)


def test_memory_is_what_jobs_asked_for() -> None:
    devices = SimulatedGpus.parse("2x16G,1x80G").devices
    whole = JobView(1, "1", "a", "ann", "running", 0.0, 0.0, {"gpu_memory": None}, gpus=(0, 2))
    share = JobView(2, "2", "b", "bob", "running", 0.0, 0.0, {"gpu_memory": 4 * G}, gpus=(1,))
    tenants, memory = taken_of(devices, [SimulatedJob(whole, None), SimulatedJob(share, None)])
    assert memory == [16 * G, 4 * G, 80 * G]
    assert tenants == [[Tenant("1")], [Tenant("2", 0.25)], [Tenant("1")]]
