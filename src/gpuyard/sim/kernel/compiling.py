"""Compile a policy, the function as its author wrote it, to be called by the compiled drivers.

A driver takes policies as values of one function type, so that it is compiled once for all of them. A policy that numba
cannot compile is still a policy: `replay` runs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from gpuyard.core.policy import Policy
from gpuyard.sim.kernel import build

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Functions that generated modules wrap, by fingerprint."""

_SOURCE = """\
import numba
from gpuyard.sim.kernel.compiling import FUNCTIONS

function = FUNCTIONS[{key!r}]


@numba.cfunc("void(float64[:, ::1], int64, float64[::1])", nopython=True, cache=True)
def rank(values, n, out):
    out[:n] = function({arguments})
"""


_JUDGE = """\
import numba
from gpuyard.sim.kernel.compiling import FUNCTIONS

function = FUNCTIONS[{key!r}]


@numba.cfunc("void(float64[:, ::1], int64, float64[::1], float64[::1])", nopython=True, cache=True)
def rank(values, n, weights, out):
    {body}
"""
_BY_JOB = "for i in range(n):\n        out[i] = function({arguments})"
_AT_ONCE = "out[:n] = function({arguments})"


def compiled(policy: Policy) -> Any:
    """The policy as a compiled function of columns; raises what numba raises where that cannot be done."""
    arguments = ", ".join(_arguments(policy, ":n"))
    return build.load("policy", _SOURCE.format(key=_known(policy), arguments=arguments)).rank


def judge(policy: Policy) -> Any:
    """The same, of columns and of numbers of its own; one that has some is compiled once, whatever they are."""
    if policy.weights is None:
        body = _AT_ONCE.format(arguments=", ".join(_arguments(policy, ":n")))
    else:
        body = _BY_JOB.format(arguments=", ".join([*_arguments(policy, "i"), "weights"]))
    return build.load("judge", _JUDGE.format(key=_known(policy), body=body)).rank


def _arguments(policy: Policy, index: str) -> list[str]:
    settings = [{**policy.defaults, **policy.settings}[name] for name in policy.defaults]
    return [f"values[{c}, {index}]" for c in range(len(policy.columns))] + [repr(value) for value in settings]


def _known(policy: Policy) -> str:
    """The fingerprint under which a policy's function can be had."""
    key = _fingerprint(policy.function)
    if key not in FUNCTIONS:
        FUNCTIONS[key] = _for_numba(policy.function, {})
    return key


def _for_numba(function: Callable[..., Any], seen: dict[Callable[..., Any], Any]) -> Any:
    """A function with ordinary parameters only, which is all that numba takes, and so for the functions it calls."""
    import numba

    if function in seen:
        return seen[function]
    code = function.__code__
    code = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
    names = dict(function.__globals__)
    for name in code.co_names:
        if isinstance(names.get(name), FunctionType):
            names[name] = _for_numba(names[name], seen)
    seen[function] = numba.njit(FunctionType(code, names, function.__name__, None, function.__closure__))
    return seen[function]


def _fingerprint(function: Callable[..., Any]) -> str:
    """What a function does, in a few letters: its code, and that of the functions it calls."""
    digest = hashlib.sha256()
    seen: set[int] = set()

    def add(part: Any) -> None:
        if isinstance(part, FunctionType):
            if id(part) not in seen:
                seen.add(id(part))
                add(part.__code__)
                for cell in part.__closure__ or ():
                    add(cell.cell_contents)
                for name in part.__code__.co_names:
                    add(part.__globals__.get(name))
        elif isinstance(part, CodeType):
            digest.update(part.co_code)
            for constant in (*part.co_names, *part.co_consts):
                add(constant)
        elif isinstance(part, int | float | str | tuple | bytes | None):
            digest.update(repr(part).encode())

    add(function)
    return digest.hexdigest()[:16]
