"""What makes two jobs the same as far as memory and run time go: their signature.

It is a hash of the command without what belongs to one run only (ids, seeds, names and places of output, ports, how
many epochs), of the script's content, of whose it is, of its tags and of how many GPUs it has. What may change the
memory, such as a batch size or a model, stays in. In doubt a word stays in: to take two jobs for different ones costs
one run alone on a GPU, to take them for the same may cost a job its life.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpuyard.spec.notation import SHELLS, code_at, program_of, script_of, without_shell


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OWN = _named(
    "id job-id jobid run-id exp-id experiment-id trial-id task-id session-id unique-id wandb-id rdzv-id uuid "
    "name run-name exp-name experiment-name wandb-name trial-name job-name display-name comment note notes "
    "port master-port main-process-port tensorboard-port rdzv-endpoint master-addr dist-url init-method "
    "local-rank node-rank rank seed resume resume-from resume-from-checkpoint default-root-dir "
    "output outputs out outdir save savedir save-to log logs logdir logfile results result "
    "checkpoint checkpoints ckpt tensorboard pid-file workdir"
)
"""Options whose value is a matter of one run."""
_TUNED = _named(
    "lr lr0 learning-rate base-lr max-lr min-lr init-lr initial-lr weight-decay warmup-steps warmup-epochs warmup-ratio"
)
"""Options that change what a job learns, and neither its memory nor its pace: sweeps are over these."""
_PLACES = _named(
    "output out save log logs logging checkpoint checkpoints ckpt result results tensorboard tb tmp temp run work cache"
)
_KINDS = _named("dir directory path file folder root prefix")
_EPOCHS = _named(
    "epoch epochs num-epochs n-epochs nepochs max-epochs max-epoch train-epochs num-train-epochs total-epochs"
)
_STEPS = _named(
    "steps max-steps num-steps train-steps num-train-steps max-train-steps total-steps iterations iters max-iters "
    "num-iters n-iters num-iterations max-iterations total-timesteps timesteps num-timesteps"
)
_ASSIGNED = re.compile(r"(\+{0,2}[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
"""An override as Hydra has them: `trainer.max_epochs=5`."""
_NUMBER = re.compile(r"-[\d.]")
_PYTHON_FLAGS = re.compile(r"-[uBqsEIOPvbd]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_WHEN = re.compile(
    r"(?<!\d)(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T_ -]{1,2}\d\d[-:_.h]?\d\d(?:[-:_.m]?\d\d(?:\.\d+)?)?Z?)?(?!\d)"
)
_EPOCH_TIME = re.compile(r"(?<![\d.])1[5-9]\d{8}(?:\.\d+)?(?!\d)")
_DIGEST = re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{16,64}(?![0-9A-Za-z])")
_TEMPORARY = re.compile(r"(?:/var)?/tmp/|/dev/shm/|/run/user/\d+/")


class Signature(NamedTuple):
    exact: str
    likeness: str  # the same for any content of its script: by this an earlier version is found


class _Word(NamedTuple):
    """A part of a command: an option with its value, or any other word."""

    name: str  # as it was written, without the value; empty if it is no option
    value: str | None
    at: int  # where it begins
    size: int  # how many words it takes


def sign(
    command: Sequence[str], *, directory: str, content: str, user: str, tags: Iterable[str] = (), gpus: int = 1
) -> Signature:
    """The signature of a job, where `content` is a hash of its script; empty if that is unknown."""
    command = without_shell(command)
    words = shown(command)
    place = os.path.normpath(os.path.join(directory, os.path.dirname(script_of(command) or "")))
    common = [*words, "", user, str(gpus), "", *sorted(set(tags))]
    return Signature(_hash("exact", content or place, *common), _hash("like", place, *common))


def shown(command: Sequence[str]) -> list[str]:
    """A command without what belongs to one run only; `#` stands for the number of epochs."""
    command = without_shell(command)
    code = code_at(command)
    script = script_of(command)
    found = [program_of(command[0])] if command else []
    for word in _words(command, 1, code):
        name = _plain_name(word.name)
        if name in _EPOCHS | _STEPS:
            found.append(f"{name}=#")
        elif name and is_own(name):
            continue
        elif word.name:
            found.append(word.name if word.value is None else f"{word.name}={_general(word.value)}")
        elif script is not None and word.value == script:
            found.append(os.path.basename(script))
        else:
            found.append(_general(word.value or ""))
    found += command[code:] if code else ()
    return _without_flags(found)


def is_own(name: str) -> bool:
    """Whether an option of this name (`run-id`) belongs to one run only, or to what is learnt."""
    first, _, last = name.rpartition("-")
    return name in _OWN or name in _TUNED or last == "seed" or (first in _PLACES and last in _KINDS)


def epochs_of(command: Sequence[str]) -> float:
    """The epochs, or else steps, that a command asks for; 0 if it does not say."""
    found: dict[bool, float] = {}
    command = without_shell(command)
    for word in _words(command, 1, code_at(command)):
        name = _plain_name(word.name)
        if name in _EPOCHS | _STEPS and (number := _number(word.value)) > 0:
            found.setdefault(name in _EPOCHS, number)
    return found.get(True) or found.get(False) or 0.0


def overridden(command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    found = list(without_shell(command))
    for given in _words(["", *arguments], 1, 0):
        name = _plain_name(given.name)
        there = [word for word in _words(found, 1, code_at(found)) if name and _plain_name(word.name) == name]
        for word in reversed(there):
            found[word.at : word.at + word.size] = _written(found[word.at], word, given.value)
        if not there:
            found += arguments[given.at - 1 : given.at - 1 + given.size]
    return found


def with_own_id(command: Sequence[str], id: str) -> list[str]:
    """A command with another value of its option `--id`, if it has one."""
    words = without_shell(command)
    has = any(_plain_name(word.name) == "id" and word.value is not None for word in _words(words, 1, code_at(words)))
    return overridden(command, [f"--id={id}"]) if has else list(command)


def reads_text(command: Sequence[str]) -> bool:
    """Whether a command is a shell's text (`sh -c 'a && b'`), to which arguments cannot be added."""
    words = without_shell(command)
    return bool(words) and program_of(words[0]) in SHELLS and 0 < code_at(words) == len(words) - 2


def _written(former: str, word: _Word, value: str | None) -> list[str]:
    if value is None:
        return [word.name]
    return [f"{word.name}={value}"] if word.size == 1 and "=" in former else [word.name, value]


def _words(command: Sequence[str], begin: int, code: int) -> Iterator[_Word]:
    at, end = begin, code or len(command)
    while at < end:
        text = command[at]
        assigned = _ASSIGNED.fullmatch(text)
        if text.startswith("--") and len(text) > 2:
            name, equals, value = text.partition("=")
            takes = not equals and at + 1 < end and _may_be_value(command[at + 1])
            yield _Word(name, command[at + 1] if takes else value if equals else None, at, 2 if takes else 1)
            at += 2 if takes else 1
            continue
        yield _Word(assigned[1], assigned[2], at, 1) if assigned else _Word("", text, at, 1)
        at += 1


def _may_be_value(text: str) -> bool:
    return not text.startswith("-") or _NUMBER.match(text) is not None


def _plain_name(name: str) -> str:
    if name.startswith("hydra.") and name.endswith(".dir"):
        return "output-dir"
    return name.lstrip("-+").rpartition(".")[2].replace("_", "-").casefold()


def _without_flags(words: list[str]) -> list[str]:
    if not words or words[0] != "python":
        return words
    at = 1
    while at < len(words) and _PYTHON_FLAGS.fullmatch(words[at]):
        at += 1
    return [words[0], *words[at:]]


def _general(value: str) -> str:
    """A value without times, random names and temporary paths."""
    for pattern in (_UUID, _WHEN, _EPOCH_TIME, _DIGEST):
        value = pattern.sub("*", value)
    if temporary := _TEMPORARY.match(value):
        _, below, last = value[temporary.end() :].rpartition("/")
        return f"/tmp/*/{last}" if below else "/tmp/*"
    return value


def _number(text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _hash(*parts: str) -> str:
    text = "\0".join(parts).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]
