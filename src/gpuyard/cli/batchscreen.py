"""A batch as it goes on: a live table on a terminal, a line for every row elsewhere; and what is told in the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuyard.cli import output
from gpuyard.cli.table import how_far, indices, instant, now, print_table
from gpuyard.patience import patiently
from gpuyard.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuyard.batches.shapes import BatchReport, BatchStanding, RowOutcome
    from gpuyard.client import Client, Job

_LIVE, _QUIET = 1.0, 30.0
"""Seconds after which to look again though no row has ended: where somebody looks on, and where nobody does."""
_OVERLAP = 10.0
"""Seconds of which it is asked twice who ended then: what ended first may be written last."""
_MOST_SHOWN, _MOST_WAVES = 30, 20

Show = Callable[["BatchStanding"], None]


def follow(client: Client, id: str, quiet: bool = False) -> None:
    """Return when a batch is over; tell how it goes, unless quiet. A daemon that goes away is waited for."""
    with _screen(quiet) as (show, pause):
        over, since = None, 0.0
        while True:
            wait = 0.0 if over is None else pause
            standing = patiently(client.batch, id, wait=wait, over=over, since=since, say=output.say)
            show(standing)
            if standing["state"] == "over":
                return
            over = _over(standing)
            ends = [instant(row["ended_at"]).timestamp() for row in standing["ended"] if row["ended_at"]]
            since = max([since, *(end - _OVERLAP for end in ends)])
            time.sleep(0.05)


def _over(standing: BatchStanding) -> int:
    from gpuyard.client import OVER

    return sum(count for state, count in standing["states"].items() if state in OVER)


@contextmanager
def _screen(quiet: bool) -> Iterator[tuple[Show, float]]:
    if quiet:
        yield lambda standing: None, _QUIET
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as screen:
            yield lambda standing: screen.update(_picture(standing), refresh=True), _LIVE
    else:
        yield Lines().show, _QUIET


@dataclass(slots=True)
class Lines:
    """One line for every row that ends, and for every wave that begins."""

    told: set[str] = field(default_factory=set)
    wave: int = 0

    def show(self, standing: BatchStanding) -> None:
        """Tell what is new."""
        for row in standing["ended"]:
            if row["id"] not in self.told:
                self.told.add(row["id"])
                output.say(line_of(row))
        wave = standing["wave"]
        if wave is not None and wave != self.wave and standing["waves"] > 1:
            self.wave = wave
            output.say(f"wave {wave} of {standing['waves']}")


def line_of(row: RowOutcome) -> str:
    """`row 3 (job 19, train.py): succeeded after 5.2s on GPU 0, peak 1.8G`."""
    took = f" after {_time(row['seconds'])}" if row["seconds"] is not None else ""
    where = f" on GPU {indices(row['gpus'])}" if row["gpus"] and row["seconds"] is not None else ""
    peak = f", peak {format_size(row['peak'])}" if row["peak"] else ""
    return f"row {row['row']} (job {row['id']}, {row['name']}): {_how(row)}{took}{where}{peak}"


def _how(row: RowOutcome) -> str:
    """`failed (exit code 3, attempt 2)`."""
    code = row["exit_code"]
    why = row["reason"] or ("" if code is None else _exit(code))
    said = [why] if why and row["state"] != "succeeded" else []
    if row["attempt"] > 1:
        said.append(f"attempt {row['attempt']}")
    return row["state"] + (f" ({', '.join(said)})" if said else "")


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    import signal

    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _picture(standing: BatchStanding) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    running = standing["running"]
    rows = [("ROW", "JOB", "NAME", "GPU", "MEMORY", "FOR", "PROGRESS"), *map(_cells, running[:_MOST_SHOWN])]
    for head, *cells in zip(*rows, strict=True):
        least = None if head in ("NAME", "PROGRESS") else max(map(len, (head, *cells)))
        table.add_column(head, no_wrap=True, min_width=least)  # a narrow screen costs the name, not the number
    for row in rows[1:]:
        table.add_row(*row)
    lines = [Text(head_line(standing))]
    if len(running) > _MOST_SHOWN:
        lines.append(Text(f"and {len(running) - _MOST_SHOWN} more"))
    return Group(*lines[:1], table, *lines[1:])


def _cells(job: Job) -> Sequence[str]:
    row, began = job["row"], job["started_at"]
    took = format_duration(round((now() - instant(began)).total_seconds())) if began else "-"
    number = str(row["number"]) if row else "-"
    return number, job["id"], job["name"] or "", indices(job["gpus"]), _memory(job), took, how_far(job["progress"])


def _memory(job: Job) -> str:
    """`1.8G of 2G`: what it uses of what it was promised."""
    promised = "all" if job["gpu_memory"] is None else format_size(job["gpu_memory"])
    peak = job["measured"]["peak"] if job["measured"] else None
    return f"{format_size(peak)} of {promised}" if peak else promised


def head_line(standing: BatchStanding) -> str:
    """`commands.csv, batch 17: wave 2 of 3; 20 of 50 rows are over, 4 run; about 3m 20s left`."""
    over = _over(standing)
    waves = f"wave {standing['wave']} of {standing['waves']}; " if standing["wave"] and standing["waves"] > 1 else ""
    bad = over - standing["states"].get("succeeded", 0)
    failed = f" ({bad} did not succeed)" if bad else ""
    left = sum(standing["states"].values()) - over
    elapsed = (now() - instant(standing["submitted_at"])).total_seconds()
    eta = f"; about {format_duration(round(elapsed / over * left))} left" if over and left else ""
    jobs = sum(standing["states"].values())
    return (
        f"{standing['name']}, batch {standing['batch']}: {waves}{over} of {jobs} rows are over{failed}, "
        f"{len(standing['running'])} run{eta}"
    )


def summarise(client: Client, id: str, json: bool) -> int:
    """Tell how every row of a batch ended, and what that achieved; the exit code that says whether all is well."""
    standing, report = client.batch(id), client.batch_report(id)
    rows = sorted(standing["ended"], key=lambda row: (row["row"], row["id"]))
    if json:
        output.print_json({**report, "outcomes": rows, "refusals": standing["refusals"]})
    else:
        refused = [(str(one["row"]), "-", "-", "refused", "-", "-", "-", one["reason"]) for one in standing["refusals"]]
        table = sorted([*map(_summary, rows), *refused], key=lambda cells: int(cells[0]))
        print_table(("ROW", "JOB", "NAME", "STATE", "ATTEMPTS", "TIME", "PEAK", ""), table)
        print()
        print("\n".join(report_lines(report)))
    return int(report["failed"] > 0 or report["refused"] > 0 or report["state"] == "open")


def _summary(row: RowOutcome) -> Sequence[str]:
    code = row["exit_code"]
    why = "" if row["state"] == "succeeded" else row["reason"] or ("" if code is None else _exit(code))
    took = "-" if row["seconds"] is None else format_duration(round(row["seconds"], 1))
    peak = format_size(row["peak"]) if row["peak"] else "-"
    return str(row["row"]), row["id"], row["name"], row["state"], str(row["attempt"]), took, peak, why


def report_lines(report: BatchReport) -> list[str]:
    """What a batch achieved, in words."""
    counts = [f"{report['succeeded']:,} succeeded"]
    counts += [f"{many:,} {name}" for name, many in _otherwise(report) if many]
    going = "" if report["state"] == "over" else ", and it is not over"
    lines = [f"batch {report['batch']} ({report['name']}): {', '.join(counts)} of {report['rows']:,}{going}"]
    if report["makespan"]:
        lines += _achieved(report)
    waves = report["waves"] if len(report["waves"]) > 1 else []
    lines += [_wave(wave, report["state"]) for wave in waves[:_MOST_WAVES]]
    if len(waves) > _MOST_WAVES:
        lines.append(f"and {len(waves) - _MOST_WAVES:,} more waves (--json tells of all)")
    return lines


def _otherwise(report: BatchReport) -> list[tuple[str, int]]:
    return [("failed", report["failed"]), ("refused", report["refused"])]


def _achieved(report: BatchReport) -> Iterator[str]:
    took, alone = _time(report["makespan"]), _time(report["sequential"])
    faster = f", {report['speedup']:.1f} times as long" if report["speedup"] is not None else ""
    yield f"it took {took}; one after another its rows take {alone}{faster}"
    single, saved = _hours(report["gpu_hours_sequential"]), _hours(report["gpu_hours_saved"])
    yield f"GPU-hours: {_hours(report['gpu_hours'])} used, {single} one after another, {saved} saved"
    most, ooms = output.many(report["most_at_once"], "row"), output.many(report["ooms"], "time")
    retries = f"{report['retries']:,} {'retry' if report['retries'] == 1 else 'retries'}"
    tried = f", {output.many(report['profiles'], 'job')} to try rows out" if report["profiles"] else ""
    yield f"at most {most} at once, {ooms} out of memory, {retries}{tried}"
    yield f"times of single rows: {report['evidence']}"


def _wave(wave: Any, state: str) -> str:
    begin, end = wave["started_at"], wave["ended_at"]
    if begin and end:
        took = _time((instant(end) - instant(begin)).total_seconds())
    else:  # of a batch that was given up nothing is to be waited for
        took = "not over" if begin else "never begun" if state == "over" else "not begun"
    return f"wave {wave['wave']}: {output.many(wave['rows'], 'row')}, {took}"


def _time(seconds: float) -> str:
    return format_duration(round(seconds, 1))


def _hours(hours: float) -> str:
    if abs(hours) < 0.0001:
        return "0"
    return f"{hours:.2f}" if abs(hours) >= 1 else f"{hours:.2g}"
