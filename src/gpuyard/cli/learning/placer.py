"""`gpuyard learn place`: train a placer, and compare it with simple rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpuyard.cli.common_options import option
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.learn.place.placer import Score


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
    _print(found)
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


def _print(found: list[Score]) -> None:
    from gpuyard.cli.terminal.text_table import print_table

    heads = ("METHOD", "MAKESPAN", "WAIT", "UTILIZATION", "REWARD")
    ranked = sorted(found, key=lambda one: one.makespan)
    print_table(
        heads,
        [(s.method, f"{s.makespan:.1f}", f"{s.wait:.1f}", f"{s.utilization:.1f}%", f"{s.reward:.0f}") for s in ranked],
    )
