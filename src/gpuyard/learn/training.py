"""Training of a policy: from traces to a policy file, by evolution of weights on the simulator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cmaes import CMA

from gpuyard.errors import UserError
from gpuyard.files import replace_file
from gpuyard.learn.search import LONGEST, Baseline, Trials, clone_heuristic, fitness, sample_queues, tuned_rule
from gpuyard.learn.trace_windows import Problem, Span, Window, cut, draw
from gpuyard.policies.features import COLUMNS, features
from gpuyard.policies.network import BASES, JOB_FEATURES, SIZES, Network, untrained
from gpuyard.policies.trained_policy import Learned
from gpuyard.sim.trace import Floats

LOG_KEYS = ("sjf", "saf")  # heuristics with logarithmic keys: additions count alike for short and long jobs
SAMPLED = 6  # windows from which queues are sampled


@dataclass(frozen=True, slots=True)
class Recipe:
    objective: str = "slowdown"
    hidden: int = 0
    generations: int = 32
    population: int = 20
    windows: int = 128
    window: int = 512  # jobs of a window that count
    warm: int = 64  # jobs before them
    altered: float = 0.5  # which part of the windows is altered
    sigma: float = 0.8  # how far apart the first candidates are
    linear: float = 0.5  # the part of the generations that searches only linear weights, before hidden units join
    base: str = "auto"
    longest: float = LONGEST  # how much longer the longest waits may be at no cost
    starvation: float = 20.0
    check_every: int = 4
    patience: int = 8  # checks without improvement that end a training
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden not in SIZES:
            raise UserError(f"a network has {', '.join(map(str, SIZES))} hidden units (0: linear), not {self.hidden}")
        if self.base != "auto" and self.base not in BASES:
            raise UserError(f"--base takes auto or one of {', '.join(BASES)}, not '{self.base}'")
        for name in ("generations", "population", "windows"):
            if getattr(self, name) < (4 if name == "population" else 1):
                raise UserError(f"--{name} must be at least {4 if name == 'population' else 1}")


def recipe_for(discipline: str, **given: Any) -> Recipe:
    """A recipe that takes two cores a minute and a half, but for what is given.

    Disciplines that keep a chosen head have it judged half as often as others, so there can be more of everything.
    """
    usual = {"windows": 160, "generations": 36} if discipline in ("commit", "easy-shadow") else {}
    return Recipe(**{**usual, **given})


class Step(NamedTuple):
    generation: int
    ratio: float  # the best candidate's, on the windows that are trained on
    checked: float | None  # the mean's, on windows of the next part of the trace, if it was tried there
    best: float  # the least of those so far, infinite before the first; 1 is the best heuristic of each window


@dataclass
class Course:
    search: CMA
    best: Floats
    best_value: float
    steps: list[Step] = field(default_factory=list)
    unimproved: int = 0


Watch = Callable[[Step, int], None]  # called after every generation, with the number of all


def train(
    problems: Sequence[Problem],
    recipe: Recipe,
    *,
    processes: int | None = None,
    watch: Watch | None = None,
    checkpoint: Path | None = None,
) -> tuple[Learned, list[Step]]:
    """Train a policy; returns what goes into its file, not judged yet, and how the training went.

    With a checkpoint, every generation is kept there, and what is found there is gone on with.
    """
    rng = np.random.default_rng(recipe.seed)
    training, validation = _windows(problems, recipe, rng)
    with (
        Trials(training, recipe.objective, processes) as trials,
        Trials(validation, recipe.objective, processes) as checks,
    ):
        baseline, reference = trials.baseline(), checks.baseline()
        start = _start(problems, training, recipe, baseline, trials, rng)
        course = _resumed(checkpoint, problems, recipe) or _begun(start, recipe, trials, baseline, checks, reference)
        rule = tuned_rule(trials, baseline, recipe.starvation, recipe.seed)
        _search(course, start, recipe, trials, baseline, checks, reference, watch, checkpoint, problems)
    network = replace(start, parameters=course.best)
    samples = sample_queues(network, training[:SAMPLED], 100, rng)
    learned = Learned(
        network, *_ranges(samples), problems[0].discipline, _record(problems, recipe, course, baseline, samples, rule)
    )
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return learned, course.steps


def window_size(span: Span, most: int) -> int:
    """Jobs of a window of this span: `most`, or fewer, so that there are several windows."""
    return int(np.clip(len(span) // 4, min(8, len(span)), most))


def _windows(
    problems: Sequence[Problem], recipe: Recipe, rng: np.random.Generator
) -> tuple[list[Window], list[Window]]:
    """Windows to train on, of all traces in turn; and windows to select by."""
    training: list[Window] = []
    for i in range(recipe.windows):
        problem = problems[i % len(problems)]
        size = window_size(problem.training, recipe.window)
        training.append(draw(problem, problem.training, size, recipe.warm, rng, rng.random() < recipe.altered))
    validation: list[Window] = []
    for problem in problems:
        span, size = problem.validation, window_size(problem.validation, recipe.window // 2)
        for phase in range(0, size, max(size // 2, 1)):
            validation += cut(problem, span, size, recipe.warm, phase)
        # The part to choose by is short: windows of the part before that were not trained on help to be sure.
        seen, share = Span(0, problem.validation.end), max(8, recipe.windows // 3 // len(problems))
        validation += [draw(problem, seen, size, recipe.warm, rng) for _ in range(share)]
    return training, validation


def _start(
    problems: Sequence[Problem], training: Sequence[Window], recipe: Recipe, baseline: Baseline, trials: Trials,
    rng: np.random.Generator,
) -> Network:  # fmt: skip
    """The start of the search: the heuristic, or a clone of the best one if that does better."""
    base = recipe.base
    if base == "auto":
        base = min(LOG_KEYS, key=lambda name: float(np.log(baseline.costs[name]).mean()))
    plain = untrained(base, recipe.hidden, recipe.starvation, rng)
    if baseline.best == base:
        return plain
    sample = sample_queues(plain, training[:SAMPLED], 100, rng)
    alike = clone_heuristic(plain, baseline.best, sample)
    found = trials.outcomes([plain.weights, alike.weights])
    values = [fitness(outcomes, baseline.cost, baseline.p99, recipe.longest).value for outcomes in found]
    return alike if values[1] < values[0] else plain


def _begun(
    start: Network, recipe: Recipe, trials: Trials, baseline: Baseline, checks: Trials, reference: Baseline
) -> Course:
    mean = start.parameters if recipe.linear <= 0 else start.parameters[:JOB_FEATURES]
    search = CMA(mean, recipe.sigma, seed=recipe.seed, population_size=recipe.population)
    return Course(search, start.parameters, _checked(start, trials, baseline, checks, reference, recipe.longest)[1])


def _search(
    course: Course, start: Network, recipe: Recipe, trials: Trials, baseline: Baseline, checks: Trials,
    reference: Baseline, watch: Watch | None, checkpoint: Path | None, problems: Sequence[Problem],
) -> None:  # fmt: skip
    cost, p99 = baseline.cost, baseline.p99
    while len(course.steps) < recipe.generations and course.unimproved < recipe.patience:
        if len(course.steps) >= recipe.linear * recipe.generations and course.search.dim < len(start.parameters):
            course.search = _widened(course, start, recipe)
        # A checkpoint has no state of random numbers: with these, a resumed training is the same.
        course.search._rng = np.random.RandomState([recipe.seed, len(course.steps)])
        asked = [course.search.ask() for _ in range(recipe.population)]
        tried = trials.outcomes([_with(start, x).weights for x in asked])
        found = [fitness(outcomes, cost, p99, recipe.longest) for outcomes in tried]
        course.search.tell([(x, f.value) for x, f in zip(asked, found, strict=True)])
        course.search = _search_of(_numbers_of(course.search), recipe.population)  # rounds it, as a checkpoint would
        generation, checked = len(course.steps) + 1, None
        if generation % recipe.check_every == 0 or generation == recipe.generations:
            mean = _with(start, course.search.mean)
            checked, value = _checked(mean, trials, baseline, checks, reference, recipe.longest)
            course.unimproved += 1
            if value < course.best_value:
                course.best, course.best_value, course.unimproved = mean.parameters, value, 0
        best = min([s.best for s in course.steps[-1:]] + ([] if checked is None else [checked]), default=np.inf)
        course.steps.append(Step(generation, min(found).ratio, checked, best))
        if checkpoint is not None:
            replace_file(checkpoint, _written(course, _fingerprint(problems, recipe)))
        if watch is not None:
            watch(course.steps[-1], recipe.generations)


def _widened(course: Course, start: Network, recipe: Recipe) -> CMA:
    """A search that continues from the linear one, with hidden units that have no effect yet."""
    mean = _with(start, course.search.mean).parameters
    return CMA(mean, recipe.sigma / 2.0, seed=recipe.seed + 1, population_size=recipe.population)


def _with(start: Network, found: Floats) -> Network:
    return replace(start, parameters=np.concatenate((found, start.parameters[len(found) :])))


def _checked(
    network: Network, trials: Trials, baseline: Baseline, checks: Trials, reference: Baseline, longest: float
) -> tuple[float, float]:
    """The ratio on windows to choose by, and what is chosen by: how it does there and where it was trained, together.

    Windows differ so much that the few of the part to choose by cannot tell two networks apart by themselves.
    """
    there = fitness(checks.outcomes([network.weights])[0], reference.cost, reference.p99, longest)
    here = fitness(trials.outcomes([network.weights])[0], baseline.cost, baseline.p99, longest)
    return there.ratio, (there.value * checks.count + here.value * trials.count) / (checks.count + trials.count)


def _ranges(samples: Sequence[Floats]) -> tuple[Floats, Floats]:
    seen = np.concatenate([np.stack(features(*queue)) for queue in samples], axis=1)
    return np.quantile(seen, 0.001, axis=1), np.quantile(seen, 0.999, axis=1)


def _record(
    problems: Sequence[Problem],
    recipe: Recipe,
    course: Course,
    baseline: Baseline,
    samples: Sequence[Floats],
    rule: Network,
) -> dict[str, Any]:
    """The training as the policy's file records it; no times."""
    typical = np.median(np.concatenate(samples, axis=1), axis=1)
    return {
        "recipe": asdict(recipe),
        "traces": [_described(problem) for problem in problems],
        "generations": len(course.steps),
        "best_heuristic": baseline.best,
        "tuned": rule.weights.tolist(),
        "curve": [[s.generation, round(s.ratio, 6), s.checked and round(s.checked, 6)] for s in course.steps],
        "typical": dict(zip(COLUMNS, typical.tolist(), strict=True)),
    }


def _described(problem: Problem) -> dict[str, Any]:
    trace = problem.trace
    digest = hashlib.sha256()
    for column in (trace.submit, trace.run, trace.gpus):
        digest.update(np.ascontiguousarray(column).tobytes())
    return {
        "name": problem.name,
        "jobs": len(trace),
        "trained_on": len(problem.training),
        "gpus": problem.cluster.gpus,
        "estimate": problem.estimate,
        "digest": digest.hexdigest()[:16],
    }


def _fingerprint(problems: Sequence[Problem], recipe: Recipe) -> str:
    facts = [asdict(recipe), *({**_described(p), "discipline": p.discipline} for p in problems)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _written(course: Course, fingerprint: str) -> bytes:
    found = {
        "fingerprint": fingerprint,
        "search": _numbers_of(course.search),
        "best": course.best.tolist(),
        "best_value": course.best_value,
        "steps": course.steps,
        "unimproved": course.unimproved,
    }
    return json.dumps(found).encode()


def _resumed(path: Path | None, problems: Sequence[Problem], recipe: Recipe) -> Course | None:
    if path is None or not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        best = np.array(found["best"], float)
        if found["fingerprint"] != _fingerprint(problems, recipe):
            raise UserError(
                f"{path} is of another training: other traces or options; remove it, or choose another --out"
            )
        steps = [Step(*step) for step in found["steps"]]
        search = _search_of(found["search"], recipe.population)
        course = Course(search, best, float(found["best_value"]), steps, int(found["unimproved"]))
    except (OSError, ArithmeticError, AssertionError, ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path} cannot be read, so that training cannot go on; remove it to begin anew") from None
    return course


def _numbers_of(search: CMA) -> dict[str, Any]:
    """The state of a search in numbers, lists of them and None, which JSON can hold."""
    return {name: np.asarray(value).tolist() for name, value in search.__getstate__().items()}


def _search_of(numbers: Mapping[str, Any], population: int) -> CMA:
    """The search with such a state; raises where a file does not hold what a search has."""
    if numbers["_popsize"] != population:
        raise ValueError("a search of another size")
    search = CMA(np.zeros(len(numbers["_mean"])), 1.0, population_size=population)
    state = search.__getstate__()
    if state.keys() != numbers.keys():
        raise ValueError("the state of another kind of search")
    for name, value in state.items():
        given = numbers[name]
        if isinstance(value, np.ndarray):
            given = np.array(given, value.dtype)
            if given.shape != value.shape:
                raise ValueError(f"{name} has another shape")
        elif isinstance(value, np.generic):
            given = value.dtype.type(given)
        elif not isinstance(given, bool | int | float | None):
            raise TypeError(f"{name} is no number")
        state[name] = given
    search.__setstate__(state)
    return search
