"""What dcgm-exporter would tell of the GPUs of several machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.dcgm_exporter import NEW, Exporter, Values
from tests.kube.machines import MIB, Machine

_IDLE = 3.0  # MiB that the driver has for itself
State = Callable[[], tuple[Sequence[Machine], Mapping[str, float]]]
"""The machines as they are, and counters of the kubelet."""


class MachineExporter(Exporter):
    """One page for the GPUs of all machines, which `Hostname` tells apart."""

    def __init__(self, state: State, port: int = 0) -> None:
        super().__init__(port)
        self._state = state

    def page(self) -> str:
        """The metrics as of now."""
        machines, counters = self._state()
        gpus = [(_labels(one, gpu), _values(one, gpu)) for one in machines for gpu in range(one.gpus)]
        lines = [f"# TYPE {name} counter\n{name} {value}" for name, value in counters.items()]
        for metric, name in NEW.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [f"{name}{{{labels}}} {values[metric]}" for labels, values in gpus if metric in values]
        return "\n".join(lines) + "\n"


def _values(machine: Machine, gpu: int) -> Values:
    total, busy = machine.memory / MIB, machine.utilization(gpu)
    used = min(total, _IDLE + machine.used(gpu) / MIB)
    return {
        "utilization": round(busy), "memcopy": round(0.4 * busy), "power": 55 + 2.5 * busy,
        "temperature": round(33 + 0.4 * busy), "memory_used": round(used), "memory_free": round(total) - round(used),
    }  # fmt: skip


def _labels(machine: Machine, gpu: int) -> str:
    labels = {
        "gpu": str(gpu), "UUID": f"GPU-{machine.name}-{gpu}", "device": f"nvidia{gpu}", "modelName": machine.model,
        "Hostname": machine.name,
    }  # fmt: skip
    return ",".join(f'{name}="{value}"' for name, value in labels.items())
