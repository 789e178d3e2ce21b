"""The inner loops are in numba's subset: compiled from the same source, they give the same schedules.

The loops are written once and run interpreted; a compiled driver is to use the very same functions. So their source
is copied here, decorated, and put in the place of the interpreted functions. Nearly all the time goes into compiling.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from gpuyard.core import discipline, displacement, fragmentation, placement, pool, reservation, sharing
from gpuyard.core.model import GIB, Cluster
from gpuyard.core.pool import PLACEMENTS
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

MODULES = (pool, fragmentation, sharing, placement, discipline, displacement, reservation)
LOOPS = (
    "place", "claim", "release", "fits", "pick", "fits_in_place", "fill", "reserve", "backfill", "shadow_time",
    "displace", "conserve",
)  # fmt: skip
POLICIES = (
    "sjf@strict", "sjf@skip", "fcfs@easy", "saf@easy", "fcfs@conservative", "fcfs@commit", "f1@easy-shadow",
    "srtf", "srsf@strict", "las:queues=5/20/60", "rr:quantum=3", "rr:quantum=3,arrivals=first",
)  # fmt: skip


def compiled_source() -> str:
    """The modules in one, every function decorated; named tuples stay those of the modules."""
    header = ["from __future__ import annotations", "import numba"]
    body: list[ast.stmt] = []
    for module in MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                header.append(f"from {module.__name__} import {node.name}")
            elif not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("gpuyard", "__future__"))):
                body.append(node)
                if isinstance(node, ast.FunctionDef):
                    node.decorator_list = [ast.parse("numba.njit", mode="eval").body]
    return "\n".join(header) + "\n" + ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def load(source: str) -> ModuleType:
    """The source as a module of its own."""
    module = ModuleType("gpuyard_compiled")
    exec(compile(source, "compiled loops", "exec"), vars(module))
    return module


def as_arrays(value: Any, seen: dict[int, tuple[Any, Any]]) -> Any:
    """The same arguments with arrays for lists: interpreted loops get lists where those are quicker to walk."""
    if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        return seen.setdefault(id(value), (value, np.array(value, dtype=np.int64 if not has_floats(value) else None)))[
            1
        ]
    if isinstance(value, tuple):
        return type(value)(*(as_arrays(field, seen) for field in value))
    return value


def has_floats(values: Any) -> bool:
    return any(isinstance(value, float) for value in values)


def on_arrays(function: Any) -> Callable[..., Any]:
    """A compiled function that takes lists, too, and leaves in them what it has changed."""

    def call(*args: Any) -> Any:
        seen: dict[int, tuple[Any, Any]] = {}
        result = function(*(as_arrays(arg, seen) for arg in args))
        for given, array in seen.values():
            if isinstance(given, list):
                given[:] = array.tolist()
        return result

    return call


def put_in_place(compiled: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Let the whole core call the compiled loops."""
    core = [module for name, module in sys.modules.items() if name.startswith("gpuyard.core.")]
    for name in LOOPS:
        original = next(vars(module)[name] for module in MODULES if name in vars(module))
        assert isinstance(original, FunctionType)
        for module in core:
            if vars(module).get(name) is original:
                patch.setattr(module, name, on_arrays(getattr(compiled, name)))


def workload(seed: int, shares: bool) -> Trace:
    """40 jobs, some of them sharing GPUs by compute, by memory, or by both."""
    rng, n = np.random.default_rng(seed), 40
    compute = rng.choice([100.0, 33.3, 50.0, 0.0], n) if shares else np.full(n, 100.0)
    memory = np.where(compute == 0, 6 * GIB, np.where(compute == 50, 4 * GIB, 0.0))
    run = rng.integers(1, 20, n)
    return Trace.of(
        rng.integers(0, 60, n), run, rng.integers(1, 7, n), requested=run * rng.choice([0.5, 1, 3], n),
        compute=compute, memory=memory, preemptible=rng.random(n) < 0.8,
    )  # fmt: skip


def run_all() -> dict[tuple[str, str, bool], Result]:
    return {
        (policy, name, shares): simulate(workload(3, shares), Cluster((4, 2, 3)), policy, Options(placement=name))[0]
        for policy in POLICIES
        for name in PLACEMENTS
        for shares in (False, True)
    }


def test_compiled_loops_give_the_same_schedules(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba", reason="numba is not installed, so there is nothing to compile with")
    monkeypatch.setattr(numba.config, "OPT", type(numba.config.OPT)(0))  # it is the compiling that takes time here
    interpreted = run_all()
    compiled = load(compiled_source())
    put_in_place(compiled, monkeypatch)
    for case, result in run_all().items():
        expected = interpreted[case]
        assert np.array_equal(result.start, expected.start, equal_nan=True), case
        assert np.array_equal(result.end, expected.end, equal_nan=True), case
        assert result.placements == expected.placements, case
        assert np.array_equal(result.segments.gpu, expected.segments.gpu), case
    idle = [name for name in LOOPS if not getattr(compiled, name).signatures]
    assert not idle, f"never compiled, so never compared: {idle}"
