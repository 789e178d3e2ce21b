"""The fields of a job, each declared once.

Options of the command line, keys of job files and of the editor, lines of scripts, the API's models and answers, the
page's form, `show` and the reference are derived from `FIELDS`. Its order is that of `gpuyard submit --help`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.spec.job_field import MOST_INDEX as MOST_INDEX
from gpuyard.spec.job_field import MOST_SECONDS as MOST_SECONDS
from gpuyard.spec.job_field import DialogEntry, FormEntry, FormGroup, JobField, Option, ShowLine
from gpuyard.spec.kinds import (
    ARRAY,
    CHOICE,
    DEPENDENCY,
    DURATION,
    INDICES,
    INSTANT,
    LIST,
    NAMES,
    NUMBER,
    PATH,
    SHARE,
    SIGNAL,
    SWITCH,
    TEXT,
    VARIABLES,
    WHOLE,
    WORDS,
)
from gpuyard.units import LEAST_SHARE

LONGEST_WORD = 2**17 - 1
"""Bytes of one argument or variable that Linux gives to a process."""
LONGEST_PATH = 4096
_LONG_LIST = 100_000  # characters of numbers and ids
HOME = "~"
MAIN = FormGroup("", "")
"""Shown above the groups, and never folded."""
TIME = FormGroup("Time", "limit, estimate, start, deadline")
SHARING = FormGroup("Which GPUs, and sharing them", "a share of memory, MPS, some GPUs only")
ORDER = FormGroup("Order", "priority, other jobs first, hold, preemptible")
REPEATS = FormGroup("Several times", "array, retries, requeue")
FILES = FormGroup("Directory, environment and files", "in your home, with the environment of a login")
NOTICES = FormGroup("Tags and notifications", "project, who is told")
FORM_GROUPS = (TIME, SHARING, ORDER, REPEATS, FILES, NOTICES)
FIELDS: tuple[JobField, ...] = (
    JobField(
        name="gpus", kind=WHOLE, least=1, most=MOST_INDEX,
        description="How many GPUs; 1, or all of `from`, if not said.",
        option=Option(("--gpus", "-g", "-G"), "How many GPUs (1).", "N"), taken_back="1",
        stored=False, answer="gpu_count", editor=4,
        form=FormEntry(
            group=MAIN, place=1, label="GPUs", hint="How many it wants.", example="1", usual="1", widget="number",
        ),
        dialog=DialogEntry(3, "GPUs", "how many"),
    ),
    JobField(
        name="from", kind=INDICES, most_items=4096, description="Only these GPUs will do.",
        option=Option(("--from",), "Only on some of these GPUs.", "0,1,3"),
        stored=False, answer="among", editor=5, show=ShowLine(1, "Only on GPUs"),
        form=FormEntry(
            group=SHARING, place=7, label="Only on these GPUs", hint="Their numbers; any will do if empty.",
            example="0,1,3",
        ),
    ),
    JobField(
        name="gpu_memory", kind=SHARE, least=LEAST_SHARE,
        description="Bytes on each GPU, 1 MiB or more: it shares GPUs by memory; `auto`: as its like has used.",
        option=Option(
            ("--gpu-memory",), "Share GPUs: so much memory of each, as in 6G; auto: as measured before.", "SIZE|auto"
        ),
        stored=False, editor=6,
        form=FormEntry(
            group=SHARING, place=1, label="Memory share", example="6G",
            hint="So much memory of each GPU, which others then share; auto: as much as the same job used before.",
        ),
        dialog=DialogEntry(4, "Memory of each GPU", "6G to share it, auto: as measured; empty: whole GPUs"),
    ),
    JobField(
        name="name", kind=TEXT, longest=200, description="By default its script, module or program.",
        option=Option(("--name", "-n", "--job-name", "-J"), "What to call the job (its script or program).", "NAME"),
        slurm="job-name", while_running=True, editor=1,
        form=FormEntry(
            group=MAIN, place=2, label="Name", hint="What to call it; its script if empty.", example="baseline"
        ),
        dialog=DialogEntry(8, "Name", "what to call it"),
    ),
    JobField(
        name="priority", kind=NUMBER, default=0.0, description="Higher goes first.",
        option=Option(("--priority",), "Higher runs first (0).", "P"), slurm="priority", taken_back="0",
        while_running=True, stored=False, editor=2, show=ShowLine(4, "Priority"),
        form=FormEntry(
            group=ORDER, place=1, label="Priority", hint="Higher goes first; 0 is usual.", example="0",
        ),
        dialog=DialogEntry(1, "Priority", "higher runs first"),
    ),
    JobField(
        name="time_limit", kind=DURATION, above=0, most=MOST_SECONDS, needs_unit=True,
        description="Seconds it may take.",
        option=Option(("--time", "--time-limit", "-t"), "End it after that, as in 90m.", "TIME"),
        while_running=True, editor=8, show=ShowLine(2, "Time limit"),
        form=FormEntry(
            group=TIME, place=1, name="time", label="Time limit", example="4h",
            hint="It is ended after that; a good limit lets it start sooner.",
        ),
        dialog=DialogEntry(2, "Time limit", "90m, 1h30m, 1-12:00:00; empty: none"),
    ),
    JobField(
        name="estimate", kind=DURATION, above=0, most=MOST_SECONDS, description="Seconds it should take.",
        option=Option(("--estimate",), "How long it is likely to run, as in 1h.", "TIME"),
        while_running=True, stored=False, editor=9, show=ShowLine(3, "Estimate"),
        form=FormEntry(
            group=TIME, place=2, label="Estimate", hint="How long it is likely to run; the limit if empty.",
            example="1h",
        ),
    ),
    JobField(
        name="begin", kind=INSTANT, description="Not before: seconds since the epoch, or ISO-8601.",
        option=Option(("--begin", "-b"), "Not before: 16:00, tomorrow, 'fri 14:00', +90m.", "WHEN"), slurm="begin",
        stored=False, answer="begin_at", editor=10, show=ShowLine(5, "Not before"),
        form=FormEntry(
            group=TIME, place=3, label="Not before", hint="It starts then at the earliest.", example="tomorrow 8:00"
        ),
        dialog=DialogEntry(5, "Not before", "16:00, tomorrow, +90m; empty: any time"),
    ),
    JobField(
        name="deadline", kind=INSTANT, future=True, description="When it should be done; policies may look at it.",
        option=Option(("--deadline",), "When it should be done; the policy edf looks at it.", "WHEN"),
        slurm="deadline", while_running=True, stored=False, answer="deadline_at", editor=11,
        show=ShowLine(6, "Deadline"),
        form=FormEntry(
            group=TIME, place=4, label="Deadline", hint="When it should be done; the policy edf looks at it.",
            example="fri 14:00",
        ),
    ),
    JobField(
        name="dependency", kind=DEPENDENCY, longest=_LONG_LIST,
        description="Jobs that must end first: `afterok:12:13,afterany:name`.",
        option=Option(("--dependency", "-d"), "Start it after others: afterok:12:13,afterany:NAME.", "HOW:ID"),
        slurm="dependency", stored=False, editor=12, show=ShowLine(7, "Dependency"),
        form=FormEntry(
            group=ORDER, place=2, label="After other jobs", hint="By number or name; all must hold.",
            example="afterok:12:13",
        ),
        dialog=DialogEntry(6, "After", "afterok:12; empty: after nobody"),
    ),
    JobField(
        name="tags", kind=WORDS, default=[], longest=200, most_items=100,
        description="Words of your own, to find it by.",
        option=Option(("--tag",), "A word to find it by; may be repeated.", "TAG"), keys=("tags",),
        while_running=True, editor=3,
        form=FormEntry(
            group=NOTICES, place=1, label="Tags", hint="Words to find it by, or its project.",
            example="paper, ablation",
        ),
        dialog=DialogEntry(9, "Tags", "words to find it by"),
    ),
    JobField(
        name="comment", kind=TEXT, longest=1000, description="A note for people; nothing depends on it.",
        option=Option(("--comment",), "A note, which gpuyard show prints.", "TEXT"),
        while_running=True, editor=23, show=ShowLine(17, "Comment"),
        form=FormEntry(
            group=NOTICES, place=4, label="Comment", hint="A note for people; nothing depends on it.",
            example="second try, with warm-up",
        ),
        dialog=DialogEntry(10, "Comment", "a note for people"),
    ),
    JobField(
        name="retries", kind=WHOLE, default=0, least=0, most=1000,
        description="How often it is run again if it fails.",
        option=Option(("--retries",), "Run it again if it fails (0).", "N"), taken_back="0", while_running=True,
        editor=13, show=ShowLine(8, "Retries"),
        form=FormEntry(
            group=REPEATS, place=2, label="Retries", hint="How often it is run again if it fails.", example="0",
        ),
        dialog=DialogEntry(7, "Retries", "if it fails"),
    ),
    JobField(
        name="retry_delay", kind=DURATION, least=0, most=3600.0,
        description="Seconds before the first retry, then doubled.",
        option=Option(("--retry-delay",), "Before the first retry, then twice as long (30s).", "TIME"),
        while_running=True, editor=14,
        form=FormEntry(
            group=REPEATS, place=3, label="Delay of retries", hint="Before the first; then twice as long.",
            example="30s",
        ),
    ),
    JobField(
        name="grace", kind=DURATION, least=0, most=MOST_SECONDS, description="Seconds from TERM to KILL.",
        option=Option(("--grace",), "From SIGTERM to SIGKILL when it is to end, as in 10s.", "TIME"),
        while_running=True, editor=19, show=ShowLine(13, "Grace"),
        form=FormEntry(
            group=ORDER, place=7, label="Grace", hint="From being asked to stop to being made to.", example="10s"
        ),
    ),
    JobField(
        name="preemptible", kind=SWITCH, default=False,
        description="Whether it may be stopped so that others can run.",
        option=Option(
            ("--preemptible/--no-preemptible",), "It may be stopped so that others can run, and waits again then (no)."
        ),
        while_running=True, stored=False, editor=16, show=ShowLine(10, "Preemptible"),
        form=FormEntry(
            group=ORDER, place=5, label="Preemptible", widget="tick",
            hint="It may be stopped so that others can run, and waits again.",
        ),
    ),
    JobField(
        name="adaptive", kind=SWITCH, default=False,
        description="Whether it adapts to what it is granted: it may be lent idle GPUs, and told to leave them.",
        option=Option(
            ("--adaptive/--no-adaptive",), "It adapts: it may be lent idle GPUs, and be told to leave them (no)."
        ),
        while_running=True, editor=17, show=ShowLine(11, "Adaptive", "yes: it may be lent idle GPUs"),
        form=FormEntry(
            group=ORDER, place=4, label="Adaptive", hint="It adapts: it may be lent idle GPUs, and told to leave them.",
            widget="tick",
        ),
    ),
    JobField(
        name="signal", kind=SIGNAL, default="TERM", longest=100,
        description="What asks it to stop then; all its processes get it.",
        option=Option(("--signal",), "What asks it to stop, and how long before it must (TERM).", "NAME[@TIME]"),
        taken_back="TERM", clears=False, while_running=True, editor=18, show=ShowLine(12, "Signal"),
        form=FormEntry(
            group=ORDER, place=6, label="Signal to stop by", hint="And how long before it must have stopped.",
            example="USR1@90s",
        ),
    ),
    JobField(
        name="notice", kind=DURATION, above=0, most=MOST_SECONDS, null=True, while_running=True,
        description="Seconds from `signal` to its end, at a limit too.",
    ),
    JobField(
        name="requeue", kind=SWITCH, default=False,
        option=Option(("--requeue/--no-requeue",), "Run it again if a reboot interrupts it (no)."), slurm="requeue",
        while_running=True, editor=15, show=ShowLine(9, "Requeue", "after a reboot"),
        form=FormEntry(
            group=REPEATS, place=4, label="Requeue", hint="Run it again if a reboot interrupts it.", widget="tick"
        ),
    ),
    JobField(
        name="output", kind=PATH, longest=LONGEST_PATH,
        description="A file for it, with patterns like %j, opened by the job's side.",
        option=Option(("--output", "-o"), "Write its output there; %j is its id, %a the task.", "FILE"),
        slurm="output", editor=20, show=ShowLine(14, "Output file"),
        form=FormEntry(
            group=FILES, place=3, label="Output file", example="run-%j.log",
            hint="In place of the daemon's; %j is the job's id, %a the task.",
        ),
    ),
    JobField(
        name="error", kind=PATH, longest=LONGEST_PATH,
        description="A file for it, with patterns like %j, opened by the job's side.",
        option=Option(("--error", "-e"), "Write its errors there (with its output).", "FILE"), slurm="error",
        editor=21, show=ShowLine(15, "Error file"),
        form=FormEntry(
            group=FILES, place=4, label="File for errors", hint="With its output if empty.", example="run-%j.err"
        ),
    ),
    JobField(
        name="open_mode", kind=CHOICE, choices=("append", "truncate"), description="How those files are opened.",
        option=Option(("--open-mode",), "append or truncate these files (truncate at first).", "MODE"),
        slurm="open-mode", editor=22,
        form=FormEntry(
            group=FILES, place=5, label="How files are opened", hint="Emptied first, or not.", widget="choice"
        ),
    ),
    JobField(
        name="notify", kind=WORDS, most_items=10, longest=2000,
        description="Who is told of it: names of subscriptions, URLs, `all`, `none`; all if not said.",
        option=Option(
            ("--notify",), "Who is told of it (all of gpuyard notify list); may be repeated.", "NAME|URL|all|none"
        ),
        taken_back="all", clears=False, while_running=True, show=ShowLine(16, "Notify"),
        form=FormEntry(
            group=NOTICES, place=2, label="Who is told", example="none",
            hint="Names of subscriptions, none, or a URL; all of yours if empty.",
        ),
    ),
    JobField(
        name="notify_on", kind=LIST, most_items=20, longest=100,
        choices=("start", "finish", "failure", "timeout", "long-wait", "tasks"),
        description="Of what, in place of what each of them says.",
        option=Option(("--notify-on",), "Of what: start,finish,failure,timeout,long-wait,tasks.", "EVENTS"),
        while_running=True,
        form=FormEntry(
            group=NOTICES, place=3, label="Of what", hint="start, finish, failure, timeout, long-wait, tasks.",
            example="finish",
        ),
    ),
    JobField(
        name="oom_retries", kind=WHOLE, least=0, most=100,
        description="How often it is run again, with more, if it runs out of GPU memory.",
        option=Option(("--oom-retries",), "Run it again with more if GPU memory runs out (3).", "N"), editor=7,
        form=FormEntry(
            group=SHARING, place=3, label="If memory runs out", hint="So often it is run again with more of it.",
            example="3",
        ),
    ),
    JobField(
        name="cap", kind=SWITCH, default=False, description="Whether its framework is told to keep to its share.",
        option=Option(("--cap/--no-cap",), "Tell its framework to keep to --gpu-memory (no)."),
        form=FormEntry(
            group=SHARING, place=4, label="Cap", hint="Its framework is told to keep to its share.", widget="tick"
        ),
    ),
    JobField(
        name="mps", kind=SWITCH, default=False, description="Whether it is a client of MPS.",
        option=Option(("--mps/--no-mps",), "Let it share a GPU's cores through NVIDIA's MPS (no)."),
        form=FormEntry(
            group=SHARING, place=5, label="MPS", hint="It shares the GPU's cores with others through NVIDIA's MPS.",
            widget="tick",
        ),
    ),
    JobField(
        name="thread_percentage", kind=NUMBER, least=1, most=100, unit="percent", null=True,
        description="Of a client of MPS: how much of the GPU's threads it may have.",
        option=Option(("--thread-percentage",), "With --mps: of the GPU's threads, at most.", "P"),
        form=FormEntry(
            group=SHARING, place=6, label="Threads by MPS", hint="Percent of the GPU's threads, at most.", example="30",
        ),
    ),
    JobField(
        name="profile", kind=TEXT, longest=1000,
        description="Try it out first if nothing is known of its like: `30s`, or arguments like `--epochs=2`.",
        option=Option(("--profile",), "If its like is unknown, try it first (30s): 2m, '--epochs 2'.", "[TIME|ARGS]"),
        form=FormEntry(
            group=SHARING, place=2, label="Try it out first", example="30s",
            hint="If nothing is known of it yet: for a time, or with other arguments. "
            "It tells how much memory it needs.",
        ),
    ),
    JobField(
        name="simulate_use", kind=TEXT, longest=10_000, sample="ramp:391M,713M,1045M",
        description="What it uses of simulated GPUs, as in `ramp:391M,713M,1045M`.",
        option=Option(("--simulate-use",), "What it uses of simulated GPUs: ramp:391M,713M,1045M.", "USE"),
    ),
    JobField(
        name="directory", kind=PATH, longest=LONGEST_PATH, editable=False,
        description="Where it runs: an absolute path, or ~/PATH; the home directory if not said.",
        option=Option(("--chdir", "-D"), "Where to run it (here; at a host, in your home there).", "DIR", local=True),
        keys=("directory",), slurm="chdir", taken_back=HOME,
        form=FormEntry(
            group=FILES, place=1, label="Directory", example="~/project",
            hint="Where it runs: a path from the root, or ~ for your home.",
        ),
    ),
    JobField(
        name="array", kind=ARRAY, longest=_LONG_LIST, editable=False, stored=False, answer="",
        description="Tasks of an array: `0-99%4`.",
        option=Option(("--array", "-a"), "Run it so many times; %4: four at once.", "0-99%4"), slurm="array",
        form=FormEntry(
            group=REPEATS, place=1, label="Array", hint="One job for each number; %4: four at once.", example="0-99%4"
        ),
    ),
    JobField(
        name="hold", kind=SWITCH, default=False, editable=False, stored=False, answer="",
        option=Option(("--hold", "-H"), "Queue it, but start it only after gpuyard release."), slurm="hold",
        form=FormEntry(
            group=ORDER, place=3, label="Hold it", hint="It waits until somebody releases it.", widget="tick"
        ),
    ),
    JobField(
        name="variables", kind=VARIABLES, default={}, longest=LONGEST_WORD, largest=2**21, editable=False,
        stored=False, answer="",
        description="What comes on top of its environment.",
        option=Option(("--env",), "A variable for it; may be repeated.", "NAME=VALUE", local=True),
        form=FormEntry(
            group=FILES, place=2, label="Environment variables", example="WANDB_MODE=offline", widget="area",
            hint="NAME=VALUE, one a line. A job from this page has no shell's environment: it gets what a login gives, "
            "and these. They are not kept in the draft.",
        ),
    ),
    JobField(
        name="export", kind=NAMES, longest=_LONG_LIST, editable=False, stored=False, answer="",
        option=Option(
            ("--export",), "Which variables of this environment it gets (ALL; at a host, NONE).", "ALL|NONE|A,B=1",
            local=True,
        ),
        slurm="export",
    ),
    JobField(
        name="slurm", kind=SWITCH, default=False, answer="",
        description="Whether it is given the variables that Slurm would give it.",
        option=Option(
            ("--slurm-variables/--no-slurm-variables",), "Also give it SLURM_JOB_ID and such (if #SBATCH lines ask).",
            edits=False,
        ),
    ),
)  # fmt: skip
PROGRAM: tuple[JobField, ...] = (
    JobField(
        name="command", kind=WORDS, longest=LONGEST_WORD, most_items=65_536, largest=2**21,
        description="The program and its arguments; no shell.",
    ),
    JobField(
        name="environment", kind=VARIABLES, longest=LONGEST_WORD, largest=2**21,
        description="All of its environment; if not said, that of a login.",
    ),
    JobField(
        name="script", kind=TEXT, longest=2**22,
        description="A text that is run in place of the command's first word.",
    ),
)  # fmt: skip
"""What a submission has besides: it is no option, but what stands behind `--`, and what the shell has."""
FIELD = {field.name: field for field in (*FIELDS, *PROGRAM)}
WHILE_RUNNING = frozenset(field.name for field in FIELDS if field.while_running)
"""What a job that is on its GPUs may still ask for."""


def option_fields(*, edits: bool | None = None) -> Iterator[JobField]:
    """Fields with an option; `edits`: only those that `gpuyard edit` has, or only the others."""
    for field in FIELDS:
        if field.option and (edits is None or edits is (field.editable and field.option.edits)):
            yield field
