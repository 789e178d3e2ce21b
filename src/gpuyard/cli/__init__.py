"""The command line, in folders as `gpuyard --help` groups the commands.

Thin and quick to start: heavy modules are imported when a command runs.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Any

_INTERRUPTED = 130


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2, not in a traceback."""
    gc.set_threshold(100_000, 50, 50)  # looking for cycles would take a tenth of a short command, and find none
    from gpuyard.errors import Bug, GpuyardError, Mistakes, UserError, is_passing, memory_limit

    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no UTF-8
    try:
        code = _run(sys.argv[1:])
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except Mistakes as error:
        first, *more = str(error).splitlines()
        _fail(first, 2, *more)
    except UserError as error:
        _fail(str(error), 2)
    except Bug as error:
        _fail(f"internal error: {error} (this is a bug in gpuyard; please report it with the command you ran)", 1)
    except GpuyardError as error:
        _fail(str(error), 1)
    except BrokenPipeError:  # the reader has seen enough, as in `gpuyard ... | head`
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 1 if is_passing(error) else 2)
    except MemoryError:
        _fail(f"not enough memory: {memory_limit() or 'free some, and try again'}", 1)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while a class was being made, in an import
            _fail("interrupted", _INTERRUPTED)
        if isinstance(error, ImportError | RuntimeError) and (limit := memory_limit()):  # libraries and threads fail so
            _fail(f"{str(error).strip()}: {limit}", 1)
        # By what it can do and not by its class: some versions of typer bring their own click.
        if not hasattr(error, "format_message"):
            raise
        _fail_usage(error)


def _open_standard_streams() -> None:
    """Where a shell has closed some (`>&-`), put /dev/null, lest a file of ours gets their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(fd)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _run(line: list[str]) -> Any:
    """Run what a command line says; its exit code."""
    if line[:1] == ["submit"]:
        from gpuyard.cli.jobs.submit import submit_quickly

        if submit_quickly(line[1:]):
            return 0
    from gpuyard.cli.app import app

    return app(prog_name="gpuyard", standalone_mode=False)  # not on its own: it would put mistakes in boxes


def _fail_usage(error: Any) -> None:
    """Report a command line that cannot be parsed; without any command, the help has been shown already."""
    message = error.format_message().strip()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, end="\n" if message else "", file=sys.stderr)
        sys.exit(error.exit_code)
    command = getattr(getattr(error, "ctx", None), "command_path", "gpuyard")
    _fail(f"{message.rstrip('.')} (see {command} --help)", error.exit_code)


def _fail(message: str, code: int, *more: str) -> None:
    from gpuyard.cli.terminal.output import say

    say("\n".join((f"gpuyard: error: {' '.join(message.split())}", *more)))
    sys.exit(code)
