"""`gpuyard learn explain`: what a trained policy prefers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output

if TYPE_CHECKING:
    from gpuyard.learn.explaining import Explanation

_AHEAD = {
    "low": "less goes ahead", "high": "more goes ahead", "mixed": "both ways", "either": "no matter",
    "unseen": "never varied in training",
}  # fmt: skip


def explain(
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="A file, the name of one that comes with gpuyard, or learned:FILE.")
    ],
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Write preferences.png there.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, with the curves, instead of tables.")] = False,
) -> None:
    """Tell what a trained policy prefers: its score as a quantity of a job changes, all else as in a typical job."""
    from gpuyard.core.policy import LEARNED
    from gpuyard.learn.explaining import explain as explained
    from gpuyard.learn.file import load

    found = explained(load(policy.removeprefix(LEARNED)))
    if json:
        output.print_json({"policy": policy, **found.facts()})
    else:
        _print(found)
    if out:
        _draw(found, out)


def _print(found: Explanation) -> None:
    from gpuyard.cli.table import print_table

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


def _draw(found: Explanation, out: str) -> None:
    from pathlib import Path

    from gpuyard.errors import UserError
    from gpuyard.learn.plots import preferences
    from gpuyard.sim.figures import png_bytes, write_atomically

    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "preferences.png", png_bytes(preferences(found)))
    except OSError as error:
        raise UserError(f"{out} cannot be written to: {error.strerror or error}") from None
    output.say(f"wrote {folder / 'preferences.png'}")
