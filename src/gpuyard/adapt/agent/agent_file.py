"""A learned decider as one small file: weights, what it learned from, how that went, and a hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.adapt.agent import scorer
from gpuyard.adapt.agent.scorer import Floats, Gains, Network, Range
from gpuyard.adapt.decisions import UNKNOWN, Situation
from gpuyard.errors import UserError
from gpuyard.files import content_hash, write_hashed

FORMAT = "gpuyard-adaptation-policy"
LARGEST = 10_000_000  # bytes that a file may have; those of the largest networks are far smaller
CAUTION = 0.4  # times the error of the predicted gain that the gain must be
DIGITS = 10  # significant digits in the file and in decisions, so that a loaded agent chooses the same


@dataclass(frozen=True)
class Agent:
    network: Network
    gains: Gains
    within: Range  # ranges of features in training
    noise: float  # standard deviation of an accuracy between seeds where it learned
    training: dict[str, Any]  # data and settings; no times, so that the same training gives the same file

    def weigh(self, situation: Situation) -> tuple[Floats, Floats, Floats]:
        """Probabilities of each option and of nothing; the expected gain of each option; its noise level."""
        rows = self.within.rows(situation)
        gains, unsure = self.gains.predict(rows)
        if not math.isnan(self.gains.error):
            return self.network.chances(rows), gains, CAUTION * unsure
        noise = next((n for n in (situation.noise, self.noise) if not math.isnan(n)), -math.inf)
        return self.network.chances(rows), gains, np.full(len(gains), noise)

    def action(self, situation: Situation) -> int:
        """The likeliest action; nothing if its gain is below noise."""
        chances, gains, noise = self.weigh(situation)
        chosen = int(np.argmax(chances))
        return chosen if chosen == situation.nothing or gains[chosen] >= noise[chosen] else situation.nothing

    def facts(self) -> dict[str, Any]:
        """As plain values, without the hash."""
        net = self.network
        return {
            "format": FORMAT,
            "features": scorer.VERSION,
            "network": {
                "hidden": _rounded(net.hidden),
                "bias": _rounded(net.bias),
                "out": _rounded(net.out),
                "direct": _rounded(net.direct),
            },
            "gains": {
                "weights": _rounded(self.gains.weights),
                "ridge": self.gains.ridge,
                "error": _or_null(self.gains.error),
                "points": _rounded(self.gains.points),
                "pulls": _rounded(self.gains.pulls),
            },
            "low": _rounded(self.within.low),
            "high": _rounded(self.within.high),
            "noise": _or_null(self.noise),
            "training": self.training,
        }

    @property
    def hash(self) -> str:
        return content_hash(self.facts())

    def save(self, path: Path, force: bool = False) -> None:
        """Write it atomically; an existing file stays, unless forced."""
        check_free(path, force)
        write_hashed(path, self.facts())


def check_free(path: Path, force: bool) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a directory; name the file that is to be written")
    if path.exists() and not force:
        raise UserError(f"{path} is there already; name another file, or overwrite it with --force")


def shipped() -> Path:
    """The learned decider that comes with gpuyard, trained on the recording in `examples/adapt`."""
    return Path(str(resources.files("gpuyard.adapt.agent") / "trained" / "default.json"))


def load(path: str | Path) -> Agent:
    return load_hashed(path)[0]


def load_hashed(path: str | Path) -> tuple[Agent, str]:
    """A learned decider, and the SHA-256 of the bytes that it was read from."""
    name, path = str(path), Path(path).expanduser()
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{name} is too large to be a learned decider; name another file")
        content = path.read_bytes()
        facts = json.loads(content.decode())
    except FileNotFoundError:
        raise UserError(f"there is no learned decider {name}; gpuyard adapt learn makes one") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # not text, or no JSON
        raise UserError(f"{name} is damaged, or no learned decider: {_ADVICE}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise UserError(f"{name} is no learned decider of gpuyard; gpuyard adapt learn makes one")
    if facts.get("features") != scorer.VERSION:
        raise UserError(
            f"{name} was learned on version {facts.get('features')} of the features, and this gpuyard has "
            f"version {scorer.VERSION}: {_ADVICE}"
        )
    if facts.pop("hash", None) != content_hash(facts):
        raise UserError(f"{name} is damaged: what it holds is not what was written ({_ADVICE})")
    try:
        return _read(facts), hashlib.sha256(content).hexdigest()
    except (KeyError, TypeError, ValueError):  # the hash is right: it was written so
        raise UserError(f"{name} is no learned decider: what it holds is of other kinds ({_ADVICE})") from None


def is_agent(path: Path) -> bool:
    """Whether a file is one of a learned decider, whole or not."""
    try:
        with path.open() as file:
            return FORMAT in file.read(200)
    except (OSError, UnicodeDecodeError):
        return False


_ADVICE = "make it anew with gpuyard adapt learn, or take a copy that is whole"


def _read(facts: dict[str, Any]) -> Agent:
    net = facts["network"]
    network = Network(*(np.array(net[part], dtype=float) for part in ("hidden", "bias", "out", "direct")))
    gains = facts["gains"]
    weights = np.array(gains["weights"], dtype=float)
    members, _, units = network.hidden.shape
    points, pulls = (np.array(gains[part], dtype=float) for part in ("points", "pulls"))
    within = Range(np.array(facts["low"], dtype=float), np.array(facts["high"], dtype=float))
    everything = (
        network.hidden, network.bias, network.out, network.direct, weights, points, pulls, within.low, within.high,
    )  # fmt: skip
    features, width = len(scorer.FEATURES), scorer.WIDTH
    wanted = (
        (members, features, units),
        (members, units),
        (members, units),
        (members, width),
        (width,),
        (len(pulls), features),
        (len(pulls),),
    )
    if tuple(part.shape for part in everything) != (*wanted, (features,), (features,)):
        raise ValueError("weights of other shapes")
    if not all(np.isfinite(part).all() for part in everything):
        raise ValueError("weights that are no numbers")
    return Agent(
        network, Gains(weights, float(gains["ridge"]), _or_nan(gains["error"]), points, pulls), within,
        _or_nan(facts["noise"]), dict(facts["training"]),
    )  # fmt: skip


def rounded(agent: Agent) -> Agent:
    return _read(agent.facts())


def _rounded(values: Floats | Sequence[Any]) -> Any:
    if isinstance(values, np.ndarray):
        return _rounded(values.tolist())
    return [_rounded(v) if isinstance(v, list) else float(f"{v:.{DIGITS}g}") for v in values]


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")


def _or_nan(value: Any) -> float:
    return UNKNOWN if value is None else float(value)
