"""Experiment files in YAML, TOML or JSON: one format for all back ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from gpuyard.errors import UserError, suggest
from gpuyard.experiments import validation
from gpuyard.experiments.design import METRICS, Arrivals, Behaviour, Experiment, Scheduler, Sharing, Workload
from gpuyard.experiments.validation import Keys
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.monitor.sources.prometheus_queries import BY_NAME
from gpuyard.policies.resolver import make_planner
from gpuyard.recordings.series import OF_GPUS

ENGINES = ("local", "kubernetes")  # where experiments can run
LATER = ("slurm", "ray")
SHARING = ("exclusive", "requests", "usage")
PROCESSES: dict[str, tuple[str, ...]] = {
    "uniform": ("min", "max"), "exponential": ("mean",), "fixed": ("every",), "at-once": (),
}  # fmt: skip
"""How jobs can come, and what must be said of it."""
MOST_JOBS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKLOADS = "write what is to run, as in: workloads: [{name: train, command: [python, train.py]}]"
_SCHEDULERS = "write what is compared, as in: schedulers: [{name: exclusive, sharing: exclusive}]"


def read_experiment(path: str | Path) -> Experiment:
    file = Path(path)
    found = validation.load(file)
    if found is None or found == {}:
        raise UserError(f"{file} is empty; {_WORKLOADS}")
    return parse_experiment(found, file)


def parse_experiment(value: Any, file: Path) -> Experiment:
    """The experiment in a parsed file; `file` is its name in errors."""
    top = Keys(value, file)
    experiment = Experiment(
        name=top.take("name", _name, file.stem),
        workloads=tuple(_workload(one) for one in top.several("workloads", _WORKLOADS)),
        schedulers=tuple(_scheduler(one) for one in top.several("schedulers", _SCHEDULERS)),
        arrivals=top.below("arrivals", _arrivals, Arrivals()),
        over_provisioning=top.take("over_provisioning", validation.many(validation.percentage), (0.0,)),
        gpus=top.take("gpus", _gpus, ""),
        metrics=top.take("metrics", validation.many(_metric), METRICS),
        repeat=top.take("repeat", validation.whole(1, 1000), 1),
        period=top.take("period", _period, 1.0),
        kubernetes=top.take("kubernetes", validation.as_it_is, {}),
    )
    top.done()
    _check(experiment, top)
    return experiment


def _check(experiment: Experiment, top: Keys) -> None:
    for key, names in (
        ("workloads", [one.name for one in experiment.workloads]),
        ("schedulers", [one.name for one in experiment.schedulers]),
    ):
        for number, name in enumerate(names, 1):
            if name.lower() in [other.lower() for other in names[: number - 1]]:
                raise top.error(f"{key}[{number}].name", f"'{name}' is there already; give it another name")
    if sum(one.replicas for one in experiment.workloads) > MOST_JOBS:
        raise top.error("workloads", f"these are more than {MOST_JOBS:,} jobs; take fewer replicas")
    if experiment.gpus:
        _check_room(experiment, top)


def _check_room(experiment: Experiment, top: Keys) -> None:
    """Refuse jobs that can never run on the simulated GPUs."""
    devices = SimulatedGpus.parse(experiment.gpus).devices
    largest = max(device.memory for device in devices)
    for number, one in enumerate(experiment.workloads, 1):
        place = f"workloads[{number}]"
        if one.gpus > len(devices):
            raise top.error(f"{place}.gpus", f"it wants {one.gpus} GPUs, and gpus ({experiment.gpus}) has fewer")
        if one.gpu_memory > largest:
            raise top.error(f"{place}.gpu_memory", f"no GPU has as much (gpus: {experiment.gpus})")
        if one.behaviour and one.behaviour.memory > largest:
            raise top.error(f"{place}.behaviour.memory", f"no GPU has as much (gpus: {experiment.gpus})")


def _workload(given: Keys) -> Workload:
    found = Workload(
        name=given.need("name", _name, "every workload has one, as in: name: train"),
        replicas=given.take("replicas", validation.whole(1, MOST_JOBS), 1),
        command=given.take("command", _command, ()),
        gpus=given.take("gpus", validation.whole(1, 1024), 1),
        gpu_memory=given.take("gpu_memory", validation.size, 0.0),
        priority=given.take("priority", validation.number, 0.0),
        estimate=given.take("estimate", validation.above_zero, None),
        environment=given.take("environment", validation.table(_variable, _value), {}),
        behaviour=given.below("behaviour", _behaviour, None),
        image=given.take("image", validation.text, ""),
        kubernetes=given.take("kubernetes", validation.as_it_is, {}),
    )
    given.done()
    if not (found.command or found.behaviour or found.image):
        raise given.error("", "it says neither a command nor a behaviour, so there is nothing to run or to simulate")
    return found


def _behaviour(given: Keys) -> Behaviour:
    found = Behaviour(
        seconds=given.need("seconds", validation.above_zero, "how long does it run alone, as in: seconds: 131.5"),
        together=given.take("together", validation.table(validation.whole(2, 1024), validation.above_zero), {}),
        overhead=given.take("overhead", validation.duration, 0.0),
        memory=given.take("memory", validation.size, 0.0),
        ramp=given.take("ramp", validation.duration, 10.0),
        utilization=given.take("utilization", _share, 80.0),
        utilization_together=given.take(
            "utilization_together", validation.table(validation.whole(2, 1024), _share), {}
        ),
        power=given.take("power", validation.table(_share, _watts), {}),
        seconds_by_percent=given.take(
            "seconds_by_percent", validation.table(validation.percentage, validation.above_zero), {}
        ),
    )
    given.done()
    times = [found.seconds, *(found.together[count] for count in sorted(found.together))]
    if times != sorted(times):
        raise given.error("together", "the more there are, the longer each runs: these times must not fall")
    return found


def _scheduler(given: Keys) -> Scheduler:
    found = Scheduler(
        name=given.need("name", _name, "every scheduler has one, as in: name: exclusive"),
        sharing=cast(Sharing, given.take("sharing", validation.one_of(SHARING), "requests")),
        policy=given.take("policy", _policy, "fcfs"),
        engine=given.take("engine", _engine, "local"),
        options=given.take("options", validation.as_it_is, {}),
        kubernetes=given.take("kubernetes", validation.as_it_is, {}),
    )
    given.done()
    return found


def _arrivals(given: Keys) -> Arrivals:
    process = cast(
        Any, given.need("process", validation.one_of(tuple(PROCESSES)), f"write one of {', '.join(PROCESSES)}")
    )
    times = {
        key: given.need(key, validation.duration, f"arrivals that are {process} have it, as in: {key}: 20s")
        for key in PROCESSES[process]
    }
    seed = given.take("seed", validation.whole(0, 2**63 - 1), 0)
    shuffle = given.take("shuffle", validation.switch, False)
    given.done()
    low, high = times.get("min", 0.0), times.get("max", 0.0)
    if low > high:
        raise given.error("max", "it must not be below min")
    return Arrivals(process, low, high, times.get("mean", times.get("every", 0.0)), seed, shuffle)


def _name(value: Any) -> str:
    if not _NAME.fullmatch(found := validation.text(value)):
        raise UserError(f"'{found}' cannot name a file: take letters, digits, dots, dashes and underscores, up to 63")
    return found


def _command(value: Any) -> tuple[str, ...]:
    """A list of words as it is; a text is for the shell, as in a job file."""
    if isinstance(value, str):
        return ("/bin/sh", "-c", validation.text(value))
    found = validation.words(value)
    if not found:
        raise UserError("the command is empty")
    return found


def _variable(value: Any) -> str:
    if not _VARIABLE.fullmatch(str(value)):
        raise UserError(f"'{value}' is not a variable's name")
    return str(value)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else validation.text(value)


def _share(value: Any) -> float:
    if not 0 <= (found := validation.percentage(value)) <= 100:
        raise UserError(f"a percentage up to 100 is expected, not {validation.shown(value)}")
    return found


def _watts(value: Any) -> float:
    if not 0 <= (found := validation.number(value)) <= 10_000:
        raise UserError(f"a number of watts is expected, not {validation.shown(value)}")
    return found


def _policy(value: Any) -> str:
    make_planner(found := validation.text(value))
    return found


def _engine(value: Any) -> str:
    if value in ENGINES:
        return str(value)
    there = f"there are {', '.join(ENGINES)}"
    if value in LATER:
        raise UserError(f"experiments do not run on {value} yet; {there}")
    word = value if isinstance(value, str) else ""
    raise UserError(f"there is no engine {validation.shown(value)}{suggest(word, ENGINES)}; {there}")


def _gpus(value: Any) -> str:
    SimulatedGpus.parse(found := validation.text(value))
    return found


def _metric(value: Any) -> str:
    known = BY_NAME.get(value) if isinstance(value, str) else None
    return validation.one_of(OF_GPUS)(value if known is None else known.metric)


def _period(value: Any) -> float:
    if not 0.1 <= (found := validation.duration(value)) <= 3600:
        raise UserError(f"a time from 0.1s to an hour is expected, not {validation.shown(value)}")
    return found
