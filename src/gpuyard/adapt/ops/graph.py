"""Graph of a network as torch.fx traces it, and the activations of its nodes. Graphs are read, never run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops.containers import Grown, Residual, canonical, is_added, named_layers
from gpuyard.adapt.ops.forward_pass import Call, Inputs, few, undisturbed, watched
from gpuyard.adapt.ops.growths import Refused
from gpuyard.errors import UserError

READS = frozenset(("size", "dim", "numel", "ndimension"))


class _Tracer(fx.Tracer):
    """Traces into the user's modules, but not into untraceable ones, nor into copies of blocks."""

    proxy_buffer_attributes = True  # masks that are cut to the length of the input

    def __init__(self, closed: set[int]) -> None:
        super().__init__()
        self._closed = closed
        self.trace_asserts = True
        self._inside: list[nn.Module] = []
        self.broken: nn.Module | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) in self._closed or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._inside.append(m)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            # The innermost is reported first; the others only pass it on.
            self.broken = self.broken or self._inside[-1]
            raise
        finally:
            self._inside.pop()


@dataclass(slots=True)
class Piece:
    """A part of the network with a known graph; ideally all of it."""

    prefix: str
    root: nn.Module
    graph: fx.Graph

    def module(self, node: Any) -> nn.Module | None:
        if not isinstance(node, fx.Node) or node.op != "call_module":
            return None
        return self.root.get_submodule(str(node.target))

    def path(self, node: fx.Node) -> str:
        return f"{self.prefix}.{node.target}" if self.prefix else str(node.target)


@dataclass(slots=True)
class Survey:
    model: nn.Module
    calls: dict[int, Call]
    pieces: list[Piece]
    through: bool  # whether layers that were added are part of the graphs, or closed
    layers: dict[str, nn.Module]  # all modules of the user, by name
    untraced: list[str]  # modules whose graph is not known, by the user's names; the empty name is the network

    def name(self, piece: Piece, node: fx.Node) -> str:
        return canonical(self.model, piece.path(node))

    def added(self, piece: Piece, node: fx.Node) -> bool:
        return node.op == "call_module" and is_added(self.model, piece.path(node))


def survey(model: nn.Module, example: Inputs, *, through: bool = False) -> Survey:
    """Run the network once on the example, and read its graph."""
    small = few(example)
    try:
        calls = watched(model, small)
    except Refused:
        if small is example:
            raise
        calls = watched(model, example)  # some networks want batches of one size only
    found = Survey(model, calls, [], through, dict(named_layers(model)), [])
    with undisturbed(model):
        model.eval()
        _read(found, "", model)
    return found


def _read(found: Survey, prefix: str, root: nn.Module) -> None:
    """Add the graph of a module; of an untraceable one, the graphs of its parts."""
    closed = {
        id(copy) for module in root.modules() if isinstance(module, Grown) for copy in _shut(module, found.through)
    }
    graph, broken = traced(root, found.calls.get(id(root)), closed)
    if graph is not None:
        found.pieces.append(Piece(prefix, root, graph))
    else:
        found.untraced.append(canonical(found.model, prefix))
        broken = [child for child in root.children() if list(child.children()) and id(child) not in closed]
    paths = {id(module): path for path, module in root.named_modules()}
    for module in broken:
        inner = f"{prefix}.{paths[id(module)]}" if prefix else paths[id(module)]
        if graph is not None:
            found.untraced.append(canonical(found.model, inner))
            for name, child in module.named_children():
                if list(child.children()):
                    _read(found, f"{inner}.{name}", child)
        else:
            _read(found, inner, module)


def traced(root: nn.Module, call: Call | None, closed: set[int]) -> tuple[fx.Graph | None, list[nn.Module]]:
    """The graph of a module (None if untraceable), and its parts that cannot be traced."""
    closed = set(closed)
    broken: list[nn.Module] = []
    for _ in range(1 + sum(1 for _ in root.modules())):
        tracer = _Tracer(closed)
        try:
            return tracer.trace(root, _fixed(root, call)), broken
        except Exception:  # whatever a user's forward raises when it meets a proxy
            if tracer.broken is None or tracer.broken is root:
                break
            closed.add(id(tracer.broken))
            broken.append(tracer.broken)
    return None, []


def _fixed(root: nn.Module, call: Call | None) -> dict[str, Any] | None:
    """Arguments that are no tensors in the call, or that were not given, with their values."""
    try:
        wanted = inspect.signature(root.forward).parameters
    except (TypeError, ValueError):
        return None
    bound: dict[str, Any] = {}
    if call is not None:
        names = [name for name, p in wanted.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        bound = {**dict(zip(names, call.args, strict=False)), **call.named}
    fixed = {}
    for name, parameter in wanted.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = bound.get(name, parameter.default)
        if value is None or isinstance(value, bool | int | float | str):
            fixed[name] = value
    return fixed or None


def _shut(grown: Grown, through: bool) -> Iterator[nn.Module]:
    """Added modules that are not inspected: all, or only whole blocks."""
    return (added for added in grown.grown if not through or not isinstance(added, nn.Sequential | Residual))


def uses(node: fx.Node) -> list[fx.Node]:
    """Users of a node's values; those that only read its shape do not count."""
    return [user for user in node.users if not _reads(user)]


def _reads(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target) in READS
    return (
        node.op == "call_function" and node.target is getattr and node.args[1] in ("shape", "dtype", "device", "ndim")
    )


def is_call(node: Any, functions: frozenset[Any], methods: frozenset[str]) -> bool:
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_function":
        return node.target in functions
    return node.op == "call_method" and node.target in methods


def shape_of(call: Call | None) -> torch.Size | None:
    return call.output if call is not None and isinstance(call.output, torch.Size) else None


Activation = list[Any]  # name of the class in torch.nn, and its settings: plain JSON values

SETTINGS: dict[str, tuple[str, ...]] = {
    "ReLU": (),
    "ReLU6": (),
    "Hardtanh": ("min_val", "max_val"),
    "LeakyReLU": ("negative_slope",),
    "ELU": ("alpha",),
    "CELU": ("alpha",),
    "SELU": (),
    "GELU": ("approximate",),
    "SiLU": (),
    "Mish": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": ("beta", "threshold"),
    "Softsign": (),
    "Hardswish": (),
    "Hardsigmoid": (),
    "LogSigmoid": (),
}
IDEMPOTENT = frozenset(("ReLU", "ReLU6", "Hardtanh"))  # idempotent, and monotonic: they may also go before a maximum
FUNCTIONS: dict[Any, str] = {
    F.relu: "ReLU",
    F.relu_: "ReLU",
    torch.relu: "ReLU",
    torch.relu_: "ReLU",
    F.relu6: "ReLU6",
    F.hardtanh: "Hardtanh",
    F.leaky_relu: "LeakyReLU",
    F.elu: "ELU",
    F.celu: "CELU",
    F.selu: "SELU",
    F.gelu: "GELU",
    F.silu: "SiLU",
    F.mish: "Mish",
    F.tanh: "Tanh",
    torch.tanh: "Tanh",
    F.sigmoid: "Sigmoid",
    torch.sigmoid: "Sigmoid",
    F.softplus: "Softplus",
    F.softsign: "Softsign",
    F.hardswish: "Hardswish",
    F.hardsigmoid: "Hardsigmoid",
    F.logsigmoid: "LogSigmoid",
}
METHODS = {"relu": "ReLU", "relu_": "ReLU", "tanh": "Tanh", "tanh_": "Tanh", "sigmoid": "Sigmoid"}


def activation(piece: Piece, node: Any) -> Activation | None:
    """The activation that a node applies; None if it is none that we know."""
    module = piece.module(node)
    if module is not None:
        return of_module(module)
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method" and node.target in METHODS:
        return [METHODS[str(node.target)], {}]
    if node.op != "call_function" or node.target not in FUNCTIONS:
        return None
    name = FUNCTIONS[node.target]
    given = {**dict(zip(SETTINGS[name], node.args[1:], strict=False)), **node.kwargs}
    settings = {key: given[key] for key in SETTINGS[name] if key in given}
    return None if any(isinstance(value, fx.Node) for value in settings.values()) else [name, settings]


def of_module(module: nn.Module) -> Activation | None:
    """The same for a module; a class that a user derived may do anything."""
    name = type(module).__name__
    if name not in SETTINGS or type(module) is not getattr(nn, name):
        return None
    return [name, {key: getattr(module, key) for key in SETTINGS[name]}]


def idempotent(chosen: Activation | None) -> bool:
    if chosen is None or chosen[0] not in IDEMPOTENT:
        return False
    return chosen[0] != "Hardtanh" or float(chosen[1].get("min_val", -1.0)) < float(chosen[1].get("max_val", 1.0))


def made(chosen: Activation) -> nn.Module:
    """A module that applies it, never in place: its input may be needed again."""
    name, settings = chosen
    if name not in SETTINGS or not set(settings) <= set(SETTINGS[name]):
        raise UserError(f"the growth log names an activation '{name}' {settings} that is not known")
    module: nn.Module = getattr(nn, name)(**settings)
    return module
