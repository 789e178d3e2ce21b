"""`gpuyard adapt`: networks that grow within a budget, and agents that learn when and where to grow."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import Json, argument, option
from gpuyard.cli.learning.adapt_runs import record, run, visit
from gpuyard.cli.parser import command_group
from gpuyard.cli.simulator import simulation_options as o
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.adapt.agent.agent_file import Agent
    from gpuyard.adapt.agent.decision_trees import Reading
    from gpuyard.adapt.agent.evaluation import DeciderResult, Evaluation, Make
    from gpuyard.adapt.agent.reinforce import Recipe

app = command_group(
    "Train networks that grow within a time budget; record, learn and judge when and where growing pays."
)

SHOWN = 5  # printed sequences of a ranking, besides the decider's and the one that never grows
Recordings = Annotated[list[Path], argument("RECORDING...", "Files of gpuyard adapt record, or folders of them.")]
Environments = Annotated[str | None, option("--environments", "A,B", "Only these; a name may end with *.")]
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
Force = Annotated[bool, option("--force", "Write over what is there.")]

app.command("run")(run)
app.command("record")(record)
app.command("visit", hidden=True)(visit)


@app.command("learn")
def learn(
    recordings: Recordings,
    out: Annotated[Path, option("--out", "FILE", "Where the decider goes.")] = Path("decider.json"),
    environments: Environments = None,
    start: Annotated[Path | None, option("--from", "FILE", "Begin with what this one has learned (transfer).")] = None,
    temperature: Annotated[float, option("--temperature", "T", "Of exploring, at the beginning.", min=0.01)] = 1.0,
    updates: Annotated[int | None, option("--updates", "N", "Steps of learning.", min=1, show_default=False)] = None,
    episodes: Annotated[int, option("--episodes", "N", "Drawn for each update (0: all of them, weighed).", min=0)] = 0,
    seed: o.Seed = 0,
    plot: Annotated[Path | None, option("--plot", "PNG", "Draw how learning went there.", dir_okay=False)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Learn when and where to grow from recorded runs; takes seconds."""
    _use_one_thread()
    from gpuyard.adapt.agent import agent_file
    from gpuyard.adapt.agent.evaluation import evaluate as evaluate_agent
    from gpuyard.adapt.agent.reinforce import Recipe
    from gpuyard.adapt.agent.reinforce import learn as learned

    for path in (out, plot):
        if path is not None:
            agent_file.check_free(path, force)
    prior = None if start is None else agent_file.load(start)
    tables = _read(recordings, environments).tables
    recipe = Recipe(temperature=temperature, episodes=episodes, seed=seed)
    recipe = recipe if updates is None else replace(recipe, updates=updates)
    with output.step_bar("learning") as tell:
        agent = learned(tables, recipe, prior, tell)
    agent.save(out, force)
    if plot is not None:
        from gpuyard.adapt.agent.agent_figures import objective

        _draw(objective({out.name: agent}), plot)
    agent, digest = agent_file.load_hashed(out)  # report on the file as it will be read
    found = evaluate_agent(_decider(agent), tables, bootstrap=0, policy_hash=digest)
    if json:
        output.print_json(
            {
                "file": str(out), "policy_hash": digest, "hash": agent.hash, "gap_share": found.gap_share,
                "mean_gap_share": found.mean_gap_share,
                "training": {key: value for key, value in agent.training.items() if key != "curve"},
            }
        )  # fmt: skip
        return
    print(f"{out}  {digest[:12]}")
    output.say(f"where it learned, it reaches {_share(found.gap_share)} of what there is to gain over never growing")
    output.say(f"use it by: gpuyard adapt evaluate {out} RECORDING, or as the decider reinforce:{out}")


@app.command("evaluate")
def evaluate(
    decider: Annotated[str, argument("DECIDER", "A file of gpuyard adapt learn, or a decider's name: cost-rule.")],
    recordings: Recordings,
    environments: Environments = None,
    leave_one_out: Annotated[
        bool, option("--leave-one-out", "Learn anew without each environment, and judge it there.")
    ] = False,
    family: Annotated[
        int | None,
        option(
            "--family",
            "N",
            "Leave out together what shares the first N parts of its name (parts end with a dash).",
            min=1,
        ),
    ] = None,
    bootstrap: Annotated[int, option("--bootstrap", "N", "Draws that intervals are made of.", min=0)] = 2000,
    ranking: Annotated[bool, option("--ranking", "Print every sequence of every environment.")] = False,
    seed: o.Seed = 0,
    json: Json = False,
) -> None:
    """Rank a decider among all recorded sequences, and tell what share of the possible gain it reaches."""
    _use_one_thread()
    from gpuyard.adapt.agent import evaluation

    make, digest, recipe, extra = _resolve(decider)
    tables = _read(recordings, environments).tables
    if leave_one_out or family is not None:
        if recipe is None:
            raise UserError(f"{decider} learns nothing, so there is nothing to leave out; name a file, or reinforce")
        with output.step_bar("leaving out") as tell:
            found = evaluation.leave_one_out(tables, replace(recipe, seed=seed), bootstrap, family, tell)
    else:
        found = evaluation.evaluate(make, tables, bootstrap, seed, digest)
    if json:
        document = evaluation.document(found)
        output.print_json({"decider": decider, **extra, **document, "policy_hash": digest or document["policy_hash"]})
        return
    _print(decider, digest, found, ranking or len(found.standings) == 1)


@app.command("plot")
def plot(
    files: Annotated[list[Path], argument("FILE...", "Files of gpuyard adapt learn, and recordings, as they come.")],
    out: Annotated[Path, option("--out", "DIR", "Where the plots go.", file_okay=False)] = Path("adapt-plots"),
    environments: Environments = None,
    transfer: Annotated[
        bool, option("--transfer/--no-transfer", "Learn in each environment alone, and try it in all others.")
    ] = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw how learning went, what deciders come to in each environment, and how that transfers, as PNG and SVG."""
    _use_one_thread()
    from gpuyard.adapt.agent.agent_figures import draw_all
    from gpuyard.adapt.agent.agent_file import is_agent, load
    from gpuyard.figures.style import save

    agents = {path.name: load(path) for path in files if path.is_file() and is_agent(path)}
    recordings = [path for path in files if not (path.is_file() and is_agent(path))]
    tables = _read(recordings, environments).tables if recordings else ()
    if not tables and environments is not None:
        raise UserError("--environments chooses from recordings; name one")
    with output.step_bar("drawing") as tell:
        figures = draw_all(agents, tables, transfer, tell)
    written = [out / f"{name}.{ending}" for name in figures for ending in ("png", "svg")]
    if there := [str(path) for path in written if path.exists() and not force]:
        raise UserError(f"{there[0]} is there already; name another --out, or overwrite with --force")
    for name, figure in figures.items():
        save(figure, out, name)
    output.print_either(json, [str(path) for path in written], lambda: print("\n".join(map(str, written))))


def _use_one_thread() -> None:
    """Let numpy, which is not loaded yet, use one thread: the matrices are small, and threads slow each other down.

    Threads would also sum in another order, so that the same seed would not give the same file.
    """
    for name in _THREADS:
        os.environ.setdefault(name, "1")


def _read(recordings: list[Path], environments: str | None) -> Reading:
    from gpuyard.adapt.agent.decision_trees import read_tables

    reading = read_tables(recordings)
    for note in reading.notes:
        output.say(note)
    return reading.choose(environments)


def _decider(agent: Agent) -> Make:
    from gpuyard.adapt.deciders import Reinforce

    return lambda: Reinforce(agent)


def _resolve(text: str) -> tuple[Make, str | None, Recipe | None, dict[str, Any]]:
    """How to make a decider, the hash of its file, its recipe, and more facts for --json."""
    from gpuyard.adapt.agent.agent_file import load_hashed, shipped
    from gpuyard.adapt.agent.reinforce import recipe_of
    from gpuyard.adapt.deciders import make_decider

    file = str(shipped()) if text == "reinforce" else text.removeprefix("reinforce:")
    if file != text or Path(text).is_file() or text.endswith(".json"):
        agent, digest = load_hashed(file)  # read once: what is hashed is what is judged
        return _decider(agent), digest, recipe_of(agent), {"hash": agent.hash}
    make_decider(text)  # a mistake is reported before recordings are read
    return lambda: make_decider(text), None, None, {}


def _draw(figure: Any, path: Path) -> None:
    from gpuyard.figures.style import png_bytes, svg_bytes
    from gpuyard.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, svg_bytes(figure) if path.suffix.lower() == ".svg" else png_bytes(figure))


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0%}"


def _within(value: float, interval: tuple[float, float], percent: bool = False) -> str:
    if math.isnan(value):
        return "-"
    form = "{:.0%}" if percent else "{:.4f}"
    low, high = interval
    return form.format(value) + ("" if math.isnan(low) else f" ({form.format(low)} to {form.format(high)})")


def _print(decider: str, digest: str | None, found: Evaluation, whole: bool) -> None:
    from gpuyard.adapt.agent.evaluation import decider_shares
    from gpuyard.cli.terminal.text_table import print_table

    for standing in found.standings:
        _print_ranking(standing, whole)
    heads = ("ENVIRONMENT", "RANK", "OF", "ACCURACY", "NEVER", "RANDOM", "COST-RULE", "BEST", "GAIN", "SHARE OF GAP")
    print_table(heads, [_cells(standing) for standing in found.standings])
    print()
    shares = {**decider_shares(found.standings), decider: found.gap_share, "(best)": 1.0}
    order = sorted(shares, key=lambda name: -shares[name] if shares[name] == shares[name] else math.inf)
    print_table(("DECIDER", "SHARE OF ALL GAPS"), [(name, _share(shares[name])) for name in order])
    print()
    learned = ", each time learned anew without the environment" if found.left_out else ""
    worst = found.worst
    print(
        f"{decider}{learned}: {_within(found.gap_share, found.share_interval, True)} of the gaps between never growing "
        f"and the best sequence (sum of gains over sum of gaps; the mean of the environments' shares is "
        f"{_share(found.mean_gap_share)}; of what the best by other seeds gains, {_share(found.crossfit_gap_share)})"
    )
    print(f"the least gain is {100 * worst.gain:+.2f} points, in {worst.table.name}")
    if digest is not None:
        print(f"policy {digest}")


def _cells(s: DeciderResult) -> tuple[str, ...]:
    values = (s.never, s.deciders["random"], s.deciders["cost-rule"], s.oracle)
    return (
        s.table.name, str(s.rank), str(len(s.table.sequences)), _within(s.accuracy, s.interval),
        *(f"{value:.4f}" for value in values), f"{100 * s.gain:+.2f}", _within(s.gap_share, s.share_interval, True),
    )  # fmt: skip


def _print_ranking(standing: DeciderResult, whole: bool) -> None:
    """The sequences by accuracy, with marks at the decider and at the one that never grows."""
    from gpuyard.adapt.agent.evaluation import row
    from gpuyard.cli.terminal.text_table import print_table

    ranking = row(standing)["ranking"]
    lines, gap = list[tuple[str, ...]](), False
    for place, one in enumerate(ranking):
        if not whole and place >= SHOWN and not one["agent"] and not one["never"]:
            gap = True
            continue
        if gap:
            lines.append(("...", "", "", "", ""))
        gap = False
        marks = [word for word, is_it in (("*** decider", one["agent"]), ("*** never", one["never"])) if is_it]
        error = "" if math.isnan(one["error"]) else f"{one['error']:.4f}"
        lines.append((str(one["rank"]), str(one["actions"]), f"{one['accuracy']:.4f}", error, " ".join(marks)))
    print(standing.table.name)
    print_table(("RANK", "ACTIONS", "ACCURACY", "ERROR", ""), lines)
    print()
