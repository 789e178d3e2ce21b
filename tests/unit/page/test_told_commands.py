"""Commands that the page tells people to type."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard import page
from gpuyard.cli.app import app


def _told() -> list[str]:
    files = Path(page.__file__).parent.glob("**/*.py")
    trees = [ast.parse(file.read_text()) for file in files]
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return sorted(text for text in texts if isinstance(text, str) and text.startswith("gpuyard ") and "(" not in text)


@pytest.mark.parametrize("line", _told())
def test_there_is_such_a_command_with_such_options(line: str) -> None:
    words = shlex.split(line)[1:]
    own = words[: words.index("--")] if "--" in words else words
    answer = CliRunner().invoke(app, [*own, "--help"])  # options are read before help is given
    assert answer.exit_code == 0, answer.output
