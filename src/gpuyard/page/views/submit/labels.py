"""What the form calls its fields, and a line on each."""

from __future__ import annotations

from typing import Any, NamedTuple


class Field(NamedTuple):
    """A field of the form."""

    name: str
    label: str
    hint: str = ""
    example: str = ""
    kind: str = "text"
    """`text`, `number`, `area`, `tick` or `choice`."""
    choices: tuple[str, ...] = ()
    option: str = ""
    """What the command line calls it."""

    def told(self) -> dict[str, Any]:
        """As the browser wants it."""
        return self._asdict() | {"choices": list(self.choices)}


class Group(NamedTuple):
    """Fields that belong together, folded until somebody wants them."""

    title: str
    inside: str
    """What is in there, for who has not looked."""
    fields: tuple[Field, ...]

    def told(self) -> dict[str, Any]:
        """As the browser wants it."""
        return {"title": self.title, "inside": self.inside, "fields": [field.told() for field in self.fields]}


MAIN = (
    Field(
        "command", "Command", "The program and its arguments, as you would type them.",
        "python train.py --epochs 10", "area",
    ),
    Field("gpus", "GPUs", "How many it wants.", "1", "number"),
    Field("name", "Name", "What to call it; the program's name if empty.", "baseline"),
)  # fmt: skip
_TIME = Group(
    "Time",
    "limit, estimate, start, deadline",
    (
        Field("time", "Time limit", "It is ended after that; a good limit lets it start sooner.", "4h"),
        Field("estimate", "Estimate", "How long it is likely to run; the limit if empty.", "1h"),
        Field("begin", "Not before", "It starts then at the earliest.", "tomorrow 8:00"),
        Field("deadline", "Deadline", "When it should be done; the policy edf looks at it.", "fri 14:00"),
    ),
)
_WHERE = Group(
    "Which GPUs, and sharing them",
    "a share of memory, MPS, some GPUs only",
    (
        Field(
            "gpu_memory", "Memory share",
            "So much memory of each GPU, which others then share; auto: as much as the same job used before.", "6G",
        ),
        Field(
            "profile", "Try it out first",
            "If nothing is known of it yet: for a time, or with other arguments. It tells how much memory it needs.",
            "30s",
        ),
        Field("oom_retries", "If memory runs out", "So often it is run again with more of it.", "3"),
        Field("cap", "Cap", "Its framework is told to keep to its share.", kind="tick"),
        Field("mps", "MPS", "It shares the GPU's cores with others through NVIDIA's MPS.", kind="tick"),
        Field("thread_percentage", "Threads by MPS", "Percent of the GPU's threads, at most.", "30"),
        Field("from", "Only on these GPUs", "Their numbers; any will do if empty.", "0,1,3"),
    ),
)  # fmt: skip
_ORDER = Group(
    "Order",
    "priority, other jobs first, hold, preemptible",
    (
        Field("priority", "Priority", "Higher goes first; 0 is usual.", "0"),
        Field("dependency", "After other jobs", "By number or name; all must hold.", "afterok:12:13"),
        Field("hold", "Hold it", "It waits until somebody releases it.", kind="tick"),
        Field("adaptive", "Adaptive", "It adapts: it may be lent idle GPUs, and told to leave them.", kind="tick"),
        Field("preemptible", "Preemptible", "It may be stopped so that others can run, and waits again.", kind="tick"),
        Field("signal", "Signal to stop by", "And how long before it must have stopped.", "USR1@90s"),
        Field("grace", "Grace", "From being asked to stop to being made to.", "10s"),
    ),
)
_AGAIN = Group(
    "Several times",
    "array, retries, requeue",
    (
        Field("array", "Array", "One job for each number; %4: four at once.", "0-99%4"),
        Field("retries", "Retries", "How often it is run again if it fails.", "0"),
        Field("retry_delay", "Delay of retries", "Before the first; then twice as long.", "30s"),
        Field("requeue", "Requeue", "Run it again if a reboot interrupts it.", kind="tick"),
    ),
)
_SURROUNDINGS = Group(
    "Directory, environment and files",
    "in your home, with the environment of a login",
    (
        Field("directory", "Directory", "Where it runs: a path from the root, or ~ for your home.", "~/project"),
        Field(
            "variables", "Environment variables",
            "NAME=VALUE, one a line. A job from this page has no shell's environment: it gets what a login gives, "
            "and these. They are not kept in the draft.",
            "WANDB_MODE=offline", "area",
        ),
        Field("output", "Output file", "In place of the daemon's; %j is the job's id, %a the task.", "run-%j.log"),
        Field("error", "File for errors", "With its output if empty.", "run-%j.err"),
        Field("open_mode", "How files are opened", "Emptied first, or not.", "", "choice", ("", "append", "truncate")),
    ),
)  # fmt: skip
_TOLD = Group(
    "Tags and notifications",
    "project, who is told",
    (
        Field("tags", "Tags", "Words to find it by, or its project.", "paper, ablation"),
        Field("notify", "Who is told", "Names of subscriptions, none, or a URL; all of yours if empty.", "none"),
        Field("notify_on", "Of what", "start, finish, failure, timeout, long-wait, tasks.", "finish"),
    ),
)
GROUPS = (_TIME, _WHERE, _ORDER, _AGAIN, _SURROUNDINGS, _TOLD)
