"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.cli import compare, demo, policies, simulate, sweep, trace, workload

app = typer.Typer(
    name="gpuyard",
    help="Simulate how a policy schedules GPU jobs, on real traces or made-up ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.add_typer(policies.app, name="policies")
app.add_typer(trace.app, name="trace")
app.add_typer(workload.app, name="workload")
app.command("demo")(demo.demo)


def _version(asked: bool) -> None:
    if asked:
        from gpuyard import __version__

        print(f"gpuyard {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
