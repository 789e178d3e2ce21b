"""An option whose value may be left out or begin with a dash: `--profile`, `--profile 30s`, `--profile --epochs=2`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

PROFILE, USUAL = "--profile", "30s"


def completed(words: Sequence[str], known: Collection[str], usual: str = USUAL) -> list[str]:
    """A command line in which every `--profile` has its value beside it; `known` are the options of the command."""
    if PROFILE not in known:
        return list(words)
    found, rest = list[str](), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*found, word, *rest]
        if word != PROFILE:
            found.append(word)
        elif rest and _is_value(rest, known):
            found.append(f"{PROFILE}={rest.pop(0)}")
        elif usual:
            found.append(f"{PROFILE}={usual}")
    return found


def _is_value(rest: Sequence[str], known: Collection[str]) -> bool:
    """Whether the next word says how to try a job out: a time, or arguments that are not the command's own."""
    word = rest[0]
    if word.startswith("-"):
        return word != "--" and word.partition("=")[0].split(" ")[0] not in known
    before_command = list(rest[1:2]) == ["--"]  # where no file can stand: a slip, to be told as one
    return word[:1].isdecimal() or word == "none" or before_command
