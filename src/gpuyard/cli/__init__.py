"""The command line: thin, one module per noun, and quick to start (nothing heavy is imported before it is needed)."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2, never in a traceback."""
    from gpuyard.cli.app import app
    from gpuyard.errors import Bug, GpuyardError, UserError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no UTF-8
    try:
        app(prog_name="gpuyard")
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
        _fail(f"{where}{error.strerror or error}", 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"gpuyard: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
