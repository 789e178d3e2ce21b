"""A trace: the jobs of a workload as columns, from any file format."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from gpuyard.core.loops.pool import Flags as Flags
from gpuyard.core.loops.pool import Floats as Floats
from gpuyard.core.loops.pool import Ints as Ints
from gpuyard.errors import UserError

_COLUMNS = (
    "submit", "run", "gpus", "requested", "priority", "weight", "tickets",
    "memory", "compute", "deadline", "preemptible", "cpus", "host_memory",
)  # fmt: skip
_TEXTS = ("ids", "users", "gpu_types")


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in file order. All arrays have the same length; times are seconds, memory is bytes."""

    ids: list[str]
    submit: Floats
    run: Floats  # true run time: > 0, known to the driver only
    gpus: Ints
    requested: Floats  # what the user asked for; NaN where the trace does not say
    priority: Floats  # higher runs first
    users: list[str]  # empty string: the trace does not say
    weight: Floats
    tickets: Floats
    memory: Floats  # bytes wanted on each GPU; 0: not said
    compute: Floats  # percent of each GPU wanted; 100: all of it; 0: not said (a share by memory alone)
    deadline: Floats  # absolute time; +inf: none
    preemptible: Flags
    cpus: Floats  # CPU cores wanted in all; 0: not said
    host_memory: Floats  # bytes of the machine's own memory wanted in all; 0: not said
    gpu_types: list[str]  # suitable GPU models, with | between them; empty string: any
    labels: dict[str, list[str]] = field(default_factory=dict)
    """What else the file says of each job, to select by: {column: one text per job}."""
    source: str = "memory"
    format: str = "gpuyard"
    dropped: dict[str, int] = field(default_factory=dict)  # jobs left out by the format's own cleaning: {reason: count}
    in_order: bool = False  # whether jobs are known to be in the order of arrival
    capacity: int | None = None  # GPUs (processors) of the machine the trace was taken on, where the file says so

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(
        cls,
        submit: npt.ArrayLike,
        run: npt.ArrayLike,
        gpus: npt.ArrayLike,
        *,
        ids: list[str] | None = None,
        users: list[str] | None = None,
        gpu_types: list[str] | None = None,
        labels: dict[str, list[str]] | None = None,
        source: str = "memory",
        format: str = "gpuyard",
        dropped: dict[str, int] | None = None,
        capacity: int | None = None,
        **columns: npt.ArrayLike | None,
    ) -> Trace:
        """Build a trace from arrays or lists; a column left out (or None) takes its neutral value."""
        submit_ = np.asarray(submit, dtype=np.float64)
        n = len(submit_)
        if unknown := set(columns) - set(_COLUMNS):
            raise TypeError(f"no such trace column: {', '.join(sorted(unknown))}")

        def column(name: str, neutral: float) -> Floats:
            value = columns.get(name)
            return np.full(n, neutral) if value is None else np.asarray(value, dtype=np.float64)

        memory = column("memory", 0.0)
        compute = column("compute", np.nan)
        compute = np.where(np.isnan(compute), np.where(memory > 0, 0.0, 100.0), compute)
        preemptible = columns.get("preemptible")
        return cls(
            ids=ids if ids is not None else [str(i) for i in range(n)],
            submit=submit_,
            run=np.asarray(run, dtype=np.float64),
            gpus=np.asarray(gpus, dtype=np.int64),
            requested=column("requested", np.nan),
            priority=column("priority", 0.0),
            users=users if users is not None else [""] * n,
            weight=column("weight", 1.0),
            tickets=column("tickets", 1.0),
            memory=memory,
            compute=compute,
            deadline=column("deadline", np.inf),
            preemptible=np.ones(n, dtype=bool) if preemptible is None else np.asarray(preemptible, dtype=bool),
            cpus=column("cpus", 0.0),
            host_memory=column("host_memory", 0.0),
            gpu_types=gpu_types if gpu_types is not None else [""] * n,
            labels=labels or {},
            source=source,
            format=format,
            dropped=dropped or {},
            capacity=capacity,
        )

    def check(self) -> None:
        """Refuse jobs that no schedule could make sense of. Readers check, with lines; hand-made traces may not."""
        for name, good, rule in (
            ("submit", np.isfinite(self.submit), "a number"),
            ("run", np.isfinite(self.run) & (self.run > 0), "above 0"),
            ("gpus", self.gpus > 0, "at least 1"),
        ):
            if not good.all():
                bad = int(np.argmin(good))
                raise UserError(f"job {self.ids[bad]}: {name} must be {rule}, not {getattr(self, name)[bad]:g}")

    def take(self, index: npt.NDArray[np.intp] | slice) -> Trace:
        positions = np.arange(len(self))[index]
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _COLUMNS:
            kept[name] = kept[name][positions]
        chosen = positions.tolist()
        for name in _TEXTS:
            kept[name] = [kept[name][i] for i in chosen]
        kept["labels"] = {name: [texts[i] for i in chosen] for name, texts in self.labels.items()}
        kept["in_order"] = False
        return Trace(**kept)

    def with_gpus(self) -> Trace:
        """The jobs that want a GPU; the others are counted as dropped."""
        if not len(self) or self.gpus.min() != 0:
            return self
        without = self.gpus == 0
        reason = "no GPU"
        dropped = self.dropped | {reason: self.dropped.get(reason, 0) + int(without.sum())}
        return replace(self.take(np.flatnonzero(~without)), dropped=dropped)

    def slice(self, text: str) -> Trace:
        """`START:COUNT`: COUNT jobs from position START, in file order."""
        start, colon, count = text.partition(":")
        if not colon or not start.strip().isdigit() or not count.strip().isdigit():
            raise UserError(f"--slice takes START:COUNT, two whole numbers, not '{text}'")
        first, size = int(start), int(count)
        if size == 0 or first + size > len(self):
            raise UserError(f"--slice {text} asks for more than there is: the trace has jobs 0 to {len(self) - 1}")
        return self.take(np.arange(first, first + size))

    def at_load(self, factor: float) -> Trace:
        """The same jobs, arriving `factor` times as fast: the time from the first submit on is divided by it.

        Run times stay as they are, and so does the time that each job has until its deadline.
        """
        if not 0 < factor < np.inf:
            raise UserError(f"a load is a number above 0, not {factor:g}")
        if not len(self):
            return self
        first = self.submit.min()
        submit = first + (self.submit - first) / factor
        return replace(self, submit=submit, deadline=self.deadline + (submit - self.submit))

    def by_arrival(self) -> Trace:
        return self if self.in_order else replace(self.take(self.arrival_order()), in_order=True)

    def arrival_order(self) -> npt.NDArray[np.intp]:
        """Positions by submit time, then id: as numbers where all ids are whole numbers, else file order."""
        try:
            tie = np.array([int(i) for i in self.ids], dtype=np.int64)
        except (ValueError, OverflowError):
            tie = np.arange(len(self), dtype=np.int64)
        return np.lexsort((tie, self.submit))
