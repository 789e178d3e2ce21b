"""`gpuyard policies`: what there is, and what is wrong with yours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gpuyard.cli import output

app = typer.Typer(help="List the policies, or check your own.", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def policies(
    context: typer.Context, json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False
) -> None:
    """List the policies, disciplines and placements, or check your own."""
    if context.invoked_subcommand is not None:
        return
    from gpuyard.core.columns import COLUMNS
    from gpuyard.core.discipline import DISCIPLINES
    from gpuyard.core.placements import PLACEMENT_DOCS
    from gpuyard.core.policies import ALIASES, POLICIES

    if json:
        output.print_json(
            {
                "policies": [
                    {
                        "name": p.name,
                        "doc": p.doc,
                        "columns": list(p.columns),
                        "settings": dict(p.defaults) | ({"quantum": p.quantum} if p.preemptive else {}),
                        "preemptive": p.preemptive,
                    }
                    for p in POLICIES.values()
                ],
                "aliases": {name: text for name, (text, _) in ALIASES.items()},
                "disciplines": DISCIPLINES,
                "placements": PLACEMENT_DOCS,
                "columns": {name: column.doc for name, column in COLUMNS.items()},
            }
        )
        return
    rows = [
        (p.name, p.doc, ", ".join([*p.defaults, *(["quantum"] if p.preemptive else [])])) for p in POLICIES.values()
    ]
    _table("Policies (a name, or name:setting=value,...)", ("name", "order", "settings"), rows)
    _table("Other names", ("name", "stands for", "meaning"), [(n, t, m) for n, (t, m) in ALIASES.items()])
    _table("Disciplines (policy@discipline)", ("name", "who may go ahead"), list(DISCIPLINES.items()))
    _table("Placements (policy@discipline@placement)", ("name", "which GPUs"), list(PLACEMENT_DOCS.items()))
    columns = [(c.name, c.doc, c.changes) for c in COLUMNS.values()]
    _table("Columns (what a policy of your own may ask for)", ("name", "meaning", "changes"), columns)


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for n, head in enumerate(heads):
        table.add_column(head, no_wrap=n == 0)
    for row in rows:
        table.add_row(*row)
    output.console().print(table)


@app.command("check")
def check(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Usually ./mine.py:my_policy.")],
) -> None:
    """Try a policy on ordinary queues and on the edges, and tell what is wrong with it."""
    from gpuyard.core.check import check_policy
    from gpuyard.policyfile import make_planner

    found = make_planner(policy).policy
    problems = check_policy(found)
    for problem in problems:
        print(f"{policy}: {problem}")
    if problems:
        raise typer.Exit(1)
    kind = "preemptive" if found.preemptive else "not preemptive"
    print(f"{policy}: fine ({kind}; columns: {', '.join(found.columns)}; ranks change: {found.changes})")
