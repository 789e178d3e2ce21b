"""Out of GPU memory: whether a job's output says so, and how much of a GPU its next attempt gets."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.core.model import Request
from gpuyard.spec.work import Work
from gpuyard.units import format_size

TAIL = 2**16  # bytes of the end of a log that are looked at
FULL = 0.97  # the part of a GPU's memory that is in use when there is none left, near enough

_LOUD, _QUIET = 40, 10  # lines of other output that may follow an exception, and words within a line
_SAID = 200  # characters of a line that are worth repeating
_LONG = 2000  # lines, and characters of a line, that are read: long output must not keep the daemon busy
_ANY = re.compile(r"memory|oom\b|alloc|exhausted|_STATUS_", re.IGNORECASE)
"""Without any of these there is nothing to look for."""


class Death(NamedTuple):
    """A job ran out of GPU memory, with the bytes that its output tells."""

    said: str  # the line that says so
    wanted: float = 0.0  # bytes that it tried to get when there were none; 0 if it does not say
    held: float = 0.0  # bytes that it had by then; 0 if it does not say


_GPU = re.compile(
    r"(?:CUDA|HIP|XPU|GPU) out of memory"
    r"|OutOfMemoryError: (?:Allocation on device|CUDA|HIP|XPU|(?:O|o)ut of memory (?:allocating|to allocate))"
    r"|(?:CUDA|HIP|CUDA runtime|CUDA driver) error:? (?:\(?2\)?:? )?out of memory"
    r"|cuda failed with error 2\b|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|(?:cudaMalloc|cuMemAlloc|hipMalloc)\w* failed: out of memory"
    r"|C(?:UBLAS|UDNN|USOLVER|USPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: (?:Out of memory|.{0,200}(?:OOM when allocating|[Ff]ailed to allocate))"
    r"|[Rr]esource exhausted: (?:Out of memory|OOM when allocating)"
    r"|ResourceExhaustedError.{0,200}(?:OOM when allocating|[Ff]ailed to allocate|[Oo]ut of memory)"
    r"|OOM when allocating tensor"
    r"|Out of memory while trying to allocate|(?:O|o)ut of memory (?:allocating|to allocate) [\d,]+ bytes"
    r"|failed to allocate .{0,60}(?:from|on) device|ggml_\w{0,60}cuda.{0,200}out of memory"
    r"|NCCL.{0,200}(?:out of memory|Failed to CUDA malloc)"
)
"""What only a lack of GPU memory causes."""
_PERHAPS = re.compile(
    r"C(?:UBLAS|UDNN|USOLVER|USPARSE)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)|cuDNN failed to initialize"
    r"|[Uu]nable to find (?:a valid cuDNN algorithm|an engine to execute)|Failed to get convolution algorithm"
)
"""What has several causes; a lack of GPU memory if the GPU was full."""
_NOT_GPU = re.compile(
    r"device:CPU|allocator (?:cpu|mklcpu|cuda_host)|cuda_host_bfc|DefaultCPUAllocator|No space left on device"
)
"""What only seems to be about GPU memory: it is about the machine's, or a disk."""
_NAME = re.compile(r"(?:[A-Za-z_][\w.]*\.)?(?:[A-Z]\w*(?:Error|Exception|Interrupt|NotFound)|SystemExit)(?::|\s*$)")
"""How the last line of a traceback begins."""
_PASSED_ON = re.compile(
    r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|DistBackendError"
    r"|DistNetworkError|DistStoreError|RayTaskError|WorkerCrashedError|ActorDiedError|SignalException|BrokenPipeError"
    r"|ConnectionResetError|ConnectionRefusedError|EOFError|HYDRA_\w+"
    r"|ResourceExhaustedError: Graph execution error)"
    r"|.*(?:NCCL|Connection (?:closed|reset) by peer|Broken pipe|[Rr]ank \d+|another process|DataLoader worker)"
)
"""Errors of those who depended on a process that failed; and TensorFlow's, which tells the reason elsewhere."""
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_PREFIX = re.compile(
    r"(?:\x1b\[[\d;]*[A-Za-z])|^(?:\[?(?:rank|default|worker)?\s?\d+\]?(?:<\w+>)?:\s?|\(\w[^)]{0,60}pid=\d+[^)]{0,60}\)\s?)+"
)
"""Colours, and what launchers put before the lines of a process: `[rank0]:`, `0: `, `(train pid=12)`."""
_SILENT = re.compile(
    r"\s|$|Traceback|[-=*^~#]{3,}|[EWI]\d{4} |wandb:|\[bt\]|srun:|slurmstepd:|Exception ignored|frame #"
)
"""Lines that are not counted: parts of a traceback, rules, and what launchers say at the end."""

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_MUCH = 2.0**50  # bytes: a larger number is no amount
_AMOUNT = r"([\d,]+(?:\.\d+)?)\s*([KMGTkmgt]?)(?:i?B|bytes)?\b"
_WANTED = re.compile(rf"(?:ried to allocate|rying to allocate|to allocate|ailed to allocate|allocating)\s+{_AMOUNT}")
_HELD = re.compile(
    rf"this process has {_AMOUNT} memory in use|{_AMOUNT} already allocated|allocated so far: {_AMOUNT}", re.IGNORECASE
)
_TENSOR = re.compile(r"tensor with shape\[([\d,]+)\](?: and type (\w+))?")
_TYPES = {"half": 2, "bfloat16": 2, "float16": 2, "double": 8, "int64": 8, "complex64": 8, "complex128": 16, "int8": 1}


def recognise(log: bytes, *, full: bool = False, wordless: bool = False) -> Death | None:
    """That the job whose output ends so ran out of GPU memory; None if it does not look like it.

    With `full`, the GPU was seen without memory shortly before: then less will do. With `wordless`, nothing will do,
    since such a job could not be heard: unless it says that it failed of something else.
    """
    text = log[-TAIL:].replace(b"\0", b"").decode(errors="replace")  # the NULs of UTF-16 say nothing
    if not wordless and not _ANY.search(text):
        return None
    lines, later = _lines(text), 0
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        verdict = _verdict(line, full)
        if verdict:
            patience = _LOUD if _NAME.match(line) else _QUIET
            return _death(lines, index) if later <= patience else None
        if verdict is False and not _follows(lines, index):
            return None
        later += not _SILENT.match(line)
    return Death("") if wordless else None


def _lines(text: str) -> list[str]:
    """The text in lines, without control sequences and launchers' prefixes."""
    last = text.replace("\r\n", "\n").split("\n")[-_LONG:]
    found = (line.rpartition("\r")[2][:_LONG] for line in last)
    return [_PREFIX.sub("", line) for line in found]


def _verdict(line: str, full: bool) -> bool | None:
    """Whether a line tells of a lack of GPU memory (True), of another error (False), or of neither (None)."""
    if _NOT_GPU.search(line):
        return False
    if _GPU.search(line) or (full and _PERHAPS.search(line)):
        return True
    if _NAME.match(line) and not _PASSED_ON.match(line):
        return False
    return None


def _follows(lines: list[str], index: int) -> bool:
    for line in reversed(lines[:index]):
        if _CHAINED.search(line):
            return True
        if not _SILENT.match(line):
            return False
    return False


def _death(lines: list[str], index: int) -> Death:
    """The amounts in the message; libraries tell more in the lines before and after."""
    line = lines[index]
    wanted = held = 0.0
    for near in (line, *lines[index + 1 : index + 3], *reversed(lines[max(0, index - 8) : index])):
        wanted = wanted or (_amount(_WANTED, near) if _GPU.search(near) else 0.0) or _tensor(near)
        held = held or _amount(_HELD, near)
    return Death(line.strip()[:_SAID], wanted, held)


def _amount(pattern: re.Pattern[str], line: str) -> float:
    """The bytes in the first two groups that matched; 0 if there are none."""
    if (found := pattern.search(line)) is None:
        return 0.0
    number, unit = [group for group in found.groups() if group is not None][:2]
    value = float(number.replace(",", "") or 0) * _UNITS[unit.lower()]
    return value if value < _MUCH else 0.0


def _tensor(line: str) -> float:
    """The bytes of a tensor in TensorFlow's message."""
    if (found := _TENSOR.search(line)) is None:
        return 0.0
    size = math.prod(float(n[:20]) for n in found[1].split(",") if n) * _TYPES.get(found[2] or "float", 4)
    return size if size < _MUCH else 0.0


TOLERANCE = 64 * 2.0**20  # bytes beyond its share that are tolerated
BLAMELESS = 5  # how often a job that kept to its share is run again without that being counted
_STEP = 64 * 2**20
_MORE, _GROWTH = 1.25, 1.5


class Shortage(NamedTuple):
    needed: float  # bytes on one GPU that it had or tried to get; 0 if unknown
    full: bool  # whether the GPU had none left; else something else limited it, such as a cap
    died_on: float  # bytes of the smallest of its GPUs
    stopped: bool = False  # whether it was stopped for exceeding its share, before the GPU had none left


class Share(NamedTuple):
    memory: float  # bytes on each GPU; of one that is alone there, how large the GPUs must be (0: any)
    alone: bool
    counted: bool = True


def next_share(shortage: Shortage, request: Request, work: Work, sizes: Sequence[float], buffer: float) -> Share | None:
    """What to try next, on GPUs of these sizes with `buffer` bytes kept free; None if nothing is left."""
    largest = sorted(sizes, reverse=True)[request.gpus - 1]  # a job on several GPUs needs as many
    if request.whole:
        if not is_sharing(request, work) or work.ooms >= work.oom_retries or largest <= shortage.died_on:
            return None
        return _alone(max(_MORE * shortage.needed, shortage.died_on + 1), sizes, largest)
    if is_blameless(shortage, request) and work.blameless < BLAMELESS:
        return Share(request.memory, alone=False, counted=False)
    if work.ooms >= work.oom_retries:
        return None
    size = math.ceil(max(_MORE * shortage.needed, _GROWTH * request.memory) / _STEP) * float(_STEP)
    if work.ooms + 1 == work.oom_retries or size + buffer > largest:
        return _alone(size, sizes, largest)
    return Share(size, alone=False)


def is_sharing(request: Request, work: Work) -> bool:
    """Whether a job is meant to share GPUs, even if it has them for itself by now."""
    return not request.whole or bool(request.memory or work.asked_memory or work.auto_memory)


def is_blameless(shortage: Shortage, request: Request) -> bool:
    """Whether a job kept to its share as far as is known, and had too little because of others."""
    known = 0 < shortage.needed <= request.memory + TOLERANCE
    return known and shortage.full and not shortage.stopped and not request.whole


def _alone(size: float, sizes: Sequence[float], largest: float) -> Share:
    """Whole GPUs: large enough ones if there are any, else the largest."""
    too_small = [one for one in sizes if one < min(size, largest)]
    return Share(max(too_small, default=-1.0) + 1.0, alone=True)


def shortage_text(shortage: Shortage, request: Request) -> str:
    verb = "used" if shortage.stopped else "wanted"  # who ran out did not get all of it
    used = f"{verb} {format_size(shortage.needed)}" if shortage.needed else ""
    if request.whole:
        return "ran out of GPU memory" + (f": {used} of {format_size(shortage.died_on)}" if used else "")
    promised = f"{format_size(request.memory)} were promised"
    if shortage.stopped:
        return f"was stopped for using more GPU memory than promised: {used}, {promised}"
    if is_blameless(shortage, request):
        return f"ran out of GPU memory, though it kept to the {format_size(request.memory)} that were promised"
    return f"ran out of GPU memory: {used + ', ' if used else ''}{promised}"


def retry_text(share: Share, work: Work) -> str:
    if not share.counted:
        return "retried as it was"
    count = f"({work.ooms + 1} of {work.oom_retries})"
    if share.alone:
        least = f" larger than {format_size(share.memory)}" if share.memory else ""
        return f"retried alone on a GPU{least} {count}"
    return f"retried with {format_size(share.memory)} {count}"


def end_text(request: Request, work: Work) -> str:
    """Why nothing is left to try; empty where that is obvious."""
    if not is_sharing(request, work):
        return ""
    if work.oom_retries and work.ooms >= work.oom_retries:
        return f"all {work.oom_retries} retries with more are used up"
    return "no GPU here is larger" if request.whole else ""
