"""What is said of a value that an option cannot have: of every option of every command, and never by a validator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gpuyard.cli.app import app
from gpuyard.cli.parser import PROFILE
from gpuyard.errors import UserError

WANTED = re.compile(r"(--[\w-]+|[A-Z]+) is (a (whole )?number.*, as in -?[\d.]+|one of [\w, -]+), not '(.*)'")


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    found = command.load() if hasattr(command, "load") else command
    if members := getattr(found, "commands", None):
        for name, member in members.items():
            yield from commands(member, *path, name)
    else:
        yield " ".join(path), found


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.params])
def test_an_option_without_its_value_is_told_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    for parameter in command.get_params(command.context_class(command)):
        for flag in parameter.opts:
            if flag.startswith("-") and flag != PROFILE and not parameter.is_flag:
                with pytest.raises(UserError, match=rf"^{flag} needs a value(, as in|:) {flag} (\S+|'.*')$"):
                    command.make_context(f"gpuyard {name}", [flag])


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.params])
@pytest.mark.parametrize("text", ["x y", "nan", "-1e400", "9" * 20, "9" * 5000])
def test_one_sentence_says_what_is_wanted_with_an_example(name: str, text: str) -> None:
    command = COMMANDS[name]
    for parameter in command.get_params(command.context_class(command)):
        flag = max(parameter.opts, key=len)
        kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        is_typed = kind in (int, float) or (isinstance(kind, type) and hasattr(kind, "__members__"))
        if not flag.startswith("--") or not is_typed or (kind is float and text[0] == "9"):
            continue
        with pytest.raises(UserError) as refused:
            command.make_context(f"gpuyard {name}", [f"{flag}={text}"])
        said = WANTED.fullmatch(str(refused.value))
        assert said is not None, refused.value
        assert said[4] == text
        limit = re.search(r"(?:to|at most) ([\d,]+)", said[2])
        assert not text.isdecimal() or limit is None or int(limit[1].replace(",", "")) <= 10**14
