"""`gpuyard submit`:

queue a command, a script, or the jobs of a file. A program that does not exist is reported before the job is queued.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.jobs.job_options import Options
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError, suggest
from gpuyard.spec.fields import option_fields
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import SWITCH

if TYPE_CHECKING:
    import typer

    from gpuyard.cli.common_options import Command, DaemonOptions, NoWait, option
    from gpuyard.client.client import Client


_SHIMS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "shims")
"""Stand-ins for Slurm's programs, which come last in the PATH of a job that was written for Slurm."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # A shell's default PATH


def check_program(word: str, directory: str, environment: Mapping[str, str], *, slurm: bool, later: bool) -> None:
    """Refuse a program that cannot be run; `later`: it may be there when the job may start."""
    place = os.path.join(directory, word)
    if "/" not in word:
        path = environment.get("PATH", _PATH) + (f"{os.pathsep}{_SHIMS}" if slurm else "")
        if _is_on(path, word, directory):
            return
    elif os.path.isfile(place) and os.access(place, os.X_OK):
        check_lines(place, word)
        return
    if later and word != "-" and not os.path.exists(place):
        return
    raise UserError(_why(word, place))


def _is_on(path: str, word: str, directory: str = "") -> bool:
    """Whether a program is on a PATH; not by shutil, which imports all compressions."""
    places = (os.path.join(directory, folder, word) for folder in path.split(os.pathsep))
    return any(os.path.isfile(place) and os.access(place, os.X_OK) for place in places)


def missing(word: str) -> str | None:
    """What is wrong with a word that looks like a file's name, if there is no such file."""
    if os.path.exists(word) or ("/" not in word and "." not in word):
        return None
    return f"there is no such file here{_near(os.path.abspath(word))}"


def _why(word: str, place: str) -> str:
    """Why a word is no command, and what to write instead."""
    if word == "-":
        return "a script cannot be read from the standard input; save it to a file, and submit that"
    if os.path.isdir(place):
        return f"{word} is a directory, not a command"
    if not os.path.isfile(place):
        if "/" in word:
            return f"there is no file {word}{_near(place)}"
        near = suggest(word, _files(os.path.dirname(place)))
        return f"there is no program {word} on the PATH, and no file here{near or f'; sh -c {word} looks for it later'}"
    if word.endswith((".yaml", ".yml")):
        return f"{word} is no command; if it is a job file, write: gpuyard submit --file {word}"
    here = word if "/" in word else f"./{word}"
    if os.access(place, os.X_OK):
        return f"{word} is not on the PATH; write {here} for the file that is here"
    if word.endswith(".py"):
        return f"{word} is not executable; write: gpuyard submit -- python {word} (or chmod +x {word}, and {here})"
    mend = f"begin it with #!/bin/bash, and chmod +x {word}"
    return f"{word} is not executable; write what runs it, as in: gpuyard submit -- bash {word} (or {mend})"


def _near(place: str) -> str:
    folder, name = os.path.split(place)
    return suggest(name, _files(folder)) or "; check its name, and the directory that you are in"


def _files(folder: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder or os.curdir) if entry.is_file()]
    except OSError:
        return []


def check_lines(path: str, word: str, *, options: bool = False) -> None:
    """Refuse a script that cannot run, or whose lines for us (`options`) would not be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(2**16)
    except (OSError, ValueError):  # a program that may be run, but not read; or no file at all
        return
    if head.startswith(b"#!") and head.split(b"\n", 1)[0].endswith(b"\r"):
        raise UserError(f"{word} has DOS line breaks, so it cannot be run; dos2unix {word} mends it")
    asks = b"\0" not in head and any(line.startswith((b"#SBATCH", b"#GPUYARD")) for line in head.splitlines())
    if options and asks and not head.startswith(b"#!"):
        raise UserError(f"{word} has lines for gpuyard, but is not marked as a script; begin it with #!/bin/bash")


def without_undeliverable_mail(wanted: dict[str, Any], client: Client) -> dict[str, Any]:
    """The job without addresses that no mail can be sent to, so that a script for Slurm still runs."""
    addresses = [text for text in wanted.get("notify") or () if "@" in text and "://" not in text]
    if not addresses or not wanted.get("slurm") or client.can_mail():
        return wanted
    output.say(
        f"warning: no mail is sent to {', '.join(addresses)}: the daemon knows no mail server (setting mail); "
        "gpuyard notify add tells you of your jobs by other ways"
    )
    left = [text for text in wanted["notify"] if text not in addresses]
    return {**{name: value for name, value in wanted.items() if name != "notify"}, "notify": left or ["all"]}


class Request(Options):
    """The command, and its options: those of submit and of run."""

    command: Command

    def describe(self, *, in_place: bool = False, elsewhere: bool = False, check: bool = True) -> dict[str, Any]:
        """The job as a request to the API; errors are raised before anything is sent.

        A script's lines are read, unless it runs in place, like any command. For a daemon elsewhere, nothing of
        this machine counts but the script, and what is said.
        """
        words, options, script, more = self._words(), self, None, dict[str, str]()
        if not in_place:
            check_lines(words[0], words[0], options=True)
        if not in_place and (path := _script(words[0])):
            from gpuyard.cli.jobs.job_script import read_script

            script, asked, more = read_script(path)
            options = self.over(asked)
            words[0] = os.path.basename(path) if elsewhere else words[0]
        body = {"gpus": 1, **options.body()}
        if script is not None:
            body["script"] = script
        _warn_of_deadline(body)
        make = _for_elsewhere if elsewhere else _for_here
        return make(options, words, body, more, check=check and script is None and not (in_place and elsewhere))

    def _words(self) -> list[str]:
        words = list(self.command or ())
        if not words or not words[0]:
            raise UserError("there is no command to run; put it after --, as in -- python train.py")
        first = words[0]
        if any(blank in first for blank in " \t\n") and not os.path.exists(first):
            raise UserError(
                f"there is no program '{first}': write its words without quotes, as in: gpuyard submit -- {first}; "
                f"or let a shell read them: gpuyard submit -- sh -c '{first}'"
            )
        return words


def _for_here(
    options: Options, words: list[str], body: dict[str, Any], more: dict[str, str], check: bool
) -> dict[str, Any]:
    from gpuyard.client.connection import description

    directory, environment, slurm = options.directory(), options.environment(), bool(body.get("slurm"))
    if slurm:  # those of a job of Slurm's that this may be sent from are not this job's
        environment = {name: value for name, value in environment.items() if not name.startswith("SLURM_")}
    environment |= more
    if check:
        later = any(body.get(name) for name in ("dependency", "begin", "hold"))
        check_program(words[0], directory, environment, slurm=slurm, later=later)
    return description(words, directory, environment, **body)


def _for_elsewhere(
    options: Options, words: list[str], body: dict[str, Any], more: dict[str, str], check: bool
) -> dict[str, Any]:
    from gpuyard.client.connection import remote_description

    if options.chdir and not options.chdir.startswith(("/", "~")):
        raise UserError(
            f"--chdir {options.chdir}: where that is on another machine nobody knows; write a path from its root, or "
            f"'~/{options.chdir}' for one in your home directory there"
        )
    word = words[0]
    if check and (why := missing(word)):
        output.say(f"warning: {word} is taken for a program of the machine that it is to run on, since {why}")
    if "script" not in body and os.path.isfile(word) and (check or not os.path.isabs(word)):  # /bin/sh is there too
        output.say(f"warning: the file {word} of this machine is not sent; there has to be one of that name there")
    more.pop("SLURM_SUBMIT_DIR", None)  # that is known there
    return remote_description(words, options.chdir, None, options.variables() | more, **body)


_SHELLS = frozenset((b"sh", b"bash", b"dash", b"zsh", b"ksh", b"fish", b"tcsh", b"csh"))


def _script(path: str) -> str | None:
    """The path, if it is a script to be stored with the job: a shell script, or one with lines for gpuyard."""
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return None
            head = file.read(2**16)
    except (OSError, ValueError):
        return None
    programs = {part.rpartition(b"/")[2] for part in head.split(b"\n", 1)[0].split()}
    if programs & _SHELLS or b"\n#SBATCH" in head or b"\n#GPUYARD" in head:
        return path
    return None


def _warn_of_deadline(body: Mapping[str, Any]) -> None:
    if (deadline := body.get("deadline")) is None:
        return
    import time

    takes = body.get("estimate") or body.get("time_limit") or 0.0
    if max(time.time(), body.get("begin") or 0.0) + takes > deadline:
        output.say("warning: this job cannot be done by its deadline, even if it starts as soon as it may")


def _warn_of_number(request: Request) -> None:
    if request.name and request.name.isdecimal():
        output.say(f"warning: the job is called '{request.name}': -n is its name here, not Slurm's number of tasks")


def _warn_of_real_gpus(wanted: list[dict[str, Any]], client: Client) -> None:
    if any(one.get("simulate_use") for one in wanted) and not client.gpus()["simulated"]:
        output.say("warning: --simulate-use is for simulated GPUs; of real ones it is measured what a job uses")


def run_in_place(context: typer.Context, request: Request) -> bool:
    """Whether -- stands before the command: then it is a command, also if it is a script."""
    return _is_after_dashes(request.command or [], context.meta.get("gpuyard.line", []))


def _is_after_dashes(words: Sequence[str], line: Sequence[str]) -> bool:
    return bool(words) and len(line) > len(words) and line[-len(words) - 1] == "--"


def send(in_place: bool, request: Request, client: Client, **more: Any) -> str:
    """Queue what a command line asks for; the job's id."""
    _warn_of_number(request)
    wanted = request.describe(in_place=in_place, elsewhere=client.host is not None)
    return _send_described({**wanted, **more}, client)


def _send_described(wanted: dict[str, Any], client: Client) -> str:
    [wanted] = _mailed([wanted], client)
    job = client.submit_described(wanted)
    _warn_of_real_gpus([wanted], client)
    _tell_where(f"job {job}: is", [wanted], client)
    return job


def _tell_where(who: str, wanted: list[dict[str, Any]], client: Client) -> None:
    if client.host is None:
        return
    places = ", ".join(dict.fromkeys(one.get("directory", "your home directory") for one in wanted))
    scripts = sum("script" in one for one in wanted)
    but = f" but the script{'s' * (scripts > 1)}" if scripts else ""
    output.say(f"{who} to run in {places} on the machine at {client.host}; no file of this machine is sent{but}")


def _mailed(wanted: list[dict[str, Any]], client: Client) -> list[dict[str, Any]]:
    if not any(one.get("notify") for one in wanted):
        return wanted
    return [without_undeliverable_mail(one, client) for one in wanted]


def submit(
    context: typer.Context,
    yard: DaemonOptions,
    request: Request,
    file: Annotated[
        str | None, option("--file", "-f", "FILE", "Queue all jobs of a YAML file, or none of them.")
    ] = None,
    no_wait: NoWait = False,
    json: Annotated[bool, option("--json", "Print JSON instead of the bare id.")] = False,
) -> None:
    """Queue a command or a script, and print its job's id."""
    client = yard.client(no_wait=no_wait)
    if file is not None:
        _submit_file(client, file, request, json)
        return
    job = send(run_in_place(context, request), request, client)
    output.print_either(json, {"id": job}, lambda: print(job))


def _submit_file(client: Client, file: str, request: Request, json: bool) -> None:
    from gpuyard.cli.jobs.job_file import read_jobs

    if request.command:
        raise UserError("--file has the jobs, so there is no command to be given with it")
    wanted = _mailed(read_jobs(file, request, elsewhere=client.host is not None), client)
    ids = client.submit_all(wanted)
    _warn_of_real_gpus(wanted, client)
    _tell_where(f"{output.many(len(ids), 'job')}: {'is' if len(ids) == 1 else 'are'}", wanted, client)
    output.print_either(json, {"ids": ids}, lambda: print("\n".join(ids)))


def submit_quickly(line: Sequence[str]) -> bool:
    """Do what `submit` does for a plain command line, without typer, whose import takes longer than all that.

    Returns False if the line is not plain, or has a mistake: typer reads it then, and tells what is wrong.
    """
    read = read_plain(line)
    if read is None or (not read[0].keys() - {"no_wait"} and os.environ.get("GPUYARD_HOST")):
        return False
    from gpuyard.client.connection import Connection
    from gpuyard.config import daemon_socket

    place, options, words = read
    no_wait, socket = place.pop("no_wait", "") == "yes", daemon_socket(place)
    request = Request(**options, command=words)
    _warn_of_number(request)
    wanted = request.describe(in_place=_is_after_dashes(words, line))
    if wanted.get("notify") or wanted.get("simulate_use"):  # more is to be asked of the daemon
        from gpuyard.client.client import Client

        print(_send_described(wanted, Client(socket, say=output.say, no_wait=no_wait)))
    else:
        print(Connection(socket, say=output.say, no_wait=no_wait).submit_described(wanted))
    return True


_PLACE = {"--data-dir": "data_dir", "--socket": "socket"}
_UNUSUAL = ("--profile",)  # its value may be left out


def read_plain(line: Sequence[str]) -> tuple[dict[str, str], dict[str, Any], list[str]] | None:
    """Where the daemon is, the job's options, and the command; None if typer should read the line."""
    place, found, rest = dict[str, str](), dict[str, Any](), list(line)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        if rest[0] == "--no-wait":
            place["no_wait"] = rest.pop(0) and "yes"
            continue
        flag, equals, text = rest.pop(0).partition("=")
        field, on = _BY_FLAG.get(flag, (None, False))
        if (equals and not flag.startswith("--")) or (field is None and flag not in _PLACE) or flag in _UNUSUAL:
            return None
        if field is not None and field.kind is SWITCH:
            if equals:
                return None
            found[field.attribute] = on
            continue
        if not equals:
            if not rest:
                return None
            text = rest.pop(0)
        if field is None:
            place[_PLACE[flag]] = text
        elif not _take(field, text, found):
            return None
    return place, found, rest[1:] if rest[:1] == ["--"] else rest


def _take(field: JobField, text: str, found: dict[str, Any]) -> bool:
    """Add an option's value; False if it is none."""
    kind, (least, most) = field.kind.option, field.option_limits
    try:
        value: Any = text if kind in (str, list) else kind(text)
    except ValueError:
        return False
    if (least is not None and value < least) or (most is not None and value > most):
        return False
    if kind is float and not math.isfinite(value):
        return False
    found[field.attribute] = [*found.get(field.attribute, ()), value] if kind is list else value
    return True


_BY_FLAG: dict[str, tuple[JobField | None, bool]] = {
    name: (field, not off)
    for field in option_fields()
    for flag in (field.option.flags if field.option else ())
    for off, name in enumerate(flag.split("/"))
}
"""Fields by the names of their options, and whether that name turns a switch on."""
