"""`gpuyard forecast`: how well GPU metrics could have been predicted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import DaemonOptions, Json, argument, option, option_groups, past_time
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuyard.client.client import Client
    from gpuyard.monitor.forecasts import Evaluation
    from gpuyard.recordings.series import Recording, Series

_FREE, _USED = "memory_free", "memory_used"


@dataclass(frozen=True, slots=True)
class SpanOptions:
    gpus: Annotated[str | None, option("--gpus", "--gpu", "0,1", "Only these GPUs.")] = None
    since: Annotated[
        str | None, option("--since", "WHEN", "From then on: 1h ago, a time, a date (1h; files: all).")
    ] = None
    metric: Annotated[str, option("--metric", "NAME", "What is foreseen.")] = _FREE
    url: Annotated[str | None, option("--url", "URL", "Where Prometheus is ($GPUYARD_PROMETHEUS_URL).")] = None


@dataclass(frozen=True, slots=True)
class ModelOptions:
    lag: Annotated[int, option("--lag", "N", "Samples that are looked ahead.", min=1)] = 10
    window: Annotated[int, option("--window", "N", "Samples that a forecast is made of.", min=3)] = 60
    capacity: Annotated[str | None, option("--capacity", "SIZE", "What a GPU has, if that is not recorded.")] = None
    request: Annotated[str | None, option("--request", "SIZE", "Judge decisions on a job that asks for so much.")] = (
        None
    )


@option_groups
def forecast(
    daemon: DaemonOptions,
    span: SpanOptions,
    model: ModelOptions,
    source: Annotated[
        str,
        argument(
            "[JOB|SOURCE]",
            "A job, recordings (the daemon's), prometheus, a CSV of nvidia-smi, recording.json, a file of values.",
            show_default=False,
        ),
    ] = "recordings",
    out: Annotated[
        Path | None, option("--out", "-o", "DIR", "Where plots go; none if not said.", file_okay=False)
    ] = None,
    json: Json = False,
) -> None:
    """Tell how well free memory, or another metric, could have been foreseen, and plot that."""
    from gpuyard.errors import suggest
    from gpuyard.recordings.series import METRICS

    if model.window < model.lag + 2:  # fewer than two pairs of values make no line
        raise UserError(
            f"--window {model.window} is too short to look {model.lag} samples ahead; "
            f"write at least --window {model.lag + 2}, or a smaller --lag"
        )
    if span.metric not in METRICS:
        raise UserError(f"--metric: there is no '{span.metric}'{suggest(span.metric, METRICS)} ({', '.join(METRICS)})")
    found, plain = _read(source, span, daemon.client)
    for warning in found.warnings:
        output.say(f"gpuyard: warning: {warning}")
    rows = _evaluate(found, span.metric, model, plain)
    plots = _plot(rows, span.metric, out) if out is not None else []
    if json:
        output.print_json([{**_about(series), **evaluation.to_json()} for series, evaluation in rows])
    else:
        _print(rows, span.metric, plain)
    for path in plots:
        output.say(f"wrote {path}")


def _read(source: str, span: SpanOptions, client: Callable[[], Client]) -> tuple[Recording, bool]:
    """The recording of a source; True: a file of plain numbers without a unit."""
    import math
    from datetime import UTC, datetime

    from gpuyard.cli.monitoring.plot_sources import named_gpus
    from gpuyard.monitor.sources import open_source
    from gpuyard.recordings.series import Recording

    if source.endswith((".json", ".json.gz")):
        from gpuyard.recordings.textform import read_recording

        return read_recording(Path(source)), False
    if Path(source).is_file():
        from gpuyard.monitor.sources.csv_files import read_plain

        if (series := read_plain(Path(source), span.metric)) is not None:
            return Recording(float(series.at[0]), float(series.at[-1]), [series]), True
    job = source if source.isdigit() and not Path(source).exists() else ""
    opened = open_source("recordings" if job else source, client, url=span.url or "")
    start, end = -math.inf, math.inf
    if not (job or Path(source).is_file()) or span.since:
        start = past_time(span.since or "1h").timestamp()
        end = datetime.now(UTC).timestamp()
    metrics = [_FREE, _USED] if span.metric in (_FREE, _USED) else [span.metric]
    return opened.read(metrics, start, end, gpus=named_gpus(span.gpus), job=job, step=None if job else 1.0), False


def _evaluate(recording: Recording, metric: str, model: ModelOptions, plain: bool) -> list[tuple[Series, Evaluation]]:
    from gpuyard.monitor.forecasts import evaluate
    from gpuyard.units import parse_size

    request = None if model.request is None else parse_size(model.request)
    found = []
    for series in recording.of(metric):
        capacity = parse_size(model.capacity) if model.capacity else _capacity(series, recording, metric)
        evaluation = evaluate(
            series, lag=model.lag, window=model.window, capacity=capacity, decides=metric == _FREE, request=request
        )
        if evaluation is None:
            output.say(
                f"{_label(series)}: fewer than {model.window + model.lag} values without a gap, nothing is foreseen"
            )
            continue
        found.append((series, evaluation))
        if evaluation.errors.zeros:
            output.say(f"{_label(series)}: {evaluation.errors.zeros:,} values of 0 do not count in MAPE and MPE")
        if series.period > 1.5 and not plain:
            output.say(f"{_label(series)}: values are {series.period:g} s apart, so {model.lag} of them are "
                       f"{model.lag * series.period:g} s ahead")  # fmt: skip
    if not found:
        raise UserError(
            f"there is nothing to evaluate: no {metric} of {model.window + model.lag} values on end; "
            "take a longer span (--since) or a shorter --window"
        )
    return found


def _capacity(series: Series, recording: Recording, metric: str) -> float:
    from gpuyard.monitor.forecasts import capacity_of
    from gpuyard.recordings.series import METRICS

    if metric in (_FREE, _USED):
        return capacity_of(series, recording.of(_USED if metric == _FREE else _FREE))
    most = METRICS[metric].most
    return float("inf") if most is None else most


def _plot(rows: Sequence[tuple[Series, Evaluation]], metric: str, out: Path) -> list[Path]:
    from gpuyard.monitor.plots import write_forecast_plots

    return [
        path
        for series, evaluation in rows
        for path in write_forecast_plots(f"forecast-{_file_name(series)}", _label(series), metric, evaluation, out)
    ]


def _about(series: Series) -> dict[str, Any]:
    subject = series.subject
    return {
        "gpu": subject.gpu, "uuid": subject.uuid or None, "name": subject.name or None, "job": subject.job or None,
        "metric": series.metric,
    }  # fmt: skip


def _label(series: Series) -> str:
    subject = series.subject
    host = f"{subject.host}, " if subject.host else ""
    return f"{host}GPU {subject.gpu}" + (f", job {subject.job}" if subject.job else "")


def _file_name(series: Series) -> str:
    parts = (series.subject.host, f"gpu{series.subject.gpu}", series.subject.job and f"job{series.subject.job}")
    return "-".join("".join(c if c.isalnum() else "-" for c in part) for part in parts if part)


def _print(rows: Sequence[tuple[Series, Evaluation]], metric: str, plain: bool) -> None:
    from gpuyard.cli.terminal.text_table import print_table
    from gpuyard.recordings.series import METRICS

    unit = "" if plain else METRICS[metric].unit
    divisor, name = (2.0**20, "MiB") if unit == "bytes" else (1.0, unit)
    head = ["", "FORECASTS", *(f"{one} {name}".strip() for one in ("MAE", "RMSE")), f"MSE {name}²" if name else "MSE"]
    head += ["MAPE %", "MPE %"]
    head += ["CBP WRONG", "PP WRONG"] if metric == _FREE else []
    print_table(head, [_row(series, evaluation, divisor, metric) for series, evaluation in rows])


def _row(series: Series, evaluation: Evaluation, divisor: float, metric: str) -> tuple[str, ...]:
    errors = evaluation.errors
    sizes = (errors.mae / divisor, errors.rmse / divisor, errors.mse / divisor**2)
    percents = ("-" if one is None else f"{one:.2f}" for one in (errors.mape, errors.mpe))
    wrong = (
        "-" if one.share is None else f"{100 * one.share:.1f} % of {one.admitted:,}"
        for one in evaluation.verdicts
        if metric == _FREE
    )
    return (_label(series), f"{len(evaluation.at):,}", *(f"{size:,.4g}" for size in sizes), *percents, *wrong)
