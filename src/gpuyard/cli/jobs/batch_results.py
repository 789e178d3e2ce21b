"""A batch as a live table or a line per event, and afterwards its summary, files and plots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.cli.terminal import output
from gpuyard.cli.terminal.live_view import LiveView
from gpuyard.cli.terminal.styled_lines import Line, Piece, clip, table, text_columns
from gpuyard.cli.terminal.text_table import far_of, indices, instant, now, print_table, visible, wrap
from gpuyard.client.retry import patiently
from gpuyard.units import format_duration, format_size

if TYPE_CHECKING:
    from gpuyard.api.batch_types import BatchReport, BatchStanding, RowOutcome
    from gpuyard.api.types import Job
    from gpuyard.client.client import Client
    from gpuyard.monitor.summaries import JobRun
    from gpuyard.recordings.series import Recording


_LIVE_PERIOD, _PERIOD = 1.0, 30.0
"""Seconds after which to ask again though no row has ended: for a live view, and for lines."""
_OVERLAP = 10.0  # seconds for which ended rows are asked for twice: what ended first may be written last
_MOST_SHOWN, _MOST_WAVES = 30, 20


def follow(client: Client, id: str, quiet: bool = False) -> None:
    """Return when a batch is over; show its state, unless quiet. A daemon that goes away is waited for."""
    changes = _Changes()
    with LiveView(_picture, changes.lines, to_stderr=True, live=not quiet) as view:
        period = _LIVE_PERIOD if view.live else _PERIOD
        over, since = None, 0.0
        while True:
            wait = 0.0 if over is None else period
            standing = patiently(client.batch, id, wait=wait, over=over, since=since, say=output.say)
            if not quiet:
                view.show(standing)
            if standing["state"] == "over":
                return
            over = _over(standing)
            ends = [instant(row["ended_at"]).timestamp() for row in standing["ended"] if row["ended_at"]]
            since = max([since, *(end - _OVERLAP for end in ends)])
            time.sleep(0.05)


def _over(standing: BatchStanding) -> int:
    from gpuyard.api.types import OVER

    return sum(count for state, count in standing["states"].items() if state in OVER)


@dataclass(slots=True)
class _Changes:
    ended: set[str] = field(default_factory=set)
    wave: int = 0

    def lines(self, standing: BatchStanding) -> Iterator[str]:
        for row in standing["ended"]:
            if row["id"] not in self.ended:
                self.ended.add(row["id"])
                yield line_of(row)
        wave = standing["wave"]
        if wave is not None and wave != self.wave and standing["waves"] > 1:
            self.wave = wave
            yield f"wave {wave} of {standing['waves']}"


def line_of(row: RowOutcome) -> str:
    """`row 3 (job 19, train.py): succeeded after 5.2s on GPU 0, peak 1.8G`."""
    took = f" after {_time(row['seconds'])}" if row["seconds"] is not None else ""
    where = f" on GPU {indices(row['gpus'])}" if row["gpus"] and row["seconds"] is not None else ""
    peak = f", peak {format_size(row['peak'])}" if row["peak"] else ""
    return f"row {row['row']} (job {row['id']}, {row['name']}): {_ending(row)}{took}{where}{peak}"


def _ending(row: RowOutcome) -> str:
    """`failed (exit code 3, attempt 2)`."""
    code = row["exit_code"]
    why = row["reason"] or ("" if code is None else _exit(code))
    said = [why] if why and row["state"] != "succeeded" else []
    if row["attempt"] > 1:
        said.append(f"attempt {row['attempt']}")
    return row["state"] + (f" ({', '.join(said)})" if said else "")


def _exit(code: int) -> str:
    return output.signal_name(code) or f"exit code {code}"


_HEADS = {"ROW": 9, "JOB": 8, "NAME": 3, "GPU": 7, "MEMORY": 5, "FOR": 6, "PROGRESS": 4}


def _picture(standing: BatchStanding, width: int) -> list[Line]:
    running = standing["running"]
    cells = [_cells(job) for job in running[:_MOST_SHOWN]]
    head, rows = table(text_columns(_HEADS, cells, soft=("NAME", "PROGRESS")), width)
    lines: list[Line] = [[Piece(text)] for text in wrap(head_line(standing), width)]
    lines += [[Piece(head, "title")], *rows]
    if len(running) > _MOST_SHOWN:
        lines.append([Piece(f"and {len(running) - _MOST_SHOWN} more")])
    return [clip(line, width) for line in lines]


def _cells(job: Job) -> Sequence[str]:
    row, began = job["row"], job["started_at"]
    took = format_duration(round((now() - instant(began)).total_seconds())) if began else "-"
    number = str(row["number"]) if row else "-"
    return number, job["id"], job["name"] or "", indices(job["gpus"]), _memory(job), took, far_of(job)


def _memory(job: Job) -> str:
    """`1.8G of 2G`: used, of what was reserved."""
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
    """Print how every row ended, and what the batch achieved; returns the exit code."""
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
    counts = [f"{report['succeeded']:,} succeeded"]
    counts += [
        f"{many:,} {name}" for name, many in (("failed", report["failed"]), ("refused", report["refused"])) if many
    ]
    going = "" if report["state"] == "over" else ", and it is not over"
    name = visible(report["name"])
    lines = [f"batch {report['batch']} ({name}): {', '.join(counts)} of {report['rows']:,}{going}"]
    if report["makespan"]:
        lines += _achieved(report)
    waves = report["waves"] if len(report["waves"]) > 1 else []
    lines += [_wave(wave, report["state"]) for wave in waves[:_MOST_WAVES]]
    if len(waves) > _MOST_WAVES:
        lines.append(f"and {len(waves) - _MOST_WAVES:,} more waves (--json tells of all)")
    return lines


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
    else:  # nothing more comes of a cancelled batch
        took = "not over" if begin else "never begun" if state == "over" else "not begun"
    return f"wave {wave['wave']}: {output.many(wave['rows'], 'row')}, {took}"


def _time(seconds: float) -> str:
    return format_duration(round(seconds, 1))


def _hours(hours: float) -> str:
    if abs(hours) < 0.0001:
        return "0"
    return f"{hours:.2f}" if abs(hours) >= 1 else f"{hours:.2g}"


_LOG_PIECE = 2**20
_RECORDING_PERIOD, _RECORDING_WAIT = 0.2, 3.0
"""Seconds between requests for the last sample, and the longest wait for it."""


class Results(NamedTuple):
    document: dict[str, Any]  # as --json has it: the batch's report, its outcomes, `summary` and `files`
    recording: Recording

    @property
    def code(self) -> int:
        return int(self.document["failed"] > 0 or self.document["refused"] > 0 or self.document["state"] == "open")


def write_files(client: Client, id: str, out: Path, drawn: Sequence[str], policy: str = "") -> Results:
    from gpuyard.monitor import output_folder
    from gpuyard.monitor import summaries as course
    from gpuyard.monitor.tracks import HELD

    standing, report = client.batch(id), client.batch_report(id)
    policy, now = policy or str(client.policy()["policy"]), time.time()
    jobs = course.job_runs(client, [row["id"] for row in (*standing["ended"], *standing["running"])], now)
    begin = min((one.submitted for one in jobs), default=now)
    end = max((stay.end for one in jobs for stay in one.stays), default=now)
    recording = _read_recording(client, begin, end)
    summary = _metrics_summary(policy, jobs, recording)
    output.say("drawing ..." if drawn else "writing ...")
    files = [
        *output_folder.write_recorded(out, recording, held=HELD),
        course.write_jobs(out / "jobs.csv", jobs),
        course.write_allocations(out / "task_allocation_log.csv", jobs, begin),
        output_folder.write_summary(out, summary),
        *_write_gantt(client, out, jobs, policy, begin),
        *output_folder.write_drawn(out, recording, f"{standing['name']}, {policy}", drawn),
    ]
    _print_metrics(summary, out, files)
    document = {**report, "outcomes": standing["ended"], "refusals": standing["refusals"], "summary": summary}
    return Results({**document, "files": [str(path) for path in files]}, recording)


def _read_recording(client: Client, begin: float, end: float) -> Recording:
    """Metrics of all GPUs; waits for the first sample after the end, so that none before it is missed."""
    from gpuyard.monitor.sources import open_source
    from gpuyard.monitor.tracks import HELD, to_edges
    from gpuyard.recordings.series import METRICS

    source = open_source("recordings", lambda: client)
    while True:
        now = time.time()
        found = source.read(list(METRICS), begin - HELD, max(end, now), step=1.0)
        newest = max((float(one.at[-1]) for one in found.series if len(one.at)), default=0.0)
        if newest >= end or now > end + _RECORDING_WAIT:
            return to_edges(found, begin, end)
        time.sleep(_RECORDING_PERIOD)


def _metrics_summary(policy: str, jobs: Sequence[JobRun], recording: Recording) -> dict[str, Any]:
    from gpuyard.monitor import summaries as course
    from gpuyard.monitor.summaries import gpu_summaries, overall

    gpus, had = gpu_summaries(recording), {gpu for one in jobs for stay in one.stays for gpu in stay.gpus}
    for gpu in gpus:
        gpu["used"] = gpu["index"] in had  # not every job has visible processes
    energy = [gpu["energy_wh"] for gpu in gpus if gpu["energy_wh"] is not None]
    return {
        "policy": policy,
        "simulated": recording.simulated,
        **course.numbers(jobs),
        "utilization": overall(recording, "utilization"),
        "energy_wh": sum(energy) if energy else None,
        "gpus": gpus,
        "warnings": recording.warnings,
    }


def _write_gantt(client: Client, out: Path, jobs: Sequence[JobRun], policy: str, begin: float) -> Sequence[Path]:
    from gpuyard.figures.style import save
    from gpuyard.monitor.summaries import schedule
    from gpuyard.sim.gantt import gantt

    machine = client.gpus()
    memories = [float(gpu["memory_total"] or 1.0) for gpu in machine["gpus"]]
    title = f"{policy}, simulated GPUs" if machine["simulated"] else policy
    return save(gantt(schedule(jobs, memories, title, begin)), out, "gantt")


def _print_metrics(summary: Mapping[str, Any], out: Path, files: Sequence[Path]) -> None:
    from gpuyard.units import format_plain

    for sentence in summary["warnings"]:
        output.say(f"gpuyard: warning: {sentence}")
    names = ("makespan", "wait_mean", "turnaround_mean")
    times = {name: "-" if summary[name] is None else _time(summary[name]) for name in names}
    busy = "-" if summary["utilization"] is None else f"{summary['utilization']:.0f} %"
    energy = "" if summary["energy_wh"] is None else f", {format_plain(summary['energy_wh'])} Wh"
    simulated = " (simulated)" if summary["simulated"] else ""
    output.say(
        f"policy {summary['policy']}: makespan {times['makespan']}, mean wait {times['wait_mean']}, mean turnaround "
        f"{times['turnaround_mean']}; GPUs{simulated}: {busy} busy on average{energy}"
    )
    output.say(f"written to {out}: {', '.join(path.name for path in files)}")


def keep_logs(client: Client, ids: Sequence[str], folder: Path) -> None:
    """Keep the jobs' output, that of all attempts; the daemon's folder is thrown away."""
    folder.mkdir(parents=True, exist_ok=True)
    for id in ids:
        job = client.job(id)
        if job["output"]:  # a file of the user
            continue
        name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in job["name"] or "")
        with (folder / f"{id}-{name}.txt".replace("-.txt", ".txt")).open("wb") as file:
            for attempt in range(1, job["attempt"] + 1):
                if job["attempt"] > 1:
                    file.write(f"--- attempt {attempt} ---\n".encode())
                offset = 0
                while data := (part := client.log(id, offset, size=_LOG_PIECE, attempt=attempt)).data:
                    file.write(data)
                    offset = part.next_offset


def compare(out: Path, found: Mapping[str, Results], drawn: Sequence[str]) -> None:
    """Compare policies: a figure, a table, and the metrics under each."""
    from gpuyard.cli.terminal.text_table import lines
    from gpuyard.monitor import output_folder
    from gpuyard.monitor.plots import MEASURES, write_comparison, write_plots

    summaries = {policy: one.document["summary"] for policy, one in found.items()}
    files = write_comparison(out, summaries)
    recordings = [(policy, one.recording) for policy, one in found.items()]
    known = [name for name in drawn if any(output_folder.has_values(one, name) for _, one in recordings)]
    files += write_plots(recordings, known, out, layout="stacked", title="Policies compared") if known else []
    heads = ("POLICY", "SUCCEEDED", *(measure.title.upper() for measure in MEASURES))
    rows = [(policy, f"{one['succeeded']} of {one['jobs']}", *_policy_cells(one)) for policy, one in summaries.items()]
    output.say("\n".join(lines(heads, rows, None)))
    output.say(f"written to {out}: {', '.join(path.name for path in files)}")


def _policy_cells(summary: Mapping[str, Any]) -> Sequence[str]:
    from gpuyard.monitor.plots import MEASURES
    from gpuyard.units import format_duration, format_plain

    def cell(value: float | None, unit: str) -> str:
        if value is None:
            return "-"
        return format_duration(round(value, 1)) if unit == "s" else f"{format_plain(value)} {unit}"

    return [cell(summary[measure.key], measure.unit) for measure in MEASURES]
