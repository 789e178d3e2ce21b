"""Machines from files or from text such as `4x8`: lists of nodes with their GPUs, and tables of virtual clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuyard.core.model import GIB, MOST_GPUS, Cluster
from gpuyard.errors import UserError
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.columns import Rule, name_of
from gpuyard.sim.traces.source import Source, open_source, quoted
from gpuyard.units import parse_size

MIB = float(2**20)
NODE_GPUS = 8  # GPUs of a pool's node where the file does not say

_COUNT = Rule(low=0.0, high=float(MOST_GPUS))
_AMOUNT = Rule(neutral=0.0, low=0.0)
_SIZE = Rule(parse_size, neutral=0.0, low=0.0)


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of a cluster that have GPUs, in file order; 0 and empty text: not said."""

    names: list[str]
    gpus: tuple[int, ...]
    cpus: tuple[float, ...]
    host_memory: tuple[float, ...]  # bytes
    models: tuple[str, ...]
    gpu_memory: tuple[float, ...]  # bytes of each GPU of the node
    without_gpus: int = 0  # nodes left out because they have no GPU

    def __len__(self) -> int:
        return len(self.names)


class Pool(NamedTuple):
    name: str
    nodes: int
    gpus: int  # GPUs of each node


class _Node(NamedTuple):
    name: str
    gpus: int
    cpus: float = 0.0
    host_memory: float = 0.0
    model: str = ""
    gpu_memory: float = 0.0


def read_nodes(path: str | Path) -> NodeList:
    """Read a list of nodes: gpuyard's own CSV, openb's, Philly's machine list, or Tiresias' cluster spec."""
    with open_source(path) as source:
        rows = _rows(source)
        header_line, names = next(rows)
        layout = next((layout for layout in _LAYOUTS if all(name in names for name in layout.required)), None)
        if layout is None:
            raise source.error(
                header_line,
                "this is not a list of nodes; its columns are node,gpus[,model,cpus,memory,gpu_memory], or those of "
                "openb (sn,gpu), of Philly (machineId,number of GPUs) or of Tiresias (num_gpu_p_node)",
            )
        found: list[_Node] = []
        seen: dict[str, int] = {}
        for line, record in rows:
            for node in _in_line(source, line, layout, record):
                if seen.setdefault(node.name, line) != line:
                    raise source.error(line, f"node {quoted(node.name)} is already on line {seen[node.name]}")
                found.append(node)
    return _listed(source, found)


def read_pools(path: str | Path) -> list[Pool]:
    """Read a table of pools: `vc,node num`, of 8 GPUs each or as a column `gpus` says; or `vc,nodes` with 4x8."""
    pools: dict[str, tuple[int, Pool]] = {}
    with open_source(path) as source:
        rows = _rows(source)
        header_line, names = next(rows)
        name, count = _one_of(names, _POOL_NAMES), _one_of(names, _POOL_COUNTS)
        if name is None or count is None:
            raise source.error(header_line, "a table of pools has the columns vc,node num[,gpus] or vc,nodes (as 4x8)")
        for line, record in rows:
            try:
                pool = _pool(record, name, count, _one_of(names, _POOL_GPUS))
            except UserError as error:
                raise source.error(line, str(error)) from None
            if pool.name in pools:
                raise source.error(line, f"pool {quoted(pool.name)} is already on line {pools[pool.name][0]}")
            pools[pool.name] = line, pool
    if not pools:
        raise UserError(f"{source.name} holds no pools")
    return [pool for _, pool in pools.values()]


def _rows(source: Source) -> Iterator[tuple[int, dict[str, str]]]:
    found = cells.rows(source)
    line, first = next(found, (0, []))
    if not first:
        raise UserError(f"{source.name} is empty")
    lowered = [name.lower() for name in first]
    cells.refuse_twice(source, line, lowered)
    yield line, {name: name for name in lowered}
    for line, row in found:
        yield line, dict(zip(lowered, row, strict=True))


def _count(record: Mapping[str, str], name: str) -> int:
    value = _COUNT.take(record.get(name), name)
    if not value.is_integer():
        raise UserError(f"{name} must be a whole number, not {value:g}")
    return int(value)


def _named(record: Mapping[str, str], name: str) -> str:
    text = name_of(record[name], name)
    if not text:
        raise UserError(f"{name} is missing")
    return text


def _gpuyard(record: Mapping[str, str]) -> Iterator[_Node]:
    yield _Node(
        _named(record, "node"),
        _count(record, "gpus"),
        _AMOUNT.take(record.get("cpus"), "cpus"),
        _SIZE.take(record.get("memory"), "memory"),
        name_of(record.get("model"), "model"),
        _SIZE.take(record.get("gpu_memory"), "gpu_memory"),
    )


def _openb(record: Mapping[str, str]) -> Iterator[_Node]:
    yield _Node(
        _named(record, "sn"),
        _count(record, "gpu"),
        _AMOUNT.take(record.get("cpu_milli"), "cpu_milli") / 1000.0,
        _AMOUNT.take(record.get("memory_mib"), "memory_mib") * MIB,
        name_of(record.get("model"), "model"),
    )


def _philly(record: Mapping[str, str]) -> Iterator[_Node]:
    memory = _SIZE.take(record.get("single gpu mem"), "single gpu mem")
    yield _Node(_named(record, "machineid"), _count(record, "number of gpus"), gpu_memory=memory)


def _tiresias(record: Mapping[str, str]) -> Iterator[_Node]:
    """One line describes all nodes: a number of nodes behind each of a number of switches."""
    switches, nodes = _count(record, "num_switch"), _count(record, "num_node_p_switch")
    gpus, cpus = _count(record, "num_gpu_p_node"), _AMOUNT.take(record.get("num_cpu_p_node"), "num_cpu_p_node")
    memory = _AMOUNT.take(record.get("mem_p_node"), "mem_p_node") * GIB
    if switches * nodes * max(gpus, 1) > MOST_GPUS:
        raise UserError(f"a cluster has at most {MOST_GPUS:,} GPUs")
    for switch in range(switches):
        for node in range(nodes):
            yield _Node(f"s{switch}n{node}", gpus, cpus, memory)


class _Layout(NamedTuple):
    required: tuple[str, ...]
    nodes: Callable[[Mapping[str, str]], Iterator[_Node]]


_LAYOUTS = (
    _Layout(("node", "gpus"), _gpuyard),
    _Layout(("sn", "gpu"), _openb),
    _Layout(("machineid", "number of gpus"), _philly),
    _Layout(("num_switch", "num_node_p_switch", "num_gpu_p_node"), _tiresias),
)
_POOL_NAMES = ("vc", "pool", "cluster", "partition")
_POOL_COUNTS = ("node num", "node_num", "nodes")
_POOL_GPUS = ("gpus", "gpus per node", "gpus_per_node")


def _in_line(source: Source, line: int, layout: _Layout, record: Mapping[str, str]) -> list[_Node]:
    try:
        return list(layout.nodes(record))
    except UserError as error:
        raise source.error(line, str(error)) from None


def _listed(source: Source, found: list[_Node]) -> NodeList:
    nodes = [node for node in found if node.gpus]
    if not nodes:
        raise UserError(f"{source.name} holds no node with a GPU")
    return NodeList(
        names=[node.name for node in nodes],
        gpus=tuple(node.gpus for node in nodes),
        cpus=tuple(node.cpus for node in nodes),
        host_memory=tuple(node.host_memory for node in nodes),
        models=tuple(node.model for node in nodes),
        gpu_memory=tuple(node.gpu_memory for node in nodes),
        without_gpus=len(found) - len(nodes),
    )


def _one_of(names: Mapping[str, str], wanted: tuple[str, ...]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _pool(record: Mapping[str, str], name: str, count: str, gpus: str | None) -> Pool:
    text = record[count].lower()
    if "x" in text:
        left, _, right = text.partition("x")
        if not (left.strip().isdecimal() and right.strip().isdecimal()):
            raise UserError(f"{count} takes a number of nodes, or 4x8 for 4 nodes of 8 GPUs, not {quoted(text)}")
        nodes, size = int(left), int(right)
    else:
        nodes, size = _count(record, count), _count(record, gpus) if gpus and record[gpus] else NODE_GPUS
    if nodes < 1 or size < 1 or nodes * size > MOST_GPUS:
        raise UserError(f"a pool has 1 to {MOST_GPUS:,} GPUs, not {nodes} x {size}")
    return Pool(_named(record, name), nodes, size)


def read_cluster(text: str, memory: float) -> Cluster:
    """`4x8` or the path of a node list; `memory`: bytes of each GPU. A bare number could be nodes or GPUs."""
    if not Path(text).is_file():
        if number := next((part for part in text.replace(",", " ").split() if part.isdecimal()), None):
            raise UserError(
                f"'{text}' does not say how many GPUs a node has; write {number}x8 for {number} nodes of 8 GPUs, "
                f"or 1x{number} for one node of {number}"
            )
        try:
            return Cluster.parse(text, memory)
        except UserError as error:
            raise UserError(f"{error}; and there is no file of that name that could list nodes") from None
    nodes = read_nodes(text)
    return Cluster(
        nodes.gpus,
        memory,
        nodes.cpus if any(nodes.cpus) else (),
        nodes.host_memory if any(nodes.host_memory) else (),
        nodes.models if any(nodes.models) else (),
    )
