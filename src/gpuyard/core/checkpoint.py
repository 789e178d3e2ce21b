"""A state as plain values, and back: what a driver keeps so that a restart need not fold the whole log.

Jobs that are over are left out, since nothing can happen to them any more; the others keep their order, so ties are
decided as before. Rows are stored; what can be computed from them is not.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np

from gpuyard.core.limits.quotas import Ledger
from gpuyard.core.limits.withdrawal import keep_for, take, take_host, withdraw
from gpuyard.core.loops.placement import claim
from gpuyard.core.loops.pool import EMPTY, Flags, Floats, Ints
from gpuyard.core.model import Booking, Cluster, Phase, Quota, Rules
from gpuyard.core.state import State, Table
from gpuyard.errors import Bug

_NUMBERS = ("now", "shadow", "starts", "virtual_time", "numbers")
_COLUMNS = (*Table._FLOATS, "gpus", "user", "preemptible")
_COLUMN = "column "  # before the name of each; earlier versions have all columns in one part
_OPEN = frozenset(phase for phase in Phase if not phase.over)


def dump(state: State) -> dict[str, Any]:
    return dict(parts(state))


def parts(state: State) -> Iterator[tuple[str, Any]]:
    """What is kept of a state, part by part: all of it is as it is when the first part is asked for."""
    table, size, head = state.table, len(state.phase), state.head
    ids, phases, attempts = list(state.ids), list(state.phase), list(state.attempt)
    scopes = {row: key for key, row in table.scope_rows.items()}
    names, kinds, at_most = list(state.arrays), list(state.kinds), dict(state.at_most)
    columns = {name: getattr(table, name)[:size].copy() for name in (*_COLUMNS, "array", "kind", "scope")}
    by_row: dict[str, list[tuple[int, Any]]] = {
        "recalled": list(state.recalled.items()),
        "charges": list(state.charges.items()),
        "admitted": list(state.admitted.items()),
        "parts": [(row, list(some)) for row, some in state.parts.items()],
        "promises": [(row, list(gpus)) for row, gpus in state.promises.items()],
        "after": [(row, list(left)) for row, left in state.after.items()],
        "handed": [(row, dict(waits)) for row, waits in state.handed.items()],
        "doomed": list(state.doomed.items()),
        "spots": [(row, state.spot[row].tolist()) for row in state.running.array.tolist()],
    }
    patient = list(state.patient)
    yield from _small(state).items()

    rows = [row for row, phase in enumerate(phases) if phase in _OPEN]
    new_row = dict(zip(rows, range(len(rows)), strict=True))
    yield "head", new_row.get(head, -1)
    yield "patient", [new_row[row] for row in patient]
    for name, values in by_row.items():
        yield name, [[new_row[row], value] for row, value in values]
    at = np.array(rows, dtype=np.int64)
    arrays = set(columns["array"][at].tolist())
    yield "at_most", {names[n]: most for n, most in at_most.items() if n in arrays}
    yield "array", _packed(columns["array"][at], names.__getitem__)
    yield "kind", _packed(columns["kind"][at], kinds.__getitem__)
    yield "scope", _packed(columns["scope"][at], lambda scope: list(scopes.get(scope, ((), ""))[:2]))
    yield "ids", list(map(ids.__getitem__, rows))
    yield "phase", _runs(map(phases.__getitem__, rows))
    yield "attempt", _runs(map(attempts.__getitem__, rows))
    for name in _COLUMNS:
        yield f"{_COLUMN}{name}", _packed(columns[name][at])


def _small(state: State) -> dict[str, Any]:
    """What does not grow with the number of jobs."""
    return {
        "seed": state.seed,
        **{name: _plain(getattr(state, name)) for name in _NUMBERS},
        "users": list(state.user_of),
        "used": [_plain(value) for value in state.used],
        "last_finish": [_plain(value) for value in state.last_finish],
        "withdrawn": [[gpu, cause] for gpu, cause in state.withdrawn.items()],
        "groups": list(state.group_of),
        "taken": list(state.taken),
        "buffer": state.buffer,
        "drained": sorted(state.drained),
        "hosted": [[node, *taken] for node, taken in state.hosted.items()],
        "lent": [[gpu, job, gpu in state.reclaimed] for gpu, job in state.lent.items()],
        "harms": [[*pair, slowdown] for pair, slowdown in state.harms.items()],
        "bookings": [asdict(booking) for booking in state.bookings.values()],
        "rules": None if state.rules is None else plain_rules(state.rules),
        "ledger": state.ledger.facts(),
    }


_MOST_RUNS = 4  # a column is packed in runs if these are as long, on the average


def _runs(values: Iterable[Any]) -> dict[str, Any]:
    """Equal values in a row as one, with their number: thousands of tasks are mostly alike."""
    return {"runs": [[len(list(same)), value] for value, same in groupby(values)]}


def _packed(column: Floats | Ints | Flags, name: Callable[[int], Any] | None = None) -> Any:
    """A column as JSON: in runs, or as bytes where its values differ."""
    edges = np.flatnonzero(column[1:] != column[:-1]) + 1 if len(column) else np.zeros(0, dtype=np.int64)
    if name is None and len(column) > 64 and len(edges) * _MOST_RUNS > len(column):
        return {"bytes": b64encode(column.astype("<f8").tobytes()).decode()}
    starts = [0, *edges.tolist()] if len(column) else []
    lengths = np.diff([*starts, len(column)]).tolist() if starts else []
    values = [value if name is None else name(int(value)) for value in column[starts].tolist()] if starts else []
    return {"runs": [[length, _plain(value)] for length, value in zip(lengths, values, strict=True)]}


def _in_runs(packed: Any) -> Sequence[Sequence[Any]]:
    """The values of a column, in order, each with the number of its repetitions."""
    if isinstance(packed, list):  # of an earlier version
        return [(len(list(same)), value) for value, same in groupby(packed)]
    runs: list[list[Any]] = packed["runs"]
    return runs


def _unpacked(packed: Any) -> list[Any]:
    return list(chain.from_iterable(repeat(value, length) for length, value in _in_runs(packed)))


def _numbers(packed: Any) -> Floats:
    if isinstance(packed, dict) and "bytes" in packed:
        return np.frombuffer(b64decode(packed["bytes"]), dtype="<f8")
    numbers: Floats = _repeated(packed, np.array([float(value) for _, value in _in_runs(packed)]))
    return numbers


def _repeated(packed: Any, values: Any) -> Any:
    """A column with these values in place of those of its runs."""
    return np.repeat(values, np.array([length for length, _ in _in_runs(packed)], dtype=np.int64))


def load(cluster: Cluster, data: dict[str, Any]) -> State:
    state = State(cluster, data["seed"])
    for name in _NUMBERS:
        kind = type(getattr(state, name))
        setattr(state, name, kind(data[name]))
    state.head = data["head"]
    state.user_of = {user: n for n, user in enumerate(data["users"])}
    state.used = [float(value) for value in data["used"]]
    state.last_finish = [float(value) for value in data["last_finish"]]
    state.recalled = dict(data["recalled"])
    state.harms = {(sufferer, beside): slowdown for sufferer, beside, slowdown in data.get("harms", ())}
    if "rules" in data:
        _load_sharing(state, data)
    else:  # of a version that knew none of this
        state.group_of = ["" for _ in state.used]
        state.ledger.grow(len(state.used))
    if len(taken := data.get("taken", ())) == cluster.gpus:
        take(state, tuple(taken), data["buffer"])
    for node, cpus, memory in data.get("hosted", ()):
        if node < len(cluster.nodes):
            take_host(state, node, cpus, memory)
    _load_jobs(state, data)
    for gpu, cause in data["withdrawn"]:
        if gpu < cluster.gpus:
            state.withdrawn[gpu] = cause
            withdraw(state.pool, gpu, cause)
    state.drained = {gpu for gpu in data.get("drained", ()) if gpu < cluster.gpus}
    for gpu in state.drained:
        withdraw(state.pool, gpu)
    for row, gpus in data.get("promises", ()):
        if max(gpus) < cluster.gpus:
            keep_for(state, row, tuple(gpus))
    state.lent = {gpu: job for gpu, job, _ in data.get("lent", ())}
    state.reclaimed = frozenset(gpu for gpu, _, reclaimed_at in data.get("lent", ()) if reclaimed_at)
    return state


def _load_sharing(state: State, data: dict[str, Any]) -> None:
    state.group_of = list(data["groups"])
    state.after = {row: dict.fromkeys(left) for row, left in data["after"]}
    for row, left in state.after.items():
        for dependency in left:
            state.followers.setdefault(dependency.partition(":")[2], []).append(row)
    state.handed = {row: dict(waits) for row, waits in data.get("handed", ())}
    state.doomed = dict(data["doomed"])
    for _, name in _in_runs(data["array"]):
        state.arrays.setdefault(name, len(state.arrays))
    state.at_most = {state.arrays[name]: most for name, most in data["at_most"].items() if name in state.arrays}
    for text in data["bookings"]:
        booking = booking_of(text)
        state.bookings[booking.name] = booking
    state.rules = rules_of(data["rules"]) if data["rules"] is not None else None
    state.ledger = Ledger.of(data["ledger"])


def _load_jobs(state: State, data: dict[str, Any]) -> None:
    table = state.table
    state.ids = list(data["ids"])
    state.row_of = dict(zip(state.ids, range(len(state.ids)), strict=True))
    phases = {name: Phase(name) for name in Phase}
    state.phase = [phases[name] for name in _unpacked(data["phase"])]
    state.attempt = _unpacked(data["attempt"])
    spots = data["spots"] if "spots" in data else [[row, spot] for row, spot in enumerate(data["spot"]) if spot]
    state.spot = [EMPTY] * len(state.ids)
    for row, spot in spots:
        state.spot[row] = np.array(spot, dtype=np.int64)
    given = data.get("columns") or {k.removeprefix(_COLUMN): data[k] for k in data if k.startswith(_COLUMN)}
    columns = {name: _numbers(values) for name, values in given.items()}
    table.load(columns)
    table.started[: table.size] = columns["started"]
    state.charges = {row: float(memory) for row, memory in data.get("charges", ())}
    for row, memory in state.charges.items():
        table.footprint[row] = memory
    state.admitted = dict(data.get("admitted", ()))
    state.parts = {row: tuple(parts) for row, parts in data.get("parts", ())}
    state.patient = set(data.get("patient", ()))
    state.latest_begin = float(table.begin[: table.size].max(initial=0.0))
    for name, numbers, known in (("array", table.array, state.arrays), ("kind", table.kind, state.kinds)):
        if name in data:
            which = [known.setdefault(value, len(known)) for _, value in _in_runs(data[name])]
            numbers[: table.size] = _repeated(data[name], np.array(which, dtype=np.int64))
    _load_scopes(state, data)
    state.waiting.fill([row for row, phase in enumerate(state.phase) if phase is Phase.QUEUED])
    for row, _ in spots:
        claim(state.site(), row, state.spot[row])
        state.occupant[state.spot[row]] = row
        state.running.add(row)
        loose = table.preemptible[row] and table.started[row] < np.inf and row not in state.recalled
        state.fixed += not loose


def _load_scopes(state: State, data: dict[str, Any]) -> None:
    """Which GPUs each row may have; rows that follow each other mostly want the same."""
    table, row = state.table, 0
    for length, (scope, gpu_types) in _in_runs(data["scope"]):
        rows = slice(row, row + length)
        whole, row = table.compute[rows] >= 100, rows.stop
        least = np.where(whole, table.memory[rows], 0.0)
        for size in np.unique(least):
            table.scope[rows][least == size] = table.scope_row(tuple(scope), gpu_types, float(size))
    if table.size:
        any_will_do = (table.compute >= 100) & (table.scope == 0) & (table.cpus == 0) & (table.host_memory == 0)
        state.shares = state.shares or bool(state.parts) or not bool(any_will_do[: table.size].all())


def compact(state: State) -> None:
    _become(state, load(state.cluster, dump(state)))


def move_to(state: State, cluster: Cluster) -> None:
    if len(state.running):
        raise Bug(f"the GPUs changed while job {state.ids[state.running.array[0]]} holds some")
    state.withdrawn.clear()
    _become(state, load(cluster, dump(state)))


def _become(state: State, other: State) -> None:
    other.version = state.version + 1
    state.__dict__.update(other.__dict__)


def rules_of(data: Mapping[str, Any]) -> Rules:
    """Rules from the plain values of `dataclasses.asdict`, with an infinite half-life as text."""
    return Rules(
        float(data["half_life"]),
        tuple((name, float(weight)) for name, weight in data["weights"]),
        tuple((name, Quota(**quota)) for name, quota in data["quotas"]),
        bool(data["preempts"]),
        bool(data.get("for_shares", True)),
    )


def booking_of(data: Mapping[str, Any]) -> Booking:
    return Booking(data["name"], tuple(data["gpus"]), data["begin"], data["end"], tuple(data["users"]))


def plain_rules(rules: Rules) -> dict[str, Any]:
    return {**asdict(rules), "half_life": _plain(rules.half_life)}


def _plain(value: Any) -> Any:
    """JSON has no infinity: it is stored as text that `float` reads."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(float(value))
    return value
