"""A policy: an ordering of the queue as a function of columns, with its settings; and the names of placements."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from gpuyard.core.columns import ALWAYS, COLUMNS, RUNNING
from gpuyard.core.loops.backfill import DISCIPLINES
from gpuyard.core.loops.pool import CLUSTERING, CONSOLIDATE, FGD, FIRST, PACK, PACKING, RANDOM, SPREAD, Floats, Ints
from gpuyard.core.queue_features import QUEUE_FEATURES
from gpuyard.core.state import State
from gpuyard.errors import UserError, suggest, told_by
from gpuyard.units import parse_duration

CONSIDERATE = "considerate"
PLACEMENTS = {
    "first": FIRST,
    "pack": PACK,
    "spread": SPREAD,
    "consolidate": CONSOLIDATE,
    "random": RANDOM,
    "packing": PACKING,
    "clustering": CLUSTERING,
    "fgd": FGD,
    CONSIDERATE: PACK,
}
"""Which loop chooses GPUs, by name."""
PLACEMENT_DOCS = {
    "first": "the lowest-numbered GPUs that fit",
    "pack": "best fit: the fullest node or GPU that still has room",
    "spread": "least loaded: the emptiest node or GPU",
    "consolidate": "one node, best fit; whole free nodes if larger; waits rather than spread wider (Helios)",
    "random": "seeded random nodes and GPUs",
    "packing": "one node: GPUs that are shared already, then idle GPUs of nodes in use, then idle nodes",
    "clustering": "one node: beside jobs that want as many GPUs, then idle nodes, then anywhere",
    "fgd": "one node: where the GPUs that the usual jobs could not use grow least (Weng et al., ATC'23)",
    CONSIDERATE: "pack, but not beside jobs that are known to hurt each other on one GPU",
}
LEARNED = "learned:"  # before the file that a trained policy is in


class PolicyError(UserError):
    """This function cannot be used as a policy."""


postponed = ContextVar("postponed", default=False)
"""Whether `@policy` leaves an error in place of a policy with a mistake, so that others of its file can be used."""


@dataclass(frozen=True, slots=True)
class Policy:
    """An ordering of the queue, with its settings. Call it like the function it was made from."""

    name: str
    function: Callable[..., Any]
    columns: tuple[str, ...]
    defaults: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)  # only those that differ from the defaults
    preemptive: bool = False
    quantum: float = 0.0  # preemptive policies: seconds that a started job is left alone
    default_quantum: float = 0.0
    sliced: bool = False  # whether the quantum is a time slice, renewed or passed on when it is over
    improves: bool = False
    """Whether a job's number never grows while it runs: then an old number is enough to see that it stays."""
    one_way: bool = False
    """Whether a job's number only falls, or only grows, while it waits: then two numbers bound all between them."""
    next_change: Policy | None = None
    """Seconds until a running job's rank changes by itself, as a function of the same kind; sooner it must not."""
    check: Callable[..., None] | None = None  # called with all settings; raises a UserError if they make no sense
    weights: Floats | None = None
    """A trained policy's numbers, which its function takes behind its columns; they never change."""
    discipline: str = ""  # what it was trained for, and has if nothing else is said; empty: it does not matter to it
    source: str = ""  # what it is called outside of its file, `path/to/file.py:function`; empty if it is built in

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = () if self.weights is None else (self.weights,)
        return self.function(*args, *own, **{**self.settings, **kwargs})

    @property
    def doc(self) -> str:
        return " ".join((self.function.__doc__ or "").split())

    @property
    def static(self) -> bool:
        return all(COLUMNS[c].changes != ALWAYS for c in self.columns)

    @property
    def looks_around(self) -> bool:
        """Whether a job's rank depends on which other jobs wait or run: then every start changes it."""
        return not QUEUE_FEATURES.isdisjoint(self.columns)

    @property
    def changes(self) -> str:
        """When ranks change: never, while running, or at any time."""
        kinds = {COLUMNS[c].changes for c in self.columns}
        return next((kind for kind in (ALWAYS, RUNNING) if kind in kinds), "never")

    @property
    def text(self) -> str:
        settings = dict(self.settings)
        if self.quantum != self.default_quantum:
            settings["quantum"] = f"{self.quantum:g}"
        name = self.source or self.name
        return name + (":" + ",".join(f"{k}={_written(v)}" for k, v in settings.items()) if settings else "")

    def with_settings(self, given: Mapping[str, Any]) -> Policy:
        """The same policy with other settings; text is read as the type of the default."""
        policy, settings = self, dict(self.settings)
        for key, value in given.items():
            if key == "quantum" and self.preemptive:
                policy = replace(policy, quantum=_quantum(self.name, value))
            elif key in self.defaults:
                settings[key] = _read(self.name, key, value, self.defaults[key])
            else:
                known = [*self.defaults, *(["quantum"] if self.preemptive else [])]
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise UserError(f"policy {self.name} has no setting '{key}'{suggest(key, known)} ({has})")
        if self.check is not None:
            self.check(**{**self.defaults, **settings})
        change = self.next_change
        if change is not None:
            change = change.with_settings({k: v for k, v in settings.items() if k in change.defaults})
        return replace(policy, settings=settings, next_change=change)

    def rank(self, state: State, rows: Ints, now: float) -> Floats:
        """The policy's number for each row; the smallest runs first."""
        values = [COLUMNS[name].values(state, rows, now) for name in self.columns]
        try:
            with np.errstate(all="ignore"):
                returned = np.asarray(self(*values))
        except UserError:
            raise
        except BaseException as error:  # a user's own function may raise anything
            raise PolicyError(f"policy {self.name} failed: {told_by(error)}") from error
        if returned.dtype.kind not in "fiub":
            raise PolicyError(f"policy {self.name} must return one number per job; does it end with a return?")
        keys = returned.astype(np.float64, copy=False)
        if keys.shape != rows.shape:
            if keys.ndim:
                raise PolicyError(
                    f"policy {self.name} returned {keys.size} numbers for {len(rows)} jobs; it must return one each"
                )
            keys = np.full(rows.shape, float(keys))
        if len(keys) and math.isnan(keys.min()):
            job = state.ids[rows[int(np.argmax(np.isnan(keys)))]]
            raise PolicyError(f"policy {self.name} returned 'not a number' for job {job}")
        return keys

    def when_changed(self, function: Callable[..., Any]) -> Policy:
        """Decorator: says in how many seconds a running job's rank changes by itself."""
        change = define(function, name=self.name)
        shared = {key: value for key, value in self.defaults.items() if key in change.defaults}
        return replace(self, next_change=replace(change, defaults=shared, settings=shared))


def define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    preemptive: bool = False,
    quantum: float = 0.0,
    sliced: bool = False,
    improves: bool = False,
    one_way: bool = False,
    check: Callable[..., None] | None = None,
) -> Policy:
    title = name or getattr(function, "__name__", "policy").replace("_", "-")
    if not 0 <= quantum < math.inf:
        raise PolicyError(f"policy {title}: a quantum is a number of seconds, 0 or more, not {quantum}")
    columns: list[str] = []
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise PolicyError(f"policy {title}: setting '{parameter.name}' needs a default value")
            defaults[parameter.name] = parameter.default
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PolicyError(f"policy {title}: name the columns it needs instead of '*{parameter.name}'")
        elif parameter.name in ("run", "run_time", "runtime", "duration"):
            raise PolicyError(f"policy {title}: the true run time is hidden from policies; use 'estimate'")
        elif parameter.name not in COLUMNS:
            raise PolicyError(
                f"policy {title}: there is no column '{parameter.name}'{suggest(parameter.name, COLUMNS)} "
                f"(columns: {', '.join(COLUMNS)}; settings stand after a lone *)"
            )
        else:
            columns.append(parameter.name)
    return Policy(
        title,
        function,
        tuple(columns),
        defaults,
        preemptive=preemptive,
        quantum=quantum,
        default_quantum=quantum,
        sliced=sliced,
        improves=improves,
        one_way=one_way,
        check=check,
    )


@overload
def policy(function: Callable[..., Any]) -> Policy: ...
@overload
def policy(
    *,
    name: str | None = None,
    preemptive: bool = False,
    quantum: float = 0.0,
    sliced: bool = False,
    improves: bool = False,
    one_way: bool = False,
    check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Policy]: ...
def policy(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: the function is an ordering of the queue, its parameters name columns."""
    return _defined(function) if function is not None else lambda f: _defined(f, **options)


def _defined(function: Callable[..., Any], **options: Any) -> Policy | PolicyError:
    try:
        return define(function, **options)
    except PolicyError as error:
        if not postponed.get():
            raise
        return error


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    settings: dict[str, str]
    discipline: str | None
    placement: str | None


def parse_spec(text: str) -> Spec:
    """Split `name[:key=value,...][@discipline[@placement]]`; `path.py:function` and `learned:path` are names."""
    main, *rest = text.strip().split("@")
    if len(rest) > 2 or not main:
        raise UserError(f"'{text}' is not a policy; write name[:key=value,...][@discipline[@placement]]")
    head, colon, tail = main.partition(".py:")
    if main.startswith(LEARNED):
        name, settings_text = main, ""
    elif colon:
        function, _, settings_text = tail.partition(":")
        name = f"{head}.py:{function}"
    else:
        name, _, settings_text = main.partition(":")
    settings: dict[str, str] = {}
    for part in filter(None, settings_text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UserError(f"'{part}' in '{text}' is not a setting; write key=value")
        settings[key.strip()] = value.strip()
    discipline, placement = [*(part.strip() or None for part in rest), None, None][:2]
    return Spec(name.strip(), settings, check_discipline(discipline), check_placement(placement))


def check_discipline(name: str | None) -> str | None:
    if name is not None and name not in DISCIPLINES:
        raise UserError(f"unknown discipline '{name}'{suggest(name, DISCIPLINES)} ({', '.join(DISCIPLINES)})")
    return name


def check_placement(name: str | None) -> str | None:
    if name is not None and name not in PLACEMENTS:
        raise UserError(f"unknown placement '{name}'{suggest(name, PLACEMENTS)} ({', '.join(PLACEMENTS)})")
    return name


def _quantum(name: str, value: Any) -> float:
    quantum = parse_duration(value) if isinstance(value, str) else value
    if not (0 <= quantum < math.inf):
        raise UserError(f"policy {name}: a quantum is a number of seconds, 0 or more, not {value}")
    return float(quantum)


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read(name: str, key: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        if isinstance(default, int | float):
            number = float(value)
            if math.isnan(number) or (isinstance(default, int) and not number.is_integer()):
                raise ValueError
            return int(number) if isinstance(default, int) else number
        if isinstance(default, tuple):
            return tuple(float(part) for part in value.split("/"))
    except (ValueError, KeyError):
        kinds = {bool: "yes or no", int: "a whole number", tuple: "numbers with / between them"}
        kind = kinds.get(type(default), "a number")
        raise UserError(f"policy {name}: setting '{key}' takes {kind}, not '{value}'") from None
    return value
