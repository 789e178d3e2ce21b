"""Compiles the loops of the core and of the kernel, and policies, from their one source, and keeps the result on disk.

The functions of `core` are written in numba's subset but know nothing of numba: the daemon runs them interpreted. Here
their source is put into one module, every function decorated, in a directory named after a hash of that source; numba
keeps its machine code beside it. So a change anywhere starts afresh, and only the first run ever compiles.

A driver takes policies as values of one function type, so that it is compiled once for all of them. A policy that numba
cannot compile is still a policy: `replay` runs it.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gpuyard.core.policy import Policy
from gpuyard.errors import Bug


def cache_home() -> Path:
    """The directory of compiled code: GPUYARD_CACHE_DIR, or gpuyard/ in the user's cache directory."""
    given = os.environ.get("GPUYARD_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"


class _WholeGpus(ast.NodeTransformer):
    """Remove what only matters where GPUs are shared: `site.fine` is false, and all jobs take any GPU.

    Removed code is not compiled, and arrays that only it reads are not passed about.
    """

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return ast.Constant(False) if node.attr == "fine" else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(False) if node.id == "INTERPRETED" and isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return ast.Constant(True) if isinstance(node.func, ast.Name) and node.func.id == "takes_any" else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.Constant(not node.operand.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)  # the value that settles it
        values = [v for v in node.values if not (isinstance(v, ast.Constant) and v.value is not decides)]
        if any(isinstance(v, ast.Constant) and v.value is decides for v in values):
            return ast.Constant(decides)
        if not values:
            return ast.Constant(not decides)
        return values[0] if len(values) == 1 else ast.BoolOp(node.op, values)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        node.body, node.orelse = _until_left(node.body), _until_left(node.orelse)
        if isinstance(node.test, ast.Constant):
            return (node.body if node.test.value else node.orelse) or [ast.Pass()]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.body = _until_left(node.body)
        return node


def _until_left(statements: list[ast.stmt]) -> list[ast.stmt]:
    for i, statement in enumerate(statements):
        if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return statements[: i + 1]
    return statements


LEAN = frozenset(
    (
        "choose_nodes", "wait_for", "backfill", "_start_heads", "_may_be_new", "_begin", "best_fit", "most_idle",
        "needs_one_node", "some_node_has", "add_gpus", "settle", "claim", "release", "bins_taken", "start", "fill",
        "book_events", "_number", "_plan_dynamic", "_renumber", "best_of", "_best_by_bounds", "remove_waiting", "runs",
        "runs_no_more", "_take_in", "_plan", "choose_victims", "before", "_next_victim", "_count", "_stays",
        "_limit_after", "_in_reach", "has_room", "whole_nodes_fit", "fits", "_add_bins",
        "_make_room", "_spare_by_count", "is_full", "add_piece", "next_end", "add_end", "remove_end", "_before",
        "_stand", "_rise", "_sink", "_lowest_bit", "_down", "next_row", "_set_front", "put_in", "take_out",
        "first_row", "smallest", "_place_in", "expect", "expect_no_more", "give_gpus", "_give_lowest", "take_gpus",
        "run_from", "next_instant", "round_after", "is_time_to_plan", "_arrived", "_plan_in_order", "plan_salt",
        "queue_length", "_find", "_move", "_to_the_middle", "join", "leave", "note_submitted", "note_started",
        "note_stopped", "note_preempted", "note_finished", "note_renewed", "gather", "_gather_one", "_take",
        "_changing", "attained", "behind_all", "remaining", "waited", "_queue_up", "_stop", "_start_all",
        "_begin_all", "no_job_stops", "note_worst", "asks_for_at_most", "fill_up", "take_from", "_gather_work",
        "_sort_out", "_sort", "decide_from_scratch", "forget_ended", "_part_from_victims", "any_job_fits", "_wake_at",
        "change_times", "ends_by", "enlist", "dismiss", "decide_incrementally", "_near", "_rank_due",
        "_dismiss_victims", "_earliest", "_wake_for_drops", "_copy_to", "_slide", "is_any_late", "put_off",
        "reserve_for", "_candidates",
        "without_number", "measure_features", "_measure_jobs", "gather_feature", "_opening", "_shorter", "_let_begin",
        "_score_all", "_begin_best", "_keep_head", "usage_into",
    )
)  # fmt: skip
"""Functions that allocate nothing and return no array: counting references would only cost time in them."""

INLINED = frozenset(
    (
        "next_instant", "is_time_to_plan", "_arrived", "_plan_in_order", "give_gpus", "take_gpus", "run_from", "fill",
        "settle", "start", "put_in", "take_out", "first_row",
        "book_events", "_plan_dynamic", "_renumber", "best_of", "_best_by_bounds", "remove_waiting", "_gather_one",
        "_changing",
        "note_submitted", "note_started", "note_stopped", "note_finished", "_take_in", "_plan",
        "_start_all", "decide_incrementally", "_opening", "_shorter", "_score_all", "_begin_best", "_let_begin",
        "measure_features", "_measure_jobs", "gather_feature", "gather", "_before_shadow", "_keep_head",
    )
)  # fmt: skip
"""Functions of every event: passing their many arrays costs more than what they do."""


@cache
def merged_source(modules: tuple[ModuleType, ...], entries: tuple[str, ...]) -> str:
    """The modules in one, every function decorated; machine code of `entries` is kept on disk.

    Named tuples stay those of the modules, since callers make them. Bins are nodes throughout.
    """
    header = ["from __future__ import annotations", "import numba"]
    body: list[ast.stmt] = []
    seen: dict[str, str] = {}
    for module in modules:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                header.append(f"from {module.__name__} import {node.name}")
            elif isinstance(node, ast.FunctionDef):
                if node.name in seen:
                    raise Bug(f"both {seen[node.name]} and {module.__name__} have a function {node.name}")
                seen[node.name] = module.__name__
                options = f"nogil=True, _nrt={node.name not in LEAN}"
                options += ", cache=True" * (node.name in entries) + ", forceinline=True" * (node.name in INLINED)
                node = _WholeGpus().visit(node)
                node.decorator_list = [ast.parse(f"numba.njit({options})", mode="eval").body]
                body.append(node)
            elif not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("gpuyard", "__future__"))):
                body.append(node)
    return "\n".join(header) + "\n" + ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def load(name: str, source: str) -> ModuleType:
    """The source as a module in the cache directory, where numba finds what it compiled before."""
    title = f"gpuyard_{name}_{_digest(source)}"
    if title in sys.modules:
        return sys.modules[title]
    path = _written(_path(name, source), source)
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None or spec.loader is None:
        raise Bug(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    spec.loader.exec_module(module)
    return module


def _written(path: Path, source: str) -> Path:
    """The file with that source; a temporary one where the cache directory cannot be written."""
    if path.is_file() and path.read_text() == source:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(source)
        os.replace(file.name, path)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="gpuyard-kernel-")) / path.name
        path.write_text(source)
    return path


def is_compiled(name: str, source: str, entry: str) -> bool:
    return any((_path(name, source).parent / "__pycache__").glob(f"{name}.{entry}-*.nbc"))


@contextmanager
def alone() -> Iterator[None]:
    """One process compiles at a time; the others wait, and find it done."""
    try:
        cache_home().mkdir(parents=True, exist_ok=True)
        file = open(cache_home() / "compiling.lock", "w")  # noqa: SIM115
    except OSError:  # nothing is shared where nothing can be written
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _path(name: str, source: str) -> Path:
    return cache_home() / "kernel" / _digest(source) / f"{name}.py"


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


FUNCTIONS: dict[str, Callable[..., Any]] = {}  # functions that generated modules wrap, by fingerprint

_SOURCE = """\
import numba
from gpuyard.sim.kernel.compiler import FUNCTIONS

function = FUNCTIONS[{key!r}]


@numba.cfunc("void(float64[:, ::1], int64, float64[::1])", nopython=True, cache=True)
def rank(values, n, out):
    out[:n] = function({arguments})
"""


_SCORER = """\
import numba
from gpuyard.sim.kernel.compiler import FUNCTIONS

function = FUNCTIONS[{key!r}]


@numba.cfunc("void(float64[:, ::1], int64, float64[::1], float64[::1])", nopython=True, cache=True)
def rank(values, n, weights, out):
    {body}
"""
_BY_JOB = "for i in range(n):\n        out[i] = function({arguments})"
_AT_ONCE = "out[:n] = function({arguments})"


def compile_policy(policy: Policy) -> Any:
    """The policy as a compiled function of columns; raises what numba raises."""
    arguments = ", ".join(_arguments(policy, ":n"))
    return load("policy", _SOURCE.format(key=_known(policy), arguments=arguments)).rank


def compile_scorer(policy: Policy) -> Any:
    """The policy as a compiled function of columns and weights; compiled once for all values of the weights."""
    if policy.weights is None:
        body = _AT_ONCE.format(arguments=", ".join(_arguments(policy, ":n")))
    else:
        body = _BY_JOB.format(arguments=", ".join([*_arguments(policy, "i"), "weights"]))
    return load("scorer", _SCORER.format(key=_known(policy), body=body)).rank


def _arguments(policy: Policy, index: str) -> list[str]:
    settings = [{**policy.defaults, **policy.settings}[name] for name in policy.defaults]
    return [f"values[{c}, {index}]" for c in range(len(policy.columns))] + [repr(value) for value in settings]


def _known(policy: Policy) -> str:
    """The fingerprint under which `FUNCTIONS` has a policy's function."""
    key = _fingerprint(policy.function)
    if key not in FUNCTIONS:
        FUNCTIONS[key] = _for_numba(policy.function, {})
    return key


def _for_numba(function: Callable[..., Any], seen: dict[Callable[..., Any], Any]) -> Any:
    """A function with positional parameters only, which is all that numba takes, and so for the functions it calls."""
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
