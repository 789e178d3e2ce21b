"""The public surface, against a record of it: what people, their scripts and other programs rely on.

Commands and options, the OpenAPI document, keys of JSON, settings, events, schemas, names in Python, and words such as
states and metrics. What is recorded (`public_surface/*.json`) must still be there and be equal; more is allowed. A move
of modules changes nothing here: it is looked at through the command line, a daemon, and names that are documented.

    python -m tests.integration.test_public_surface --record
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import sqlite3
import sys
import tempfile
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from tests.sse import get
from tests.yard import Done, Yard, finish, opened, until

import gpuyard
from gpuyard.cli import main

INTERNAL = {"events": "gpuyard.core.events", "reasons": "gpuyard.core.reasons"}
"""Modules that are no API of Python: the only paths here that a move may have to change."""
DOCUMENTED = {
    "gpuyard.adapt": "* ops",
    "gpuyard.adapt.huggingface": "BudgetCallback",
    "gpuyard.adapt.lightning": "BudgetCallback",
    "gpuyard.adapt.ops": "*",
    "gpuyard.adapt.torchrates": "BudgetLR",
    "gpuyard.client": "*",
    "gpuyard.core": "*",
    "gpuyard.core.plan": "Planner",
    "gpuyard.gpus": "open_gpus",
    "gpuyard.grants": "Grants GrantEvent",
    "gpuyard.learn.report": "write_report",
    "gpuyard.monitor.live": "Live",
    "gpuyard.monitor.plots": "write_plots",
    "gpuyard.monitor.sources": "open_source",
    "gpuyard.recordings.textform": "from_json read_recording to_json write_recording",
    "gpuyard.sim.compare": "compare",
    "gpuyard.sim.inflate": "inflate",
    "gpuyard.sim.select": "select",
    "gpuyard.sim.traces": "* gather nodes",
    "gpuyard.sim.workload": "generate_poisson generate_tasks",
}
"""What README.md, docs/ and examples/ tell people to import; `*`: all of `__all__`."""
RUNNABLE = ("gpuyard", "gpuyard.learn.ppo", "gpuyard.learn.shipped")
"""What they tell people to run by `python -m`."""
ENVIRONMENTS = "gpuyard.learn.envs"
VARIABLES = "CA CACHE_DIR CONFIG HOST PROMETHEUS_PATIENCE PROMETHEUS_TOKEN PROMETHEUS_URL RESULT SIMULATE_USE TOKEN"
"""GPUYARD_..., besides those of settings and those that jobs are given."""
RECORDED = Path(__file__).parent / "public_surface"
SOURCES = Path(gpuyard.__file__).parent
TRACE = "job,submit,run,gpus,user\n1,2,6,1,ann\n2,0,8,1,bob\n3,1,7,1,ann\n4,3,3,1,bob\n"
EXACT = ("jobs > ", "settings > ")
"""Where lists are values that must be equal."""
WIDTH = 120


# How it is compared and kept.


def broken(recorded: Any, current: Any, where: str = "") -> Iterator[str]:
    """What is recorded and is not so any more, a line each."""
    last = where.rpartition(" > ")[2]
    if isinstance(recorded, dict) and isinstance(current, dict):
        for name, value in recorded.items():
            path = f"{where} > {name}" if where else name
            if name in current:
                yield from broken(value, current[name], path)
            else:
                yield f"{path}: gone, was {short(value)}"
    elif last == "needs":  # what must be given: less of it hurts nobody
        yield from (f"{where}: {name} must be given now" for name in current if name not in recorded)
    elif last == "positional":
        if current[: len(recorded)] != recorded:
            yield f"{where}: was {short(recorded)}, is {short(current)}"
    elif isinstance(recorded, list) and isinstance(current, list) and not where.startswith(EXACT) and last != "default":
        yield from _broken_list(recorded, current, where)
    elif recorded != current or isinstance(recorded, bool) != isinstance(current, bool):
        yield f"{where}: was {short(recorded)}, is {short(current)}"


def _broken_list(recorded: list[Any], current: list[Any], where: str) -> Iterator[str]:
    """Of things with a name, those of the same name are compared; of others, one has to be as good."""
    if len(recorded) == len(current) == 1:
        yield from broken(recorded[0], current[0], f"{where} > *")
        return
    for value in recorded:
        name = value.get("name") if isinstance(value, dict) else None
        same = [one for one in current if isinstance(one, dict) and name is not None and one.get("name") == name]
        if len(same) == 1:
            yield from broken(value, same[0], f"{where} > {name}")
        elif not any(not list(broken(value, one)) for one in current):
            yield f"{where}: gone from the list: {short(value)}"


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]}..."


def written(value: Any, indent: int = 0) -> str:
    """JSON that is good to read and to compare: whatever has room on a line is on one."""
    line = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if len(line) + indent < WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, list):
        parts = [written(one, indent + 1) for one in value]
    else:
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {written(value[name], indent + 1)}" for name in sorted(value)
        ]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return opening + "\n" + ",\n".join(pad + part for part in parts) + "\n" + " " * indent + closing


def recorded(part: str) -> Any:
    file = RECORDED / f"{part}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def plain(value: Any) -> Any:
    """A value as it comes back out of JSON."""
    return json.loads(json.dumps(value))


def words(text: str | None) -> str:
    return " ".join((text or "").split())


# Python: names, types and signatures, without the modules that they are in.


class _Bare(ast.NodeTransformer):
    """Takes modules off names, quotes off types, and writes one form of what has two."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(node.attr)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value).rpartition(".")[2] == "Literal":
            return ast.Subscript(ast.Name("Literal"), node.slice)
        inner = self.generic_visit(node)
        if isinstance(inner, ast.Subscript) and ast.unparse(inner.value) == "Optional":
            return ast.BinOp(inner.slice, ast.BitOr(), ast.Constant(None))
        return inner


def type_text(kind: Any) -> str:
    """A type as one writes it: `Sequence[int] | None`."""
    if isinstance(kind, typing.ForwardRef):
        kind = kind.__forward_arg__
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    if kind is inspect.Parameter.empty:
        return ""
    try:
        return ast.unparse(_Bare().visit(ast.parse(text.strip(), mode="eval")))
    except SyntaxError:
        return re.sub(r"\b(?:\w+\.)+", "", text)


def default_text(value: Any) -> str:
    if inspect.isroutine(value) or isinstance(value, type):
        return str(value.__name__)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)| at 0x\w+", "", repr(value))


@functools.cache
def typed_dicts() -> dict[str, dict[str, str]]:
    """Keys and types of all TypedDicts, by the names that they have anywhere."""
    found: dict[str, list[dict[str, str]]] = {}
    for module in _light_modules():
        for name, kind in vars(module).items():
            if (
                typing.is_typeddict(kind)
                and not name.startswith("_")
                and (keys := _keys(kind)) not in found.get(name, [])
            ):
                found.setdefault(name, []).append(keys)
    return {name: max(several, key=len) for name, several in found.items()}


def _light_modules() -> Iterator[types.ModuleType]:
    """Where such types may be: in modules that speak of them, loose ones, and the packages that clients import."""
    for file in sorted(SOURCES.rglob("*.py")):
        *folders, name = file.relative_to(SOURCES).with_suffix("").parts
        light = not folders or folders[0] in ("api", "batches", "client", "spec")
        if name not in ("__main__",) and (light or "TypedDict" in file.read_text()):
            yield importlib.import_module(".".join(("gpuyard", *folders, *([] if name == "__init__" else [name]))))


def _keys(kind: Any) -> dict[str, str]:
    texts = {key: type_text(text) for key, text in kind.__annotations__.items()}
    optional = {key for key, text in texts.items() if text.startswith("NotRequired[")} | kind.__optional_keys__
    bare = {key: text[12:-1] if text.startswith("NotRequired[") else text for key, text in texts.items()}
    return {key: f"NotRequired[{text}]" if key in optional else text for key, text in bare.items()}


def signature(what: Any, *, bound: bool = True) -> dict[str, Any]:
    """Parameters, and which of them may go without a name, or must be given; {} where there is nothing to tell."""
    try:
        found = inspect.signature(what)
    except (TypeError, ValueError):
        return {}
    parameters: dict[str, Any] = {}
    positional, needs = [], []
    for name, one in list(found.parameters.items())[0 if bound else 1 :]:
        text = type_text(one.annotation)
        if one.kind is one.VAR_KEYWORD and text.startswith("Unpack["):
            keys = typed_dicts()[text[7:-1]]
            parameters |= {key: {"type": re.sub(r"^NotRequired\[(.*)\]$", r"\1", kind)} for key, kind in keys.items()}
            continue
        stars = "**" if one.kind is one.VAR_KEYWORD else "*" if one.kind is one.VAR_POSITIONAL else ""
        parameters[stars + name] = {"type": text}
        if one.default is not one.empty:
            parameters[name]["default"] = default_text(one.default)
        elif not stars:
            needs.append(name)
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            positional.append(name)
    returns = {} if isinstance(what, type) else {"returns": type_text(found.return_annotation)}
    return {"parameters": parameters, "positional": positional, "needs": needs, **returns}


def described(value: Any) -> dict[str, Any]:
    """What a name stands for."""
    if typing.is_typeddict(value):
        return {"is": "keys", "keys": _keys(value)}
    if isinstance(value, type):
        return _class(value)
    if inspect.ismodule(value):
        return {"is": "module"}
    if inspect.isroutine(value):
        return {"is": "function", **signature(value)}
    if isinstance(value, dict | frozenset | tuple | list):
        return {"is": "values", "values": sorted(map(str, value))}
    return {"is": type(value).__name__}


def _class(kind: type) -> dict[str, Any]:
    own = [one for one in reversed(kind.__mro__) if one.__module__.partition(".")[0] == "gpuyard"]
    bases = [
        one.__name__ for one in kind.__mro__[1:]
        if one.__name__ not in ("object", "Generic", "Protocol", "ABC")
        and (one not in own or issubclass(one, BaseException))
    ]  # fmt: skip
    members: dict[str, Any] = {}
    for one in own:
        attributes = {**dict.fromkeys(_attributes(one)), **inspect.get_annotations(one), **vars(one)}
        members |= {name: _member(one, name) for name in attributes if _is_public(name)}
    if issubclass(kind, enum.Enum):
        return {"is": "class", "bases": bases, "values": {one.name: one.value for one in kind}}
    inits = any("__init__" in vars(one) or "__new__" in vars(one) for one in own)
    return {"is": "class", "bases": bases, "members": members, **(signature(kind) if inits else {})}


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__call__", "__enter__", "__getitem__", "__iter__", "__len__")


def _member(kind: type, name: str) -> dict[str, Any]:
    value = vars(kind).get(name)
    if isinstance(value, classmethod | staticmethod):
        return {"is": type(value).__name__, **signature(getattr(kind, name))}
    if inspect.isfunction(value):
        return {"is": "method", **signature(value, bound=False)}
    if isinstance(value, property) and value.fget is not None:
        return {"is": "attribute", "type": type_text(inspect.signature(value.fget).return_annotation)}
    kinds = inspect.get_annotations(kind)
    return {"is": "attribute", **({"type": type_text(kinds[name])} if name in kinds else {})}


def _attributes(kind: type) -> Iterator[str]:
    """What its `__init__` sets."""
    if not inspect.isfunction(init := vars(kind).get("__init__")) or "__dataclass_fields__" in vars(kind):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(init)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


# What the code says of itself.


def the_root() -> Any:
    """The command of all commands, as `main` runs it."""
    found: list[typer.Typer] = []

    def keep(app: typer.Typer, *arguments: Any, **settings: Any) -> int:
        found.append(app)
        return 0

    with (
        mock.patch.object(typer.Typer, "__call__", keep),
        mock.patch.object(sys, "argv", ["gpuyard"]),
        contextlib.suppress(SystemExit),
    ):
        main()
    return typer.main.get_command(found[0])


def all_commands(command: Any, name: str = "gpuyard", parent: Any = None) -> Iterator[tuple[str, Any]]:
    """Every command in its context, and the line that stands for it where it is listed."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    yield words(command.get_short_help_str(limit=500)), context
    if hasattr(context.command, "list_commands"):
        for below in context.command.list_commands(context):
            yield from all_commands(context.command.get_command(context, below), below, context)


def commands() -> dict[str, Any]:
    """Every command: its texts, its arguments by place, and its options by name."""
    found = {}
    for line, context in all_commands(the_root()):
        real = context.command
        given = real.get_params(context)
        arguments = [one for one in given if one.param_type_name == "argument"]
        options = [one for one in given if one.param_type_name != "argument"]
        marks = {
            "hidden": real.hidden, "deprecated": real.deprecated, "interspersed": context.allow_interspersed_args,
            "alone": getattr(real, "invoke_without_command", True), "bare-is-help": real.no_args_is_help,
        }  # fmt: skip
        found[context.command_path] = {
            "help": words(real.help),
            "line": line,
            "is": "; ".join(_marks(marks)),
            "arguments": {str(place): _parameter(one) for place, one in enumerate(arguments, 1)},
            "options": {max(one.opts, key=len): _parameter(one) for one in options},
            "needs": [max(one.opts, key=len) for one in given if one.required],
        }
        if context.parent is None:
            found["headings"] = _headings(real.get_help(context))
    return found


def _headings(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            found[line[:-1]] = heading = list[str]()
        elif found and (entry := re.match(r"  (\S+(?: \S+)*)(?:  |$)", line)):
            heading.append(entry[1])
    return {name: entries for name, entries in found.items() if name != "Options"}


def _parameter(one: Any) -> dict[str, Any]:
    flag, theirs = bool(getattr(one, "is_flag", False)), one.name in ("help", "install_completion", "show_completion")
    options = one.param_type_name != "argument"
    kind = one.type_descriptor.annotation
    choices = isinstance(kind, type) and issubclass(kind, enum.Enum)
    default = (one.default or None) if flag and not one.secondary_opts else _default(one.default)
    told = {
        "metavar": one.metavar,
        "type": "|".join(str(choice.value) for choice in kind) if choices else type_text(kind),
        "default": default if default is None else json.dumps(default),
        "words": None if one.nargs == 1 else one.nargs,
        "least": getattr(one, "min", None),
        "most": getattr(one, "max", None),
    }
    marks = {
        "required": one.required, "multiple": one.multiple, "flag": flag, "hidden": getattr(one, "hidden", False),
        "default-untold": one.show_default is False and not flag,
    }  # fmt: skip
    return {
        "names": sorted([*one.opts, *(f"{name} (off)" for name in one.secondary_opts)] if options else []),
        "is": "; ".join([f"{name} {value}" for name, value in told.items() if value is not None] + _marks(marks)),
        "help": "" if theirs else words(one.help),  # typer's own words are not ours
    }


def _marks(marks: Mapping[str, Any]) -> list[str]:
    return [name for name, holds in marks.items() if holds]


def _default(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_default(one) for one in value]
    if callable(value):
        return "(made)"
    return value.value if isinstance(value, enum.Enum) else str(value) if isinstance(value, Path) else value


def settings(folder: Path) -> dict[str, Any]:
    """Every setting: its default, for people and for root, and what it is called in the environment and in the file."""
    mine, file = {"HOME": "/home/ann", "GPUYARD_CONFIG": "/none"}, folder / "config.toml"
    found = {
        "defaults": _told_settings(mine, 1000),
        "with a runtime directory": _told_settings({**mine, "XDG_RUNTIME_DIR": "/run/user/1000"}, 1000),
        "defaults of root": _told_settings(mine, 0),
    }
    samples = {name: _sample(one["value"]) for name, one in found["defaults"].items()}
    variables = {f"GPUYARD_{name.upper()}": value for name, value in samples.items()}
    found["environment"] = _told_settings({**mine, **variables}, 1000)
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in samples.items()))
    found["file"] = _told_settings({**mine, "GPUYARD_CONFIG": str(file)}, 1000)
    for one in found["file"].values():
        one["source"] = one["source"].replace(str(file), "FILE")
    paths = {
        user: _run(["config", "path"], {"HOME": "/home/ann"}, uid)[1] for user, uid in (("ann", 1000), ("root", 0))
    }
    return {**found, "path": paths}


def _sample(value: Any) -> str:
    return {bool: "false", str: value or "a", type(None): "5", list: "a"}.get(type(value), str(value))


def _told_settings(environment: Mapping[str, str], uid: int) -> dict[str, Any]:
    code, out = _run(["config", "show", "--json"], environment, uid)
    assert code == 0, out
    return {one.pop("name"): one for one in json.loads(out)}


def _run(arguments: Sequence[str], environment: Mapping[str, str], uid: int) -> tuple[Any, str]:
    """A command that needs no daemon, in this process, for some user."""
    written = io.BytesIO()
    out = io.TextIOWrapper(written, "utf-8", write_through=True)
    code: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(os, "geteuid", return_value=uid),
        mock.patch.object(sys, "argv", ["gpuyard", *arguments]),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, written.getvalue().decode().strip()


def events() -> dict[str, Any]:
    """Every event, what it is made of, and why jobs wait."""
    happens, waits = (importlib.import_module(INTERNAL[name]) for name in ("events", "reasons"))
    kinds = {kind.__name__: kind for kind in typing.get_args(happens.Event)}
    reasons = {kind.__name__: kind for kind in typing.get_args(waits.Reason)}
    parts: dict[str, type] = {}
    new = [*kinds.values(), *reasons.values()]
    while new:
        kind = new.pop()
        known = vars(sys.modules[kind.__module__])
        names = re.findall(r"\w+", " ".join(type_text(text) for text in kind.__annotations__.values()))
        for name in names:
            if hasattr(known.get(name), "__dataclass_fields__") and name not in parts:
                parts[name] = known[name]
                new.append(known[name])
    several = {"events": kinds, "reasons": reasons, "parts": parts}
    return {what: {name: signature(kind) for name, kind in some.items()} for what, some in several.items()}


def python() -> dict[str, Any]:
    """Names that people import, with their signatures; what they run as a module; environments to train in."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's packages deprecate what they like
        for module, told in {"gpuyard": "*", **DOCUMENTED}.items():
            found[module] = {}
            for name in _names(module, told):
                with contextlib.suppress(AttributeError, ImportError):  # then it is gone, which will be told
                    found[module][name] = described(_named(module, name))
        known = _environments()
    runnable = {name: importlib.util.find_spec(name) is not None for name in RUNNABLE}
    return {"names": found, "runnable": runnable, "environments": known}


def _names(module: str, told: str) -> set[str]:
    before = recorded("python").get("names", {}).get(module, ())
    with contextlib.suppress(ImportError):
        found = importlib.import_module(module)
        every = getattr(found, "__all__", None) or [name for name in dir(found) if not name.startswith("_")]
        return {*before, *(every if "*" in told else ()), *told.replace("*", "").split()}
    return set()


def _named(module: str, name: str) -> Any:
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def _environments() -> dict[str, Any]:
    import gymnasium

    importlib.import_module(ENVIRONMENTS)
    own = {name: spec for name, spec in gymnasium.registry.items() if name.startswith("gpuyard/")}
    return {name: signature(gymnasium.envs.registration.load_env_creator(str(own[name].entry_point))) for name in own}


def statements() -> dict[str, Any]:
    """All SQL that comes in files, by content: it may move."""
    return {"files": sorted(_sql(file.read_text()) for file in SOURCES.rglob("*.sql"))}


def _sql(text: str) -> str:
    return words(re.sub(r"--[^\n]*", "", text))


def literals() -> dict[str, Any]:
    """Names that sources hold as they are: variables that people set, labels of Kubernetes."""
    text = "\n".join(file.read_text() for file in sorted(SOURCES.rglob("*.py")))
    return {
        "variables": {name: f"GPUYARD_{name}" in text for name in VARIABLES.split()},
        "kubernetes": sorted(set(re.findall(r"gpuyard\.dev/[a-z-]+", text))),
    }


# What a daemon tells.

LISTINGS = """
    ps | ps --all | gpus | status | history | show 1 | show 3 | show 4 | explain 5 | wait 1 | policy | policies | quota
    share | estimates | interference | config show | doctor | report 1 | backup b.db | batch start b.yaml
    batch list | batch report
    reserve 0 --name night --begin 2040-01-02T03:04:05+00:00 --duration 1h | reservations | drain gpu 3 | resume gpu 3
    notify add json://127.0.0.1:9/x --name post --on all,tasks | notify list | notify log
    token create --label t | token list | audit | simulate t.csv --gpus 1
    simulate t.csv --gpus 1 --policy rr | compare t.csv --gpus 1 --policies fcfs,sjf | trace info t.csv
    sweep t.csv --vary gpus=1,2 --policies fcfs --jobs 1
"""
"""Commands whose JSON is looked at, in this order; 1 to 5 are the jobs of `_scene`."""
COUNTS = {
    "status": ("gpus", "jobs"), "trace info t.csv": ("gpu_sizes", "top_users"), "report 1": ("series",),
}  # fmt: skip
"""Keys below which there are data and no keys."""
WHOLE = {
    "name": "full", "gpus": 2, "from": "0,1,3", "priority": 3.5, "time": "2h", "estimate": "1h",
    "begin": "2040-01-02T03:04:05+00:00", "deadline": "2041-01-02T03:04:05+00:00", "dependency": "afterany:4",
    "tag": ["a", "b"], "retries": 2, "retry-delay": "45s", "grace": "7s", "preemptible": True, "adaptive": True,
    "signal": "USR1@60s", "requeue": True, "output": "out-%j.txt", "error": "err-%j.txt", "open-mode": "append",
    "notify": ["none"], "notify-on": "finish,tasks", "hold": True, "env": ["A=1", "B=2"], "slurm-variables": True,
}  # fmt: skip
SHARE = {
    "gpu-memory": "6G", "oom-retries": 5, "cap": True, "profile": "2m",
    "simulate-use": "ramp:391M,713M", "array": "0-3%2", "job-name": "part", "time-limit": "90m", "hold": True,
}  # fmt: skip
"""What jobs ask for, as options, in files and in scripts alike."""
SPELLED = {
    "directory": "/tmp", "tags": ["a"], "after": ["4"], "from": [0, 1], "env": {"A": "1"}, "array": [1, 3],
    "notify-on": ["start", "failure"], "export": ["NONE"], "requeue": "yes", "hold": "on", "time-limit": "1-00:00:00",
}  # fmt: skip
"""What files alone may say, or say otherwise."""
WISHES: dict[str, Any] = {
    "name": "full", "tags": ["a"], "gpus": 2, "among": [0, 1, 3], "priority": 3.5, "estimate": "1h",
    "time_limit": 7200, "grace": "7s", "requeue": True, "hold": True, "begin": 2209086245.0, "deadline": 2240708645.0,
    "dependency": "afterok:4", "retries": 2, "retry_delay": 45, "output": "out-%j.txt", "error": "err", "slurm": True,
    "open_mode": "truncate", "preemptible": True, "adaptive": True, "signal": "USR1", "notice": "1m",
    "notify": ["none"], "notify_on": ["finish"],
}  # fmt: skip
SBATCH = """
    --job-name=full | --gres=gpu:2 | --time=1-02:00:00 | --begin=2040-01-02T03:04:05 | --array=0-3%2 | --error=e
    --output=out-%A_%a | --open-mode=append | --requeue | --hold | --nice=5 | --dependency=afterany:4
    --signal=B:USR1@60 | --ntasks=1 | --mem=4G | --partition=x | --comment=hello | --chdir=/tmp
    --export=ALL,A=1 | --mail-type=END
"""
CODES = {
    "nothing": "", "--version": "--version", "--help": "--help", "no such command": "nonsense",
    "no such option": "ps --nonsense", "no such job": "show 999", "no job's id": "show x y",
    "no such file": "simulate none.csv",
    "no daemon": "--data-dir /nonexistent ps", "a job that failed": "wait 2", "a job that succeeded": "wait 1",
    "jobs of which one failed": "wait 1 2", "waiting in vain": "wait 4 --timeout 0.01", "a cancelled job": "wait 6",
    "cancelling what is over": "cancel 1", "more GPUs than there are": "submit --gpus 99 -- true",
    "releasing what runs": "release 4", "its own code": "run -- sh -c 'exit 5'",
    "no such policy": "policy set nonsense",
}  # fmt: skip
FAMILIAR = """
    queue list ls jobs squeue kill scancel rm info scontrol sbatch add srun salloc sinfo sacct log tail start stop mail
    alert
"""
OTHERS = ("id", "user", "submitted_at", "started_at", "ended_at", "measured", "energy_wh", "gpu_hours")
"""What differs from one job to the next, or from one machine to the next."""
JOB_VARIABLES = r"(?m)^((?:GPUYARD|CUDA|SLURM|TF|XLA|PYTORCH)_\w+)$"
ENVIRONMENT = "env | sed 's/=.*//'"


def split(text: str) -> list[str]:
    return [line.strip() for part in text.strip().splitlines() for line in part.split("|")]


def _scene(yard: Yard) -> dict[str, Any]:
    """Six jobs: one succeeded, one failed, one adapts, one runs, one waits, one is cancelled; and some more.

    Returns which variables jobs are given.
    """
    shell = ("--", "sh", "-c")
    yard.submit("--gpu-memory", "1G", "--cap", *shell, ENVIRONMENT)
    yard.submit(*shell, "exit 3")
    yard.wait("1")  # so that something is known of its like
    yard.submit("--adaptive", "--time", "1h", *shell, ENVIRONMENT)
    yard.submit("--name", "sleeper", "--from", "2", "--", "sleep", "600")
    yard.submit("--dependency", "afterok:4", "--", "true")
    yard.submit("--hold", "--", "true")
    yard("cancel", "6")
    several = {"share": "1", "adaptive": "3"}
    several["plain"] = yard.submit(*shell, ENVIRONMENT)
    several["slurm"] = yard.submit("--slurm-variables", *shell, ENVIRONMENT)
    several["task"] = f"{yard.submit('--array', '0-1', *shell, ENVIRONMENT)}_1"
    for id in ("2", *several.values()):
        yard.wait(id)
    until(lambda: yard.client.job("4")["measured"], "a measurement")
    found = {}
    for what, id in several.items():
        names = re.findall(JOB_VARIABLES, yard.client.log(id).data.decode(errors="replace"))
        found[what] = sorted(set(names) - yard.environment.keys())
    return found


def _listed(yard: Yard) -> dict[str, Any]:
    """The keys that commands print."""
    found = {}
    for line in split(LISTINGS):
        done = yard(*line.split(), "--json")
        assert done.code in (0, 1), (line, done)
        found[line] = _shape(json.loads(done.out), COUNTS.get(line, ()))
    return found


def _shape(value: Any, opaque: Sequence[str] = ()) -> Any:
    """The keys in a value; a list is like all that is in it."""
    if isinstance(value, dict):
        return {name: "" if name in opaque else _shape(one) for name, one in value.items()}
    if isinstance(value, list):
        merged = functools.reduce(_merged, (_shape(one, opaque) for one in value), "")
        return [merged] if merged else []
    return ""


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name, ""), other.get(name, "")) for name in (*one, *other)}
    if isinstance(one, list) and isinstance(other, list) and one and other:
        return [_merged(one[0], other[0])]
    return other if one in ("", []) and other != "" else one


def _scraped(yard: Yard) -> dict[str, Any]:
    """Metrics, their labels, and states and outcomes among those."""
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(get(yard, "/metrics")[2].decode()):
        if family.name.startswith("gpuyard_"):
            labels = {name for sample in family.samples for name in sample.labels}
            known = {
                name: {sample.labels[name] for sample in family.samples if name in sample.labels} for name in labels
            }
            values = {name: sorted(known[name]) for name in ("state", "outcome", "le") if name in known}
            told = {"type": family.type, "help": family.documentation, "labels": sorted(labels), "values": values}
            found[family.name] = told
    return found


def contract(document: dict[str, Any]) -> Any:
    """The API's document without what other packages have put in of themselves."""
    schemas = document["components"]["schemas"]
    taken = set(_references([one.get("requestBody") for path in document["paths"].values() for one in path.values()]))
    while more := {name for one in taken for name in _references(schemas[one])} - taken:
        taken |= more
    for name in taken:
        schemas[name] = _in_need(schemas[name])
    for path in document["paths"].values():
        for operation in path.values():
            some = operation.get("parameters", ())
            operation["needs"] = [one["name"] for one in some if one.get("required")]
    del document["openapi"], document["info"]["version"]
    return _untitled(document)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        node = list(node.values())
    for one in node if isinstance(node, list) else ():
        yield from _references(one)


def _in_need(node: Any) -> Any:
    """A schema of what is sent: one more that is required is a break there, and one less is none."""
    if isinstance(node, list):
        return [_in_need(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {name: _in_need(one) for name, one in node.items()}
    if "properties" in found:
        found["needs"] = found.pop("required", [])
    return found


def _untitled(node: Any) -> Any:
    """Without pydantic's titles; and what a request has to prove is to be equal, not to be among others."""
    if isinstance(node, list):
        return [_untitled(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {name: _untitled(one) for name, one in node.items() if name != "title" or not isinstance(one, str)}
    return found | ({"security": json.dumps(node["security"])} if isinstance(node.get("security"), list) else {})


def _schemas(folder: Path) -> dict[str, Any]:
    """All databases in a folder: their tables and such, their versions; and the rows of the log, by kind."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*.db")):
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            rows = database.execute("select type, name, sql from sqlite_master where sql is not null").fetchall()
            pragmas = {
                name: database.execute(f"pragma {name}").fetchone()[0] for name in ("user_version", "journal_mode")
            }
            found[file.name] = {**{f"{kind} {name}": _sql(text) for kind, name, text in rows}, **pragmas}
            if file.name == "gpuyard.db":
                log = database.execute("select kind, data from events where data <> ''").fetchall()
    kinds: dict[str, list[Any]] = {}
    for kind, data in log:
        kinds.setdefault(kind, []).append(json.loads(data))
    return {"databases": found, "log": {kind: _shape(rows) for kind, rows in kinds.items()}}


def _described_jobs(yard: Yard) -> dict[str, Any]:
    """The same job by every way in which it can be described: what is told of it that is not told of a plain one."""
    bare = _job(yard, yard.json("show", yard.submit("--hold", "--", "true")))
    found: dict[str, Any] = {"plain": bare}

    def keep(what: str, done: Done) -> None:
        assert done.code == 0, (what, done)
        job = _job(yard, yard.json("show", done.out.strip()))
        found[what] = {name: value for name, value in job.items() if value != bare.get(name)}
        found[what]["said"] = done.err.splitlines()

    here = yard.cwd
    for what, asked in (("whole", WHOLE), ("share", SHARE)):
        flags = _flags(asked)
        (here / "j.yaml").write_text(json.dumps([{"command": ["true"], **asked}]))
        (here / "j.toml").write_text(
            '[[jobs]]\ncommand = ["true"]\n' + "".join(f"{name} = {json.dumps(one)}\n" for name, one in asked.items())
        )
        (here / "j.sh").write_text("#!/bin/sh\n" + "".join(f"#GPUYARD {flag}\n" for flag in flags) + "true\n")
        keep(f"{what} by options", yard("submit", *flags, "--", "true"))
        keep(f"{what} by YAML", yard("submit", "--file", "j.yaml"))
        keep(f"{what} by TOML", yard("submit", "--file", "j.toml"))
        keep(f"{what} by lines of a script", yard("submit", "j.sh"))
    (here / "j.yaml").write_text(
        json.dumps({"defaults": SPELLED, "jobs": [{"script": "j.sh", "args": ["x"], "name": "y"}]})
    )
    (here / "j.sh").write_text("#!/bin/sh\ntrue\n")
    keep("files alone", yard("submit", "--file", "j.yaml"))
    keep("by Python", Done(0, yard.client.submit(["true"], directory=here, environment={}, **WISHES), ""))
    (here / "s.sh").write_text("#!/bin/sh\n" + "".join(f"#SBATCH {line}\n" for line in split(SBATCH)) + "true\n")
    keep("by lines for Slurm", finish(yard.popen("submit", "s.sh")))
    return found | _edited(yard)


def _edited(yard: Yard) -> dict[str, Any]:
    """What can be changed of a waiting job by options, and what the editor shows of it then."""
    id = yard.submit("--hold", "--", "true")
    changes = {name: value for name, value in WHOLE.items() if name not in ("hold", "env", "slurm-variables")}
    done = yard("edit", id, *_flags(changes))
    assert done.code == 0, done
    editor = yard.cwd / "editor"
    editor.write_text('#!/bin/sh\ncat "$1" > seen\n')
    editor.chmod(0o755)
    assert finish(yard.popen("edit", id, more={"EDITOR": str(editor), "VISUAL": str(editor)})).code == 0
    text = _anywhere(yard, (yard.cwd / "seen").read_text())
    shown = [line.partition(": ") for line in text.splitlines() if not line.startswith("#")]
    return {"changed": done.err.partition(": ")[2].strip(), "editor": {name: value for name, _, value in shown}}


def _job(yard: Yard, job: dict[str, Any]) -> dict[str, Any]:
    """A job, without what it went through."""
    kept = {name: value for name, value in job.items() if name not in ("events", "notifications", *OTHERS)}
    found: dict[str, Any] = json.loads(_anywhere(yard, json.dumps(kept)))
    return found


def _anywhere(yard: Yard, text: str) -> str:
    """A text without places and numbers that another yard would not have."""
    return re.sub(
        r'(?<=release )\d+|(?<="array": ")\d+|(?<=(?:out|err)-)\d+', "ID", text.replace(str(yard.cwd), "HERE")
    )


def _flags(asked: Mapping[str, Any]) -> list[str]:
    several = [(name, one) for name, value in asked.items() for one in (value if isinstance(value, list) else [value])]
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in several]


def _codes(yard: Yard) -> dict[str, Any]:
    """How commands end, and what those are told who know them by other names."""
    codes = {what: yard(*shlex.split(line)).code for what, line in CODES.items()}
    return {"exit codes": codes, "familiar": {word: yard(word).err.strip() for word in FAMILIAR.split()}}


def _files(folder: Path) -> list[str]:
    """What there is on disk, by job and attempt."""
    found = {re.sub(r"\d+", "N", str(file.relative_to(folder))) for file in folder.rglob("*") if not file.is_dir()}
    return sorted(name for name in found if not name.endswith(("-wal", "-shm", ".json", ".log.N")))


def told_by_a_daemon(folder: Path) -> dict[str, Any]:
    """All that a daemon tells, in one life of it."""
    with opened(folder) as yard:
        for name in re.findall(
            JOB_VARIABLES, "\n".join(name for name in yard.environment if not name.startswith("GPUYARD_"))
        ):
            del yard.environment[name]
        yard.environment |= {"GPUYARD_SINGLE_USER": "yes", "TZ": "UTC", "COLUMNS": "100", "HOME": str(folder)}
        yard.serve()
        (yard.cwd / "t.csv").write_text(TRACE)
        (yard.cwd / "b.yaml").write_text("[{command: [sh, -c, exit 0], name: row}]")
        variables = _scene(yard)
        listings = _listed(yard)
        events = yard.json("notify", "list")[0]["events"]
        assert yard("notify", "remove", "post").code == 0
        return {
            "openapi": contract(json.loads(get(yard, "/openapi.json")[2])),
            "listings": listings,
            "jobs": _described_jobs(yard),
            "words": {
                **_codes(yard), "metrics": _scraped(yard), "variables of jobs": variables, "notify on": events,
                "policies": yard.json("policies"), **literals(),
            },
            "stores": {**_schemas(yard.data_dir), **statements(), "on disk": _files(yard.data_dir)},
        }  # fmt: skip


# The tests.

STILL: dict[str, Callable[[Path], Any]] = {
    "commands": lambda _: commands(),
    "types": lambda _: typed_dicts(),
    "settings": settings,
    "events": lambda _: events(),
    "python": lambda _: python(),
}


def judge(now: Mapping[str, Any]) -> None:
    """Fail if something recorded is gone or changed; record instead, if that is asked for."""
    if os.environ.get("GPUYARD_RECORD_SURFACE"):
        record(now)
    lines = [line for part in now for line in broken(recorded(part), plain(now[part]), part)]
    if lines or not all(recorded(part) for part in now):
        pytest.fail(f"{len(lines)} breaks of the public surface:\n" + "\n".join(lines), pytrace=False)


def record(now: Mapping[str, Any]) -> None:
    RECORDED.mkdir(exist_ok=True)
    for part, value in now.items():
        (RECORDED / f"{part}.json").write_text(written(plain(value)) + "\n")


@pytest.mark.parametrize("part", STILL)
def test_what_the_code_says_stays(part: str, tmp_path: Path) -> None:
    judge({part: STILL[part](tmp_path)})


def test_what_a_daemon_tells_stays(tmp_path: Path) -> None:
    judge(told_by_a_daemon(tmp_path))


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        sys.exit("--record writes down the public surface as it is; pytest compares")
    with tempfile.TemporaryDirectory() as temporary:
        record({part: look(Path(temporary)) for part, look in STILL.items()})
        record(told_by_a_daemon(Path(temporary)))
