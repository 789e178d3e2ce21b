"""A state as plain values, and back: what a driver keeps so that a restart need not fold the whole log.

Jobs that are over are left out, since nothing can happen to them any more; the others keep their order, so ties are
decided as before. Rows are stored; what can be computed from them is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from gpuyard.core.limits.quotas import Ledger
from gpuyard.core.limits.withdrawal import keep_for, take, take_host, withdraw
from gpuyard.core.loops.placement import claim
from gpuyard.core.loops.pool import EMPTY, takes_any
from gpuyard.core.model import Booking, Cluster, Phase, Quota, Rules
from gpuyard.core.state import State, Table
from gpuyard.errors import Bug

_NUMBERS = ("now", "shadow", "starts", "virtual_time", "numbers")
_COLUMNS = (*Table._FLOATS, "gpus", "user", "preemptible")


def dump(state: State) -> dict[str, Any]:
    rows = [row for row, phase in enumerate(state.phase) if not phase.over]
    dependencies = {row: key for key, row in state.table.scope_rows.items()}
    new_row = {row: n for n, row in enumerate(rows)}
    names, kinds = list(state.arrays), list(state.kinds)
    return {
        "seed": state.seed,
        **{name: _plain(getattr(state, name)) for name in _NUMBERS},
        "head": new_row.get(state.head, -1),
        "users": list(state.user_of),
        "used": [_plain(value) for value in state.used],
        "last_finish": [_plain(value) for value in state.last_finish],
        "withdrawn": [[gpu, cause] for gpu, cause in state.withdrawn.items()],
        "recalled": [[new_row[row], cause] for row, cause in state.recalled.items()],
        "groups": list(state.group_of),
        "taken": list(state.taken),
        "buffer": state.buffer,
        "drained": sorted(state.drained),
        "charges": [[new_row[row], memory] for row, memory in state.charges.items()],
        "admitted": [[new_row[row], by] for row, by in state.admitted.items()],
        "hosted": [[node, *taken] for node, taken in state.hosted.items()],
        "parts": [[new_row[row], list(parts)] for row, parts in state.parts.items()],
        "patient": [new_row[row] for row in state.patient],
        "promises": [[new_row[row], list(gpus)] for row, gpus in state.promises.items()],
        "lent": [[gpu, job, gpu in state.reclaimed] for gpu, job in state.lent.items()],
        "after": [[new_row[row], list(left)] for row, left in state.after.items()],
        "handed": [[new_row[row], waits] for row, waits in state.handed.items()],
        "doomed": [[new_row[row], dependency] for row, dependency in state.doomed.items()],
        "array": [names[int(state.table.array[row])] for row in rows],
        "kind": [kinds[int(state.table.kind[row])] for row in rows],
        "harms": [[*pair, slowdown] for pair, slowdown in state.harms.items()],
        "at_most": {name: state.at_most[n] for name, n in state.arrays.items() if n in state.at_most},
        "bookings": [asdict(booking) for booking in state.bookings.values()],
        "rules": None if state.rules is None else plain_rules(state.rules),
        "ledger": state.ledger.facts(),
        "ids": [state.ids[row] for row in rows],
        "phase": [str(state.phase[row]) for row in rows],
        "attempt": [state.attempt[row] for row in rows],
        "spot": [state.spot[row].tolist() for row in rows],
        "scope": [list(dependencies.get(int(state.table.scope[row]), ((), ""))[:2]) for row in rows],
        "columns": {name: [_plain(v) for v in getattr(state.table, name)[rows].tolist()] for name in _COLUMNS},
    }


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
    for name in data["array"]:
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
    state.row_of = {job: row for row, job in enumerate(state.ids)}
    state.phase = [Phase(name) for name in data["phase"]]
    state.attempt = list(data["attempt"])
    state.spot = [np.array(spot, dtype=np.int64) if spot else EMPTY for spot in data["spot"]]
    columns = {name: np.array(values, dtype=np.float64) for name, values in data["columns"].items()}
    table.load(columns)
    table.started[: table.size] = columns["started"]
    state.charges = {row: float(memory) for row, memory in data.get("charges", ())}
    for row, memory in state.charges.items():
        table.footprint[row] = memory
    state.admitted = dict(data.get("admitted", ()))
    state.parts = {row: tuple(parts) for row, parts in data.get("parts", ())}
    state.patient = set(data.get("patient", ()))
    state.latest_begin = float(table.begin[: table.size].max(initial=0.0))
    for row, array in enumerate(data.get("array", ())):
        table.array[row] = state.arrays[array]
    for row, kind in enumerate(data.get("kind", ())):
        table.kind[row] = state.kinds.setdefault(kind, len(state.kinds))
    for row, (scope, gpu_types) in enumerate(data["scope"]):
        least = float(table.memory[row]) if table.compute[row] >= 100 else 0.0
        table.scope[row] = table.scope_row(tuple(scope), gpu_types, least)
        state.shares = state.shares or not takes_any(table.demand, row) or row in state.parts
        if state.phase[row] is Phase.QUEUED:
            state.waiting.add(row)
        elif len(state.spot[row]):
            claim(state.site(), row, state.spot[row])
            state.occupant[state.spot[row]] = row
            state.running.add(row)
            loose = table.preemptible[row] and table.started[row] < np.inf and row not in state.recalled
            state.fixed += not loose


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
