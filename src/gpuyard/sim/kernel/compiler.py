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
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from gpuyard.core.policy import Policy
from gpuyard.errors import Bug


def cache_home() -> Path:
    """The directory of compiled code: GPUYARD_CACHE_DIR, or gpuyard/ in the user's cache directory."""
    given = os.environ.get("GPUYARD_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"


class _Needed(ast.NodeTransformer):
    """Remove what a run does not need. Removed code is not compiled, and arrays that only it reads are not passed on.

    GPUs are not shared: `site.fine` is false, and all jobs take any GPU. Nothing equals the constants in `absent`.
    """

    def __init__(self, absent: tuple[str, ...]) -> None:
        self._absent = absent

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if ast.unparse(node.comparators[0]) in self._absent and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return ast.Constant(isinstance(node.ops[0], ast.NotEq))
        return node

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


_SITE = "Site"
"""A record that is made anew for each plan, of parts that stay. All others are passed on by reference."""
_NUMBERS = frozenset(("None", "int", "float", "bool", "A"))  # return types that are no arrays
_OF_NUMBERS = frozenset(("isnan", "floor", "nextafter", "maximum", "minimum", "abs", "spacing", "round", "exp"))


@cache
def merged_source(
    modules: tuple[ModuleType, ...],
    entry: str,
    absent: tuple[str, ...] = (),
    *,
    whole_arrays: bool = False,
) -> str:
    """What `entry` needs of the modules, in one; this text and its machine code are kept on disk.

    Named tuples stay those of the modules, since callers make them. Bins are nodes throughout. `absent`: constants
    that nothing equals; code that is never reached is left out. `whole_arrays`: whether functions compute with arrays
    as a whole, not number by number.
    """
    given = "\n".join(Path(str(one.__file__)).read_text() for one in (sys.modules[__name__], *modules))
    path = path_of("merged", f"{given}{entry}{absent}{whole_arrays}")
    if path.is_file():
        return path.read_text()
    source = _merge(modules, entry, absent, whole_arrays)
    _written(path, source)
    return source


def _merge(modules: tuple[ModuleType, ...], entry: str, absent: tuple[str, ...], whole_arrays: bool) -> str:
    header = [
        "from __future__ import annotations",
        "import numba",
        "from gpuyard.sim.kernel.references import ENTRY_BODY, PART, kept, reference",
    ]
    constants: list[ast.stmt] = []
    functions: dict[str, ast.FunctionDef] = {}
    records = set[str]()
    for module in modules:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                header.append(f"from {module.__name__} import {node.name}")
                records.add(node.name)
            elif isinstance(node, ast.FunctionDef):
                if node.name in functions:
                    raise Bug(f"two of {', '.join(one.__name__ for one in modules)} have a function {node.name}")
                functions[node.name] = _Needed(absent).visit(_without_docstring(node))
            elif not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("gpuyard", "__future__"))):
                constants.append(node)
    needed = reachable(entry, functions)
    body = [node for name, node in functions.items() if name in needed]
    arrays = {
        node.name for node in functions.values() if ast.unparse(node.returns or ast.Constant(None)) not in _NUMBERS
    }
    for node in body:
        options = "nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True"
        options += f", _nrt={whole_arrays or _counts_references(node, arrays)}"
        options += ", **ENTRY_BODY" if node.name == entry else ", **PART"
        node.decorator_list = [ast.parse(f"{one}", mode="eval").body for one in ("kept", f"numba.njit({options})")]
    called = _entry(functions[entry], records)
    functions[entry].name = f"_{entry}"
    return (
        "\n".join(header) + "\n" + ast.unparse(ast.fix_missing_locations(ast.Module([*constants, *body, called], [])))
    )


def _without_docstring(node: ast.FunctionDef) -> ast.FunctionDef:
    """So that other words in it do not compile everything again."""
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return node


def reachable(entry: str, functions: dict[str, ast.FunctionDef]) -> set[str]:
    found, left = set[str](), [entry]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += {n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name) and n.id in functions}
    return found


def _counts_references(node: ast.FunctionDef, arrays: set[str]) -> bool:
    """Whether a function makes or returns arrays, so that it must count references to them; in others that is waste."""
    if node.name in arrays:
        return True
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            called = call.func
            if isinstance(called, ast.Name) and called.id in arrays:
                return True
            if isinstance(called, ast.Attribute) and called.attr not in _OF_NUMBERS:
                return True
    return False


def _entry(node: ast.FunctionDef, records: set[str]) -> ast.stmt:
    """What Python calls: it stores its records, and passes references to them on."""

    def passed(argument: ast.arg) -> str:
        name, kind = argument.arg, ast.unparse(argument.annotation or ast.Constant(None))
        if kind == _SITE:
            parts = "code", "salt", "fine", "tasks", "parts"
            rest = ", ".join(f"{name}.{part}" for part in parts)
            return f"{_SITE}(reference({name}.demand), reference({name}.pool), {rest})"
        return f"reference({name})" if kind in records else name

    names, given = (", ".join(f(one) for one in node.args.args) for f in (lambda one: one.arg, passed))
    code = f"@numba.njit(nogil=True, cache=True)\ndef {node.name}({names}):\n    return _{node.name}({given})"
    return ast.parse(code).body[0]


def load(name: str, source: str) -> ModuleType:
    """The source as a module in the cache directory, where numba finds what it compiled before."""
    title = title_of(name, source)
    if title in sys.modules:
        return sys.modules[title]
    path = _written(path_of(name, source), source)
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None or spec.loader is None:
        raise Bug(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[title]
        raise
    return module


def title_of(name: str, source: str) -> str:
    return f"gpuyard_{name}_{_digest(source)}"


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
    return any((path_of(name, source).parent / "__pycache__").glob(f"{name}.{entry}-*.nbc"))


def path_of(name: str, source: str) -> Path:
    return cache_home() / "kernel" / _digest(source) / f"{name}.py"


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


@contextmanager
def alone(name: str, source: str) -> Iterator[bool]:
    """One process compiles a module at a time; the others wait, and find it done. Tells whether another one does."""
    try:
        path = path_of(name, source).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115
    except OSError:  # nothing is shared where nothing can be written
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            others = False
        except BlockingIOError:
            others = True
            print(f"another process compiles the same code ({name}); waiting for it ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield others


FUNCTIONS: dict[str, Callable[..., Any]] = {}  # functions that generated modules wrap, by fingerprint

_SOURCE = """\
import numba
from gpuyard.sim.kernel.compiler import FUNCTIONS

function = FUNCTIONS[{key!r}]


@numba.cfunc("void(float64[:, ::1], int64, float64[::1])", nopython=True, cache={cache})
def rank(values, n, out):
    {body}
"""
_SCORER = """\
import numba
from gpuyard.sim.kernel.compiler import FUNCTIONS

function = FUNCTIONS[{key!r}]


@numba.cfunc("void(float64[:, ::1], int64, float64[::1], float64[::1])", nopython=True, cache={cache})
def rank(values, n, weights, out):
    {body}
"""
_BY_JOB = "for i in range(n):\n        out[i] = function({arguments})"
_AS_ARRAY = """numbers = function({arguments})
    for i in range(n):
        out[i] = numbers[i if len(numbers) == n else 0]"""
_AS_NUMBER = "out[:n] = function({arguments})"


def compile_policy(policy: Policy) -> Any:
    """The policy as a compiled function of columns; raises what numba raises."""
    return _of_columns("policy", _SOURCE, policy)


def compile_scorer(policy: Policy) -> Any:
    """The policy as a compiled function of columns and weights; compiled once for all values of the weights."""
    if policy.weights is None:
        return _of_columns("scorer", _SCORER, policy)
    body = _BY_JOB.format(arguments=", ".join([*_arguments(policy, "i"), "weights"]))
    return _compiled("scorer", _SCORER, policy, body)


def _of_columns(name: str, template: str, policy: Policy) -> Any:
    """A policy of whole columns. It returns an array, as nearly all do, or one number for all jobs."""
    from numba.core.errors import TypingError

    arguments = ", ".join(_arguments(policy, ":n"))
    try:
        return _compiled(name, template, policy, _AS_ARRAY.format(arguments=arguments))
    except TypingError:  # storing into a slice takes any of them, and seconds to compile
        return _compiled(name, template, policy, _AS_NUMBER.format(arguments=arguments))


def _arguments(policy: Policy, index: str) -> list[str]:
    settings = [{**policy.defaults, **policy.settings}[name] for name in policy.defaults]
    return [f"values[{c}, {index}]" for c in range(len(policy.columns))] + [repr(value) for value in settings]


def _compiled(name: str, template: str, policy: Policy, body: str) -> Any:
    """The function of a template, kept on disk under the fingerprint of the policy's own, if it has one."""
    fingerprint = _fingerprint(policy.function)
    key = fingerprint or f"process-{id(policy.function)}"
    if key not in FUNCTIONS:
        FUNCTIONS[key] = _for_numba(policy.function, {})
    source = template.format(key=key, cache=fingerprint is not None, body=body)
    if fingerprint is not None:
        with nullcontext() if is_compiled(name, source, "rank") else alone(name, source):
            return load(name, source).rank
    module = ModuleType(f"gpuyard_{name}_of_this_process")
    exec(source, module.__dict__)
    return module.rank


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


class _Unfamiliar(Exception):
    """A policy reads a value whose changes could not be noticed."""


def _fingerprint(function: Callable[..., Any]) -> str | None:
    """A digest of all that a function reads; None where that cannot be known, so that nothing may be kept on disk."""
    digest = hashlib.sha256()
    try:
        for part in _parts(function, set()):
            digest.update(part + b";")
    except _Unfamiliar:
        return None
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    value = getattr(value, "py_func", value)  # a function that is decorated with njit already
    if isinstance(value, FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        read = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        for part in (value.__code__, value.__defaults__, value.__kwdefaults__, *cells, *read):
            yield from _parts(part, seen)
    elif isinstance(value, CodeType):
        yield value.co_code + repr(value.co_names).encode()
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        yield f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__}{len(value)}".encode()
        for part in value:
            yield from _parts(part, seen)
    elif isinstance(value, set | frozenset):
        yield from _parts(sorted(value, key=repr), seen)
    elif isinstance(value, dict):
        yield from _parts(list(value.items()), seen)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{type(value).__name__}{value!r}".encode()
    elif _is_library(value):
        yield value.__name__.encode()
    else:
        raise _Unfamiliar


def _is_library(value: Any) -> bool:
    """Whether a value is a module of numbers, or a function or type of one."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("numpy", "math")
    is_known = isinstance(value, np.ufunc | BuiltinFunctionType | FunctionType | type)
    return is_known and getattr(value, "__module__", None) in (None, "builtins", "math", "numpy")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
