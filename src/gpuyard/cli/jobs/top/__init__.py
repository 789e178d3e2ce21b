"""`gpuyard top`: GPUs and jobs live on a terminal, or one frame as text (`--once`).

Curses is imported only for a live screen.
"""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

from gpuyard.cli.common_options import DaemonOptions, option, option_groups
from gpuyard.errors import UserError

_SHORTEST = 0.1
_SHOWN = 40  # waiting jobs in a single frame


@option_groups
def top(
    daemon: DaemonOptions,
    interval: Annotated[
        str, option("--interval", "TIME", "Look again at least so often, also if nothing happens.")
    ] = "1s",
    once: Annotated[bool, option("--once", "Print one frame as text, and end.")] = False,
) -> None:
    """Watch GPUs and jobs live; cancel, hold or follow them by keys."""
    from gpuyard.units import parse_duration

    seconds = parse_duration(interval)
    if not _SHORTEST <= seconds < float("inf"):
        raise UserError(f"--interval must be {_SHORTEST:g}s or more, not {interval}")
    if once:
        _print_frame(daemon)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("top needs a terminal; use gpuyard ps, or gpuyard top --once for one frame as text")
    from gpuyard.cli.jobs.cancel import current_user
    from gpuyard.cli.jobs.top.view_state import Model

    try:
        from gpuyard.cli.jobs.top import loop
    except ImportError as error:
        raise UserError("top needs a terminal as Linux and macOS have it; use gpuyard top --once, or ps") from error
    client = daemon.client(timeout=5.0)
    loop.run(client, Model(user=current_user(client)), seconds)


def _print_frame(daemon: DaemonOptions) -> None:
    from gpuyard.cli.jobs.cancel import current_user
    from gpuyard.cli.jobs.top import frames
    from gpuyard.cli.jobs.top.daemon_feed import Source, Wanted
    from gpuyard.cli.jobs.top.view_state import Model
    from gpuyard.cli.terminal.styled_lines import bars_for, text_of

    client = daemon.client()
    snapshot = Source(client).look(Wanted(waiting=(0, _SHOWN)))
    model = Model(user=current_user(client), ticks=snapshot.taken, focus="")
    model.show(snapshot)
    totals = {name: part.total for name, part in snapshot.parts.items()}
    # Headings are five lines: the title, one for each table, and what keys would need.
    rows = max(totals["running"], 1) + min(max(totals["waiting"], 1), _SHOWN)
    model.width = shutil.get_terminal_size((120, 24)).columns
    model.height = max(3 * len(snapshot.gpus), len(snapshot.gpus) + rows + 5, 12)
    lines = [text_of(line) for line in frames.frame(model, bars_for(sys.stdout.encoding), keys=False)]
    print("\n".join(lines).rstrip())
