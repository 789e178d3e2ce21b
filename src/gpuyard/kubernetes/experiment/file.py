"""The file of an experiment on a cluster, and the manifests that it stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpuyard.errors import UserError
from gpuyard.experiments import keys
from gpuyard.experiments.arrivals import arrivals
from gpuyard.experiments.file import parse_experiment, read_experiment
from gpuyard.experiments.model import Experiment
from gpuyard.experiments.results import Run
from gpuyard.kubernetes.experiment.manifests import Maker
from gpuyard.kubernetes.experiment.seedconfig import experiment_of
from gpuyard.kubernetes.experiment.settings import ClusterSettings, Settings, dns_name, read_settings
from gpuyard.units import format_number


class Described(NamedTuple):
    """What a file says."""

    experiment: Experiment
    settings: Settings


def read_file(path: str | Path, **given: Any) -> Described:
    """The experiment of a file, of ours or of Kube-Knots' generator; `given` goes before what it says of the cluster.

    What results depend on besides is made a part of the experiment, so that those of other clusters are not mixed in.
    """
    file = Path(path)
    found = keys.load(file) if file.suffix.lower() == ".json" else None
    experiment = (
        parse_experiment(experiment_of(found, file), file) if isinstance(found, list) else read_experiment(file)
    )
    settings = read_settings(experiment, file)
    wanted = {key: value for key, value in given.items() if value is not None}
    settings = replace(settings, cluster=replace(settings.cluster, **wanted))
    return Described(replace(experiment, kubernetes=_kept(settings.cluster)), settings)


def _kept(cluster: ClusterSettings) -> dict[str, Any]:
    """What results depend on; not where Prometheus is, nor how long one waits between runs."""
    ignored = ("prometheus", "pause", "limit")
    return {"engine": "kubernetes", **{key: value for key, value in asdict(cluster).items() if key not in ignored}}


def write_manifests(found: Described, runs: Sequence[Run], capacity: float, out: Path) -> list[Path]:
    """Write what the first repetition of runs would submit, a folder for each, and when; the folder must be empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty; name another folder by --generate, or move it away")
    written = []
    for run in (run for run in runs if run.turn == 1):
        name = f"{run.scheduler.name}-{format_number(run.percent)}"
        folder = out / name
        folder.mkdir(parents=True)
        label = f"{dns_name(f'{found.experiment.name}-{name}', 50)}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
        maker = Maker(found.settings, run.scheduler, run.percent, capacity, label)
        times = ["second,name"]
        for arrival in arrivals(found.experiment):
            body = maker.object(arrival)
            path = folder / f"{body['metadata']['name']}.yaml"
            path.write_text(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))
            times.append(f"{format_number(round(arrival.at / found.settings.cluster.speed, 3))},{path.stem}")
            written.append(path)
        (folder / "arrivals.csv").write_text("\n".join(times) + "\n")
    return written
