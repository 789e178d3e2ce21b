"""Trying a job out before it runs: a short job of its own, alone on a GPU, that leaves nothing behind.

It runs for a time, or with other arguments (`--epochs 2`), under an id of its own, in a directory that is thrown away
afterwards: what it writes there does not meet the job that it is to tell of.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from gpuyard.core.model import Request
from gpuyard.errors import UserError
from gpuyard.predict.signatures import epochs_of, overridden, with_own_id
from gpuyard.spec.work import Work
from gpuyard.units import parse_duration

TAG = "profile"
_NAME = "gpuyard-profile"
_SMALL = 131072  # of 512 bytes each: a file of less is copied whatever else there is
_ROOM = 1048576  # KiB of directories and large files that are copied beside
_PATIENCE = 2  # seconds for finding out how large one of them is
_APART = rf"""
from=$(pwd -P) || exit 125
dir=$(mktemp -d "${{from%/*}}/.{_NAME}.XXXXXX" 2>/dev/null) || dir=$(mktemp -d) || exit 125
trap 'cd / && rm -rf "$dir"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP
find -L "$from" -mindepth 1 -maxdepth 1 -type f -size -{_SMALL} -exec cp -pL -t "$dir" -- {{}} +
find -L "$from" -mindepth 1 -maxdepth 1 ! '(' -type f -size -{_SMALL} ')' -exec /bin/sh -c '
dir=$1 left={_ROOM}
shift
for one; do
size=$(timeout {_PATIENCE} du -skD -- "$one" 2>/dev/null) && [ "${{size%%[!0-9]*}}" -le "$left" ] &&
cp -RHp -t "$dir" -- "$one" 2>/dev/null && left=$((left - ${{size%%[!0-9]*}})) ||
{{ rm -rf "$dir/${{one##*/}}"; ln -s -t "$dir" -- "$one"; }}
done
' gpuyard "$dir" {{}} +
cd "$dir" || exit 125
"$@"
"""
"""What is there is copied, so that what is written to it is thrown away, also what links lead to; as far as that does
not take long: what is very large, data for example, is linked."""


def check_profile(text: str) -> float:
    """The seconds of a trial; 0 if arguments limit it."""
    if not text.strip():
        raise UserError("profile is a time, as in 30s, or arguments, as in '--epochs 2'")
    if _words(text)[0].startswith("-") or "=" in text:
        return 0.0
    try:
        seconds = parse_duration(text)
    except UserError:
        raise UserError(f"profile is a time, as in 30s, or arguments, as in '--epochs 2', not '{text}'") from None
    if not 0 < seconds < math.inf:
        raise UserError(f"profile must be more than 0 seconds, not '{text}'")
    return seconds


def profile_of(work: Work, request: Request, id: str, own_id: bool) -> tuple[Work, Request]:
    seconds = check_profile(work.profile)
    command = [word.replace("{id}", id) for word in work.command] if own_id else list(work.command)
    command = command if seconds else overridden(command, _words(work.profile))
    if not work.script:  # which takes the place of the first word
        command = ["/bin/sh", "-c", _APART, _NAME, *with_own_id(command, id)]
    tried = replace(
        work, command=tuple(command), name=f"profile of {work.name}", tags=(TAG,), profiles=work.signature, profile="",
        time_limit=seconds or work.time_limit, estimated=bool(seconds or work.time_limit), auto_memory=False,
        predicted=None, retries=0, oom_retries=0, requeue=False, notice=0.0, output="", error="", cap=False, mps=False,
        adaptive=False, thread_percentage=0.0, notify=("none",), notify_on=(), batch=None, row=None, task=None,
        tasks=None,
    )  # fmt: skip
    limit = seconds or request.limit
    return tried, replace(
        request, memory=0.0, compute=100.0, estimate=min(request.estimate, limit), limit=limit, array="", at_most=0,
        deadline=math.inf, preemptible=False, notice=0.0,
    )  # fmt: skip


def epochs_in(command: Sequence[str]) -> float:
    """The epochs that a command asks for, also a trial; 0 if it does not say."""
    return epochs_of(unwrapped(command))


def is_trial(command: Sequence[str]) -> bool:
    return list(command[2:4]) == [_APART, _NAME]


def unwrapped(command: Sequence[str]) -> Sequence[str]:
    """The command that a trial runs; any other command as it is."""
    return command[4:] if is_trial(command) else command


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"profile '{text}' cannot be read as arguments: {error}") from None
