"""`JobField`: all that is declared of one field of a job. The table is `spec.fields`."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from gpuyard.errors import UserError
from gpuyard.spec.kinds import DURATION, INSTANT, NUMBER, SHARE, SIGNAL, WHOLE, Kind, Moment, number_range
from gpuyard.units import parse_signal

_BARE = re.compile(r"\+?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
MOST_INDEX = 1_000_000
"""No machine has as many GPUs."""
MOST_SECONDS = 1e10
"""Three hundred years: longer than anything takes, and all such times can be told."""


class FormGroup(NamedTuple):
    title: str
    inside: str
    """What is in there, while it is folded."""


class Option(NamedTuple):
    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    edits: bool = True
    """Whether `gpuyard edit` has it, if the field can be edited at all."""
    local: bool = False
    """Whether the command line itself makes something of it, and does not send it as it is."""


class FormEntry(NamedTuple):
    group: FormGroup
    place: int
    """Orders the fields of a group."""
    label: str
    hint: str
    example: str = ""
    name: str = ""
    """What the form calls it, if not as the API does."""
    usual: str = ""
    """A text that says the same as nothing."""
    widget: str = "text"
    """`text`, `number`, `area`, `tick` or `choice`."""


class DialogEntry(NamedTuple):
    place: int
    label: str
    hint: str


class ShowLine(NamedTuple):
    """A line of `gpuyard show`; it is left out where a field has its default."""

    place: int
    label: str
    yes: str = "yes"
    """What a switch that is on is shown as."""


class JobField(NamedTuple):
    # No dataclass: to import those takes as long as all else that a submit does.
    name: str
    """As the API calls it."""
    kind: Kind
    default: Any = None
    """What the API assumes where it is left out."""
    description: str = ""
    """For the API."""

    least: float | None = None
    above: float | None = None
    """The value must be larger than this."""
    most: float | None = None
    longest: int | None = None
    """Characters of a text, or of each text of several."""
    most_items: int | None = None
    largest: int | None = None
    """Characters of several texts together."""
    choices: tuple[str, ...] = ()
    future: bool = False
    """Whether a time must not have passed already."""
    unit: str = ""
    """If not that of its kind."""
    sample: str = ""
    """An example for messages, if the form has none, and not that of its kind."""
    needs_unit: bool = False
    """Whether a bare number is refused, because Slurm's users mean minutes by it, and others seconds."""

    option: Option | None = None
    keys: tuple[str, ...] = ()
    """More keys for job files; the first is also the editor's."""
    slurm: str = ""
    """Slurm's option that means the same, without dashes."""
    taken_back: str = "none"
    """The text that takes it back."""
    clears: bool = True
    """Whether `none` takes it back, and is not a value of its own."""

    editable: bool = True
    """Whether it can change while the job waits."""
    while_running: bool = False
    """Whether it can change while the job runs."""
    stored: bool = True
    """Whether `Work` has it, under the same name; else the request to the core, or the queue, has it."""
    answer: str | None = None
    """What a job's JSON calls it, if not as requests do; empty: it is not told."""
    null: bool = False
    """Whether a job's JSON has null in place of an empty number."""

    form: FormEntry | None = None
    dialog: DialogEntry | None = None
    editor: int = 0
    """Its place in the editor's file; 0: it is not there."""
    show: ShowLine | None = None

    @property
    def flag(self) -> str:
        """The option's first name, as in `--gpu-memory`."""
        return self.option.flags[0].partition("/")[0] if self.option else ""

    @property
    def option_limits(self) -> tuple[float | None, float | None]:
        """The least and the most that its option takes; of GPUs, the daemon tells how many there are."""
        if self.kind.option not in (int, float):
            return None, None
        return self.least, None if self.most == MOST_INDEX else self.most

    @property
    def attribute(self) -> str:
        """What the command line's code calls the option: `from_`, `time`, `gpu_memory`."""
        name = self.flag.removeprefix("--").replace("-", "_")
        return f"{name}_" if name == "from" else name

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else self.flag.removeprefix("--")

    @property
    def all_keys(self) -> tuple[str, ...]:
        """All that job files may call it: its long options, and more."""
        options = [flag.partition("/")[0] for flag in self.option.flags] if self.option else []
        return (*self.keys, *(flag.removeprefix("--") for flag in options if flag.startswith("--")))

    @property
    def json_key(self) -> str:
        """What a job's JSON calls it; empty if it is not told."""
        return self.name if self.answer is None else self.answer

    @property
    def null_if_empty(self) -> bool:
        return self.null or self.kind.json == "string"

    @property
    def form_name(self) -> str:
        return (self.form.name if self.form else "") or self.name

    @property
    def blank(self) -> Any:
        return self.default if self.taken_back == "none" else self.kind.parse(self.taken_back, Moment(0.0))

    @property
    def example(self) -> str:
        """A text that its option takes."""
        said = self.form.example if self.form else ""
        return said or self.sample or (self.choices[0] if self.choices else "") or self.kind.example

    @property
    def wanted(self) -> str:
        """What a value is, for messages: `a whole number of 1 or more`."""
        if self.choices:
            return f"{'some' if self.kind.json == 'array' else 'one'} of {', '.join(self.choices)}"
        if self.kind in (WHOLE, NUMBER):
            return f"a {self.kind.name}{number_range(self.least, None if self.most == MOST_INDEX else self.most)}"
        if self.kind is DURATION and self.most != MOST_SECONDS:
            return f"a duration of at most {self.kind.format(self.most)}"
        longest = f" of at most {self.longest:,} characters" if self.longest else ""
        return (self.kind.wanted or f"a {self.kind.name}") + longest

    def complaint(self, text: object, name: str = "") -> str:
        """One sentence on a text that says nothing that the field can have."""
        return f"{name or self.flag} is {self.wanted}, as in {self.example}, not '{text}'"

    @property
    def json_wanted(self) -> str:
        """The same for JSON: `a number of seconds above 0, as in 5400`."""
        if self.kind is INSTANT:
            return 'a time in ISO-8601, or seconds since the epoch, as in "2026-11-20T08:00:00+01:00"'
        example = self.kind.parse(self.example, Moment(0.0))
        example = int(example) if isinstance(example, float) and example.is_integer() else example
        limits = number_range(self.least, None if self.most == MOST_SECONDS else self.most, self.above)
        number = f"a number of {self.kind.unit}{limits}" if self.kind.unit else self.wanted
        return f"{number}{', or auto' if self.kind is SHARE else ''}, as in {json.dumps(example)}"

    def parse(self, text: str, moment: Moment) -> Any:
        if self.needs_unit and _BARE.fullmatch(text.strip()) and float(text):
            raise UserError(f"{self.flag} {text}: {text}m or {text}s? Write the unit; only #SBATCH lines mean minutes")
        return self.kind.parse(text, moment)

    def read(self, text: str, moment: Moment) -> dict[str, Any]:
        """What a text says, as JSON has it: a signal may bring a notice with it."""
        if self.kind is not SIGNAL:
            return {self.name: self.parse(text, moment)}
        signal, notice = parse_signal(text)
        return {"signal": signal} | ({} if notice is None else {"notice": notice})
