"""The commands under their headings, each imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.cli.common_options import CaFile, DataDir, Host, Socket
from gpuyard.cli.parser import Entry, LazyGroup
from gpuyard.errors import UserError


class Commands(LazyGroup):
    """All commands as the help shows them; a test compares these lines with the commands themselves."""

    examples = {  # noqa: RUF012
        "gpuyard up": "start the queue (on a machine without GPUs: --simulate-gpus 4x16G)",
        "gpuyard submit -- python train.py": "queue a command: it runs here, on one GPU, with your environment",
        "gpuyard ps": "see who runs and who waits, and why",
        "gpuyard submit --help": "see what else a job can ask for",
    }
    familiar = {  # noqa: RUF012
        "queue": "ps", "list": "ps", "ls": "ps", "jobs": "ps", "squeue": "ps", "kill": "cancel", "scancel": "cancel",
        "rm": "cancel", "info": "show", "scontrol": "show", "sbatch": "submit", "add": "submit", "srun": "run",
        "salloc": "acquire", "sinfo": "gpus", "sacct": "history", "log": "logs", "tail": "logs -f", "start": "up",
        "stop": "down", "mail": "notify", "alert": "notify",
    }  # fmt: skip
    headings = {  # noqa: RUF012
        "Jobs": {
            "submit": Entry("jobs.submit:submit", "Queue a command or a script, and print its job's id.", True, True),
            "run": Entry("jobs.run:run", "Queue a command, follow its output, and end with its exit code.", True),
            "batch": Entry(
                "jobs.batch:app",
                "Run the jobs of a CSV, YAML or TOML file, several on a GPU, and tell what that achieved.",
            ),
            "acquire": Entry(
                "jobs.run:acquire", "Wait for GPUs for the shell or script that asks, and print their indices."
            ),
            "ps": Entry("jobs.job_lists:ps", "List running and waiting jobs, in the order in which they are to start."),
            "top": Entry("jobs.top:top", "Watch GPUs and jobs live; cancel, hold or follow them by keys."),
            "logs": Entry("jobs.logs:logs", "Print a job's output."),
            "cancel": Entry(
                "jobs.cancel:cancel", "End jobs: those that wait now, those that run after a grace period."
            ),
            "hold": Entry("jobs.cancel:hold", "Keep waiting jobs from being started."),
            "release": Entry("jobs.cancel:release", "Let held jobs be started again; give leases back."),
            "edit": Entry(
                "jobs.edit:edit",
                "Change what a job asks for (none takes something back); without options, in your editor.",
            ),
            "clone": Entry(
                "jobs.edit:clone", "Queue the same command once more, with the same environment, and with changes."
            ),
            "retry": Entry(
                "jobs.edit:retry", "Queue jobs that are over once more; of an array, the tasks that did not succeed."
            ),
            "requeue": Entry("jobs.edit:requeue", "Stop a running job, and let it wait again; it keeps its id."),
            "wait": Entry("jobs.logs:wait", "Wait until jobs are over; the exit code tells how they ended."),
            "progress": Entry("app:progress", "Tell from inside a job how far it is."),
            "show": Entry(
                "jobs.show:show", "Show one job in detail: what it asks for, how it stands, and what happened to it."
            ),
            "notify": Entry(
                "jobs.notify:app", "Be told of your jobs: by mail, Slack, DingTalk, webhooks and many more."
            ),
            "explain": Entry("jobs.show:explain", "Tell why a job waits, and what has to end before it can start."),
            "estimates": Entry(
                "jobs.job_estimates:estimates",
                "Tell what is known of jobs by what their like used and took, and how right that was.",
            ),
            "history": Entry("jobs.job_lists:history", "List the jobs that are over, the newest first."),
        },
        "Monitoring": {
            "monitor": Entry(
                "monitoring.monitor:monitor",
                "Run a command, or watch a process, a job or GPUs, and write a CSV and plots of what GPUs did.",
                True,
            ),
            "plot": Entry(
                "monitoring.plot:plot",
                "Draw what GPUs did for jobs, or in a span of time: figures, and a page to look closer.",
            ),
            "report": Entry(
                "monitoring.plot:report", "Write what a job was, how it went and what its GPUs did as one HTML page."
            ),
            "forecast": Entry(
                "monitoring.forecast:forecast",
                "Tell how well free memory, or another metric, could have been foreseen, and plot that.",
            ),
            "experiment": Entry(
                "monitoring.experiment:app",
                "Compare schedulers on the jobs of a file, for real or simulated: times, restarts, energy, plots.",
            ),
        },
        "The yard": {
            "up": Entry("daemon.up:up", "Start the daemon in the background."),
            "down": Entry("daemon.up:down", "End the daemon; jobs go on, and the next daemon takes them up."),
            "serve": Entry("daemon.up:serve", "Run the daemon in the foreground."),
            "status": Entry(
                "daemon.status:status", "Tell how the daemon is: its GPUs, its queue, its policy, its store."
            ),
            "gpus": Entry("daemon.status:gpus", "List the GPUs, and who is on them."),
            "policy": Entry("daemon.status:policy_app", "Show or change the policy that decides which job is next."),
            "drain": Entry(
                "daemon.sharing_rules:drain",
                "Let nothing more start on some GPUs, or on the whole machine; what runs goes on.",
            ),
            "resume": Entry("daemon.sharing_rules:resume", "Let drained GPUs be used again."),
            "reserve": Entry("daemon.sharing_rules:reserve", "Keep GPUs for some people at a certain time."),
            "reservations": Entry("daemon.sharing_rules:reservations", "List the reservations that are not over."),
            "unreserve": Entry("daemon.sharing_rules:unreserve", "Give a reservation up."),
            "interference": Entry(
                "daemon.status:interference", "Tell which jobs slow each other down when they share a GPU."
            ),
            "quota": Entry(
                "daemon.sharing_rules:quota",
                "Show or set what people may have: GPUs at once, GPU-hours a week, queued jobs.",
            ),
            "share": Entry("daemon.sharing_rules:share", "Show or set what share of the GPUs people deserve."),
            "token": Entry(
                "daemon.access:token_app",
                "Make, list and revoke tokens, by which people use the queue over the network.",
            ),
            "audit": Entry(
                "daemon.access:audit",
                "List who changed what through the API, and who was refused, the latest first; for admins.",
            ),
        },
        "This machine": {
            "service": Entry("daemon.systemd:app", "Let systemd start the daemon, now and at every boot."),
            "config": Entry("daemon.machine:config_app", "Show the settings, and where each comes from."),
            "doctor": Entry(
                "daemon.machine:doctor", "Look for what is wrong on this machine, and tell how to mend it."
            ),
            "backup": Entry(
                "daemon.machine:backup", "Write the queue and its history to a file, while the daemon runs."
            ),
            "recover": Entry(
                "daemon.machine:recover", "Save what can be read of a damaged store; it is kept beside the new one."
            ),
            "restore": Entry("daemon.machine:restore", "Go back to a backup; the former store is kept beside it."),
        },
        "From elsewhere": {
            "login": Entry("daemon.access:login", "Store a token for a daemon elsewhere, so that --host reaches it."),
            "logout": Entry("daemon.access:logout", "Forget the token for a daemon elsewhere."),
        },
        "Clusters": {
            "kubernetes": Entry(
                "kubernetes:app",
                "Schedule the GPUs of a Kubernetes cluster: shares by memory, gangs, fair shares; and look at it.",
            )
        },
        "Learning": {
            "learn": Entry(
                "learning.learn:app",
                "Train policies on traces, judge them where they were held out, and see what they prefer.",
            )
        },
        "Adaptation": {
            "adapt": Entry(
                "learning.adapt:app",
                "Train networks that grow within a time budget; record, learn and judge when and where growing pays.",
            )
        },
        "The simulator": {
            "simulate": Entry("simulator.simulation:simulate", "Run a trace under one policy, and tell how it went."),
            "compare": Entry(
                "simulator.compare:compare",
                "Run the same trace under several policies, and rank them by mean completion time.",
            ),
            "sweep": Entry(
                "simulator.compare:sweep",
                "Vary load, GPUs or a setting, and run the policies at every value (fcfs, sjf, srtf and las if none is "
                "named).",
            ),
            "policies": Entry("simulator.compare:policies_app", "List the policies, or check your own."),
            "trace": Entry("simulator.simulation:trace_app", "Look at a trace, or convert it."),
            "workload": Entry("simulator.simulation:workload_app", "Make up a workload."),
            "demo": Entry(
                "simulator.demo:demo",
                "Let a queue live on 8 simulated GPUs, with its page, until Ctrl-C; or run ten jobs and draw what "
                "happened.",
            ),
        },
    }


app = typer.Typer(
    cls=Commands,
    name="gpuyard",
    help="A queue for the GPUs of this machine: a job starts as soon as its GPUs are free, and goes on if the queue's "
    "daemon does not. And a simulator that tells which policy would have served everybody better.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from gpuyard import __version__

        print(f"gpuyard {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    data_dir: DataDir = None,
    socket: Socket = None,
    host: Host = None,
    ca_file: CaFile = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# Here, where almost nothing is imported: scripts call it often.
def progress(
    amount: Annotated[str, typer.Argument(metavar="37/100", help="Done and in all, or done in per cent: 37%.")],
) -> None:
    """Tell from inside a job how far it is."""
    from gpuyard.client import progress as reporting

    reported = reporting.amount(amount)
    if reported is None:
        raise UserError(f"'{amount}' does not say how far a job is; write for example 37/100 or 37%")
    reporting.progress(*reported)
