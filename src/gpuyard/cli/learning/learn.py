"""`gpuyard learn place`: train a placer, and compare it with simple rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import Json, argument, option, subcommand
from gpuyard.cli.parser import command_group
from gpuyard.cli.simulator import simulation_options as o
from gpuyard.cli.simulator.simulation_options import Format, Since, Slice, Until, Where, load_trace
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.learn.evaluation import Evaluation
    from gpuyard.learn.explanation import Explanation
    from gpuyard.learn.place.placer import Score
    from gpuyard.learn.trace_windows import Problem
    from gpuyard.learn.training import Recipe, Step
    from gpuyard.policies.trained_policy import Learned


def place(
    seeds: Annotated[int, option("--seeds", "N", "Episodes to judge by; none is trained on.", min=1)] = 200,
    generations: Annotated[int, option("--generations", "N", "How long to train; 0: not at all.", min=0)] = 60,
    seed: Annotated[int, option("--seed", "N", "The same seed trains the same placer.", min=0)] = 0,
    json: Annotated[bool, option("--json", "One JSON list instead of a table.")] = False,
    out: Annotated[str | None, option("--out", "FILE", "Write the trained placer there.")] = None,
) -> None:
    """Train a placer of tasks that share GPUs, and compare it with random, round robin, least loaded and best fit."""
    from gpuyard.learn.place.placer import FIRST_TRAINING_SEED, METHODS, new_episode_set, score, train

    if seeds > FIRST_TRAINING_SEED:
        raise UserError(f"--seeds takes at most {FIRST_TRAINING_SEED:,}: those beyond are trained on")
    with output.progress_bar("training") as bars:
        placer = train(seed, generations, progress=bars.get(""))
    if out:
        placer.save(out)
    episode_set = new_episode_set(range(seeds))
    found = [score(episode_set, method, placer.weights if method == "learned" else None) for method in METHODS]
    if json:
        facts = [one._asdict() for one in found]
        output.print_json([{name: value for name, value in one.items() if name != "makespans"} for one in facts])
        return
    _print_methods(found)
    output.say(verdict(found))


def verdict(found: list[Score]) -> str:
    """One line: which method has the shortest makespan, and whether training paid off."""
    *others, learned = sorted(found, key=lambda one: one.method == "learned")
    best = min(others, key=lambda one: one.makespan)
    gains = best.makespans - learned.makespans
    gain, error = float(gains.mean()), float(gains.std()) / len(gains) ** 0.5
    said = f"over {output.many(len(gains), 'episode')} that nobody was trained on"
    if abs(gain) <= 2 * error or gain == 0:
        return f"no clear winner: learned and {best.method} differ by {abs(gain):.2f} ticks (± {2 * error:.2f}) {said}"
    if gain > 0:
        return f"learned wins: {gain:.2f} ticks (± {2 * error:.2f}) shorter than {best.method} {said}"
    return f"learned loses: {-gain:.2f} ticks (± {2 * error:.2f}) longer than {best.method} {said}"


def _print_methods(found: list[Score]) -> None:
    from gpuyard.cli.terminal.text_table import print_table

    heads = ("METHOD", "MAKESPAN", "WAIT", "UTILIZATION", "REWARD")
    ranked = sorted(found, key=lambda one: one.makespan)
    print_table(
        heads,
        [(s.method, f"{s.makespan:.1f}", f"{s.wait:.1f}", f"{s.utilization:.1f}%", f"{s.reward:.0f}") for s in ranked],
    )


_AHEAD = {
    "low": "less goes ahead", "high": "more goes ahead", "mixed": "both ways", "either": "no matter",
    "unseen": "never varied in training",
}  # fmt: skip


def explain(
    policy: Annotated[str, argument("POLICY", "A file, the name of one that comes with gpuyard, or learned:FILE.")],
    out: Annotated[str | None, option("--out", "DIR", "Write preferences.png there.")] = None,
    json: Annotated[bool, option("--json", "One JSON object, with the curves, instead of tables.")] = False,
) -> None:
    """Tell what a trained policy prefers: its score as a quantity of a job changes, all else as in a typical job."""
    from gpuyard.core.policy import LEARNED
    from gpuyard.learn.explanation import explain as explain_policy
    from gpuyard.policies.trained_policy import load

    found = explain_policy(load(policy.removeprefix(LEARNED)))
    output.print_either(json, {"policy": policy, **found.facts()}, lambda: _print_preferences(found))
    if out:
        _draw_preferences(found, out)


def _print_preferences(found: Explanation) -> None:
    from gpuyard.cli.terminal.text_table import print_table

    ranked = sorted(found.preferences, key=lambda one: -one.spread)
    print_table(
        ("QUANTITY", "DIRECTION", "SPREAD", f"OF {found.base.upper()} ALONE"),
        [(p.quantity.title, _AHEAD[p.ahead], f"{p.spread:.3f}", f"{p.base_spread:.3f}") for p in ranked],
    )
    print()
    print_table(
        ("FEATURE", "IMPORTANCE", "DIRECTION", "WHAT IT IS"),
        [(i.feature, f"{i.importance:.3f}", _direction(i.ahead, i.shared), i.about) for i in found.importances],
    )
    for line in found.summary:
        output.say(line)


def _direction(ahead: str, shared: bool) -> str:
    return "changes what others count" if shared and ahead == "either" else _AHEAD[ahead]


def _draw_preferences(found: Explanation, out: str) -> None:
    from gpuyard.figures.style import png_bytes
    from gpuyard.files import write_atomically
    from gpuyard.learn.policy_figures import preferences

    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "preferences.png", png_bytes(preferences(found)))
    except OSError as error:
        raise UserError(f"{out} cannot be written to: {error.strerror or error}") from None
    output.say(f"wrote {folder / 'preferences.png'}")


app = command_group("Train policies on traces, judge them where they were held out, and see what they prefer.")

_KINDS = {"linear": 0, "mlp-4": 4, "mlp-8": 8, "mlp-32": 32}
Traces = Annotated[list[str], argument("TRACE...", "Traces: files (compressed is fine), or history for the queue's.")]
PolicyFile = Annotated[
    str, argument("POLICY", "A trained policy: its file, or the name of one that comes with gpuyard.")
]
Jobs = Annotated[int | None, option("--jobs", "N", "Processes to simulate in (all CPUs).", min=1)]


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    gpus: Annotated[
        int | None, option("--gpus", "N", "One node of N GPUs (as the trace says, or such that some wait).", min=1)
    ] = None
    nodes: o.Nodes = None
    discipline: Annotated[
        str | None,
        option("--discipline", "strict, commit, skip, easy, easy-shadow or conservative (easy, or as trained)."),
    ] = None
    placement: o.Placement = None
    where: Where = None
    since: Since = None
    until: Until = None
    slice_: Slice = None
    format: Format = None

    def problems(self, traces: list[str], estimate: str | None, trained_for: str = "easy") -> list[Problem]:
        from gpuyard.core.model import DEFAULT_GPU_MEMORY, Cluster
        from gpuyard.core.policy import check_discipline, check_placement
        from gpuyard.learn.trace_windows import make_problem
        from gpuyard.sim.traces.nodes import read_cluster

        if self.gpus is not None and self.nodes is not None:
            raise UserError("give one of --gpus and --nodes, not both")
        discipline = check_discipline(self.discipline) or trained_for
        placement = check_placement(self.placement) or ("first" if self.nodes is None else "consolidate")
        cluster = None if self.nodes is None else read_cluster(self.nodes, DEFAULT_GPU_MEMORY)
        if self.gpus is not None:
            cluster = Cluster((self.gpus,))
        found = []
        for path in traces:
            jobs = load_trace(path, self.format, self.where, self.since, self.until, self.slice_)
            problem = make_problem(
                jobs,
                cluster,
                discipline=discipline,
                placement=placement,
                estimate="actual" if estimate == "oracle" else estimate,
            )
            output.say(_describe(problem))
            found.append(problem)
        return found


@subcommand(app, "train")
def train(
    traces: Traces,
    options: ProblemOptions,
    out: Annotated[Path, option("--out", "FILE", "Where the policy goes.", dir_okay=False)] = Path("learned.json"),
    objective: Annotated[str, option("--objective", "slowdown, jct, wait, utilization or energy.")] = "slowdown",
    network: Annotated[str, option("--network", "linear, mlp-4, mlp-8 or mlp-32.")] = "linear",
    base: Annotated[
        str, option("--base", "POLICY", "The heuristic that it is added to (the better of sjf and saf).")
    ] = "auto",
    estimate: Annotated[
        str | None,
        option("--estimate", "What is known of run times: actual (oracle), requested, predicted or noisy:S."),
    ] = None,
    longest: Annotated[
        float | None,
        option(
            "--longest-waits",
            "X",
            "How much longer the longest waits may get at no cost (1.3).",
            min=1.0,
            show_default=False,
        ),
    ] = None,
    generations: Annotated[
        int | None, option("--generations", "N", "How long to search.", min=1, show_default=False)
    ] = None,
    population: Annotated[
        int | None, option("--population", "N", "Candidates of a generation.", min=4, show_default=False)
    ] = None,
    windows: Annotated[int | None, option("--windows", "N", "Windows to train on.", min=4, show_default=False)] = None,
    window: Annotated[int | None, option("--window", "N", "Jobs of a window.", min=8, show_default=False)] = None,
    seed: o.Seed = 0,
    jobs: Jobs = None,
    resume: Annotated[
        bool, option("--resume", "Go on with a training of the same --out that was interrupted.")
    ] = False,
    plot: Annotated[Path | None, option("--plot", "PNG", "Draw the learning curve there.", dir_okay=False)] = None,
    json: Json = False,
) -> None:
    """Train a policy on the first part of traces, and judge it on their last part; takes a minute or two."""
    from gpuyard.learn.arena import check_objective
    from gpuyard.learn.training import recipe_for

    given = {
        "longest": longest,
        "generations": generations,
        "population": population,
        "windows": windows,
        "window": window,
    }
    recipe = recipe_for(
        options.discipline or "easy",
        objective=check_objective(objective), hidden=_hidden(network), base=base, seed=seed,
        **{name: value for name, value in given.items() if value is not None},
    )  # fmt: skip
    if out.is_dir():
        raise UserError(f"{out} is a directory; --out names the file that the policy goes to")
    problems = options.problems(traces, estimate)
    learned = _train(problems, recipe, out, jobs, resume)
    learned = learned.with_gate(_gate([_judge(learned, problem, jobs) for problem in problems]))
    learned.save(out)
    if plot is not None:
        from gpuyard.learn.policy_figures import learning_curve

        plot.parent.mkdir(parents=True, exist_ok=True)
        learning_curve(learned.training).savefig(plot)
    if json:
        output.print_json({"file": str(out), "hash": learned.hash, "gate": learned.gate, "training": learned.training})
        return
    print(f"{out}  {learned.hash[:12]}")
    output.say(_verdict(learned.gate))
    if learned.deployable:
        output.say(f"use it by: gpuyard policy set learned:{out}")


@subcommand(app, "evaluate")
def evaluate(
    policy: PolicyFile,
    traces: Traces,
    options: ProblemOptions,
    seeds: Annotated[int, option("--seeds", "N", "Ways to place the windows.", min=1)] = 5,
    window: Annotated[int, option("--window", "N", "Jobs of a window.", min=8)] = 256,
    estimates: Annotated[
        str | None, option("--estimates", "A,B", "Of oracle, requested, predicted and noisy:S (as in training).")
    ] = None,
    protocol: Annotated[
        str | None, option("--protocol", "NAME", "rlscheduler: ten sequences of 1,024 jobs, as it is published.")
    ] = None,
    record: Annotated[
        bool, option("--record", "Write the outcome into the policy's file: the gate goes by it.")
    ] = False,
    out: Annotated[Path | None, option("--out", "DIR", "Write a report with plots there.", file_okay=False)] = None,
    jobs: Jobs = None,
    json: Json = False,
) -> None:
    """Compare a trained policy with every heuristic on the part of traces that nothing was chosen by."""
    from gpuyard.learn.evaluation import evaluate as compare
    from gpuyard.learn.evaluation import judge
    from gpuyard.policies.trained_policy import load

    name = policy.removeprefix("learned:")
    learned = load(name)
    if record and not Path(name).is_file():
        raise UserError(f"{name} comes with gpuyard and is not written to; copy it first")
    if protocol is not None:
        _run_protocol(protocol, learned, name, traces, options, json)
        return
    kinds: list[str | None] = [None] if estimates is None else [k.strip() for k in estimates.split(",") if k.strip()]
    found: list[Evaluation] = []
    for kind in kinds:
        for problem in options.problems(traces, kind, learned.discipline or "easy"):
            with output.progress_bar(f"evaluating on {problem.name}"):
                found.append(compare(learned, problem, seeds=seeds, size=window, processes=jobs))
    verdicts = [judge(one) for one in found]
    if record:
        learned = learned.with_gate(_gate(verdicts))
        learned.save(Path(name))
    if out is not None:
        from gpuyard.learn.report import write_report

        output.say(f"wrote {write_report(learned, name, found, verdicts, out, o.command_line())}")
    if json:
        output.print_json(_document(name, learned, found, verdicts))
        return
    for one, verdict in zip(found, verdicts, strict=True):
        _print(one)
        output.say(_verdict(verdict))


def _run_protocol(
    protocol: str, learned: Learned, name: str, traces: list[str], options: ProblemOptions, json: bool
) -> None:
    from gpuyard.cli.terminal.text_table import print_table
    from gpuyard.learn.evaluation import slowdowns

    if protocol != "rlscheduler":
        raise UserError(f"--protocol takes rlscheduler, not '{protocol}'")
    found = [slowdowns(learned, load_trace(path, options.format)) for path in traces]
    if json:
        rows = [
            {"trace": path, "protocol": protocol, "slowdown": one["learned"], "policies": one}
            for path, one in zip(traces, found, strict=True)
        ]
        output.print_json({"policy": name, "hash": learned.hash, **(rows[0] if len(rows) == 1 else {}), "traces": rows})
        return
    for path, one in zip(traces, found, strict=True):
        output.say(f"{path}: mean bounded slowdown over ten sequences of 1,024 jobs, {protocol}'s way")
        print_table(("POLICY", "SLOWDOWN"), [(n, f"{v:.2f}") for n, v in sorted(one.items(), key=lambda kv: kv[1])])


app.command("explain")(explain)
app.command("place")(place)


def _hidden(network: str) -> int:
    if network not in _KINDS:
        raise UserError(f"--network takes {', '.join(_KINDS)}, not '{network}'")
    return _KINDS[network]


def _describe(problem: Problem) -> str:
    made = ", a size at which some have to wait" if problem.sized else ""
    return (
        f"{problem.name}: {len(problem.trace):,} jobs on {output.many(problem.cluster.gpus, 'GPU')}{made}; "
        f"load {problem.load:.2f}, {problem.estimate} run times, discipline {problem.discipline}"
    )


def _train(problems: list[Problem], recipe: Recipe, out: Path, jobs: int | None, resume: bool) -> Learned:
    """Train with a progress bar; an interrupted training is kept beside the file."""
    from gpuyard.learn.training import train as run

    checkpoint = out.with_name(out.name + ".training")
    if not resume:
        checkpoint.unlink(missing_ok=True)
    elif not checkpoint.is_file():
        raise UserError(f"there is no interrupted training of {out} to resume ({checkpoint} is not there)")
    out.parent.mkdir(parents=True, exist_ok=True)
    with output.step_bar("training") as report:

        def watch(step: Step, total: int) -> None:
            report(
                step.generation,
                total,
                f"ratio {step.ratio:.3f}" + (f", checked {step.best:.3f}" if step.best < 9 else ""),
            )

        learned, _ = run(problems, recipe, processes=jobs, watch=watch, checkpoint=checkpoint)
    return learned


def _judge(learned: Learned, problem: Problem, jobs: int | None) -> dict[str, Any]:
    from gpuyard.learn.evaluation import evaluate as compare
    from gpuyard.learn.evaluation import judge

    return judge(compare(learned, problem, processes=jobs, preemptive=False))


def _gate(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    from gpuyard.learn.evaluation import combined_verdict

    return verdicts[0] if len(verdicts) == 1 else combined_verdict(verdicts)


def _verdict(gate: dict[str, Any]) -> str:
    ratio = f"{gate['ratio']:.3f} ({gate['ratio_low']:.3f} to {gate['ratio_high']:.3f})"
    of = f"{gate['objective']} is {ratio} of what {gate['best_heuristic']}, the best heuristic in hindsight, achieves"
    said = f"{gate['trace']}: held out, the {of}; means {gate['mean_ratio']:.3f}, longest waits {gate['p99_ratio']:.3f}"
    if gate["passed"]:
        return f"{said}. It passes the gate: the daemon will take it."
    return f"{said}. It does not pass the gate ({'; '.join(gate['reasons'])}): use {gate['best_heuristic']} there."


def _document(name: str, learned: Learned, found: list[Evaluation], verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of `--json`; of a single trace, the numbers stand at the top as well."""
    rows = [
        {
            **verdict,
            "gate": "pass" if verdict["passed"] else "fail",
            "gated_ratio": verdict["ratio"] if verdict["passed"] else 1.0,
            "deployed": f"learned:{name}" if verdict["passed"] else verdict["best_heuristic"],
            "hindsight_ratio": one.hindsight("learned"),
            "policies": [one.row(policy) for policy in one.stats],
        }
        for one, verdict in zip(found, verdicts, strict=True)
    ]
    head = {"policy": name, "hash": learned.hash}
    return {**head, **(rows[0] if len(rows) == 1 else {}), "traces": rows}


def _print(found: Evaluation) -> None:
    from gpuyard.cli.terminal.text_table import print_table
    from gpuyard.learn.evaluation import PREEMPTIVE

    rows = sorted((found.row(name) for name in found.stats), key=lambda row: float(row["geometric_mean"]))
    heads = ("POLICY", "RATIO", found.objective.upper(), "GEOM. MEAN", "WAIT", "MEDIAN", "P99", "MAX", "FAIRNESS")
    print_table(
        heads,
        [
            (
                row["policy"] + (" (stops jobs)" if row["policy"] in PREEMPTIVE else ""),
                f"{row['ratio']:.3f}", output.number(row["mean"]), output.number(row["geometric_mean"]),
                *(output.duration(row[f"wait_{name}"]) for name in ("mean", "median", "p99", "max")),
                "-" if row["fairness"] is None else f"{row['fairness']:.3f}",
            )
            for row in rows
        ],
    )  # fmt: skip
