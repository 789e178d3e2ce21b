"""Pollux' workloads: jobs that adapt, so that how long they run is known only where a column says so."""

from __future__ import annotations

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import cells
from gpuyard.sim.traces.gather import Gathered, value
from gpuyard.sim.traces.source import Source, first_line

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
_REQUIRED = ("name", "time", "num_replicas")
_CALLED = {"job": "name", "submit": "time", "run": "duration", "gpus": "num_replicas"}


def recognises(head: str) -> bool:
    """A header with most of the columns."""
    return cells.has_columns(first_line(head), _COLUMNS, 4)


def read(source: Source) -> Trace:
    """Jobs in file order, if the file has run times."""
    found = cells.rows(source)
    names = cells.header(source, found, _REQUIRED)
    if "duration" not in names:
        raise UserError(
            f"{source.name} is a Pollux workload, which does not say how long its jobs run: that follows from the "
            "throughputs measured for Pollux and from its choice of batch sizes; add a column 'duration' in seconds"
        )
    labels = tuple(name for name in ("application", "batch_size") if name in names)
    pick, where = cells.picker(names, (*_REQUIRED, "duration")), [names.index(name) for name in labels]
    jobs = Gathered(source, "pollux", labels=labels, called=_CALLED)
    for line, row in found:
        try:
            name, time, replicas, duration = pick(row)
            numbers = value(time, "time"), value(duration, "duration"), value(replicas, "num_replicas")
            jobs.add(line, name, numbers, tuple([row[place] for place in where]))
        except UserError as error:
            raise source.error(line, str(error)) from None
    return jobs.trace()
