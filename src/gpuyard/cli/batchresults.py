"""What a batch leaves in a folder: what its GPUs did, who had which of them when, and how policies compare."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.cli import output

if TYPE_CHECKING:
    from gpuyard.client import Client
    from gpuyard.monitor.course import Went
    from gpuyard.recordings.series import Recording

_PIECE = 2**20
_LOOK, _PATIENCE = 0.2, 3.0
"""Seconds between questions for a look at the GPUs, and for how long one is waited for."""


class Results(NamedTuple):
    """What came of a batch."""

    told: dict[str, Any]
    """As --json has it: the batch's report, its outcomes, `summary` and `files`."""
    recording: Recording

    @property
    def code(self) -> int:
        """The exit code that says whether all is well."""
        return int(self.told["failed"] > 0 or self.told["refused"] > 0 or self.told["state"] == "open")


def write_files(client: Client, id: str, out: Path, drawn: Sequence[str], policy: str = "") -> Results:
    """Write what the GPUs did while a batch ran, and who had which."""
    from gpuyard.monitor import course, folder
    from gpuyard.monitor.edges import HELD

    standing, report = client.batch(id), client.batch_report(id)
    policy, now = policy or str(client.policy()["policy"]), time.time()
    jobs = course.went(client, [row["id"] for row in (*standing["ended"], *standing["running"])], now)
    begin = min((one.submitted for one in jobs), default=now)
    end = max((stay.end for one in jobs for stay in one.stays), default=now)
    recording = _recorded(client, begin, end)
    summary = _summary(policy, jobs, recording)
    output.say("drawing ..." if drawn else "writing ...")
    files = [
        *folder.write_recorded(out, recording, held=HELD),
        course.write_jobs(out / "jobs.csv", jobs),
        course.write_allocations(out / "task_allocation_log.csv", jobs, begin),
        folder.write_summary(out, summary),
        *_write_gantt(client, out, jobs, policy, begin),
        *folder.write_drawn(out, recording, f"{standing['name']}, {policy}", drawn),
    ]
    _tell(summary, out, files)
    told = {**report, "outcomes": standing["ended"], "refusals": standing["refusals"], "summary": summary}
    return Results({**told, "files": [str(path) for path in files]}, recording)


def _recorded(client: Client, begin: float, end: float) -> Recording:
    """What all GPUs did then; the look that follows the end is waited for, so that none before it is missed."""
    from gpuyard.monitor.edges import HELD, to_edges
    from gpuyard.monitor.sources import open_source
    from gpuyard.recordings.series import METRICS

    source = open_source("recordings", lambda: client)
    while True:
        now = time.time()
        found = source.read(list(METRICS), begin - HELD, max(end, now), step=1.0)
        newest = max((float(one.at[-1]) for one in found.series if len(one.at)), default=0.0)
        if newest >= end or now > end + _PATIENCE:
            return to_edges(found, begin, end)
        time.sleep(_LOOK)


def _summary(policy: str, jobs: Sequence[Went], recording: Recording) -> dict[str, Any]:
    from gpuyard.monitor import course
    from gpuyard.monitor.summing import gpu_summaries, overall

    gpus, had = gpu_summaries(recording), {gpu for one in jobs for stay in one.stays for gpu in stay.gpus}
    for gpu in gpus:
        gpu["used"] = gpu["index"] in had  # processes are not seen of every job
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


def _write_gantt(client: Client, out: Path, jobs: Sequence[Went], policy: str, begin: float) -> Sequence[Path]:
    from gpuyard.monitor.course import schedule
    from gpuyard.sim.figures import save
    from gpuyard.sim.gantt import gantt

    machine = client.gpus()
    memories = [float(gpu["memory_total"] or 1.0) for gpu in machine["gpus"]]
    title = f"{policy}, simulated GPUs" if machine["simulated"] else policy
    return save(gantt(schedule(jobs, memories, title, begin)), out, "gantt")


def _tell(summary: Mapping[str, Any], out: Path, files: Sequence[Path]) -> None:
    from gpuyard.units import format_duration, format_plain

    for sentence in summary["warnings"]:
        output.say(f"gpuyard: warning: {sentence}")
    times = {name: summary[name] for name in ("makespan", "wait_mean", "turnaround_mean")}
    told = {name: "-" if value is None else format_duration(round(value, 1)) for name, value in times.items()}
    busy = "-" if summary["utilization"] is None else f"{summary['utilization']:.0f} %"
    energy = "" if summary["energy_wh"] is None else f", {format_plain(summary['energy_wh'])} Wh"
    simulated = " (simulated)" if summary["simulated"] else ""
    output.say(
        f"policy {summary['policy']}: makespan {told['makespan']}, mean wait {told['wait_mean']}, mean turnaround "
        f"{told['turnaround_mean']}; GPUs{simulated}: {busy} busy on average{energy}"
    )
    output.say(f"written to {out}: {', '.join(path.name for path in files)}")


def keep_logs(client: Client, ids: Sequence[str], folder: Path) -> None:
    """Keep what the jobs printed; the yard itself is thrown away."""
    folder.mkdir(parents=True, exist_ok=True)
    for id in ids:
        job = client.job(id)
        if job["output"]:  # it went to a file of the user's own
            continue
        name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in job["name"] or "")
        with (folder / f"{id}-{name}.txt".replace("-.txt", ".txt")).open("wb") as file:
            offset = 0
            while data := (part := client.log(id, offset, size=_PIECE)).data:
                file.write(data)
                offset = part.next_offset


def compare(out: Path, found: Mapping[str, Results], drawn: Sequence[str]) -> None:
    """Put policies beside each other: a figure, a table, and what the GPUs did under each."""
    from gpuyard.cli.table import lines
    from gpuyard.monitor import folder
    from gpuyard.monitor.comparison import MEASURES, write_comparison
    from gpuyard.monitor.plots import write_plots

    summaries = {policy: one.told["summary"] for policy, one in found.items()}
    files = write_comparison(out, summaries)
    recordings = [(policy, one.recording) for policy, one in found.items()]
    known = [name for name in drawn if any(folder.has_values(one, name) for _, one in recordings)]
    files += write_plots(recordings, known, out, layout="stacked", title="Policies compared") if known else []
    heads = ("POLICY", "SUCCEEDED", *(measure.title.upper() for measure in MEASURES))
    rows = [(policy, _of_all(one), *_cells(one)) for policy, one in summaries.items()]
    output.say("\n".join(lines(heads, rows, None)))
    output.say(f"written to {out}: {', '.join(path.name for path in files)}")


def _of_all(summary: Mapping[str, Any]) -> str:
    return f"{summary['succeeded']} of {summary['jobs']}"


def _cells(summary: Mapping[str, Any]) -> Sequence[str]:
    from gpuyard.monitor.comparison import MEASURES
    from gpuyard.units import format_duration, format_plain

    def cell(value: float | None, unit: str) -> str:
        if value is None:
            return "-"
        return format_duration(round(value, 1)) if unit == "s" else f"{format_plain(value)} {unit}"

    return [cell(summary[measure.key], measure.unit) for measure in MEASURES]
