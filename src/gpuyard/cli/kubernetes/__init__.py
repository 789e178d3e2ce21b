"""`gpuyard kubernetes`: schedule the GPUs of a cluster, look at it, and measure it."""

from __future__ import annotations

from gpuyard.cli.parser import Entry, LazyGroup, command_group


class Commands(LazyGroup):
    examples = {  # noqa: RUF012
        "gpuyard kubernetes scheduler": "schedule pods that say schedulerName: gpuyard",
        "gpuyard kubernetes explain pod/NAME": "see why a pod waits",
    }
    familiar: dict[str, str] = {}  # noqa: RUF012
    headings = {  # noqa: RUF012
        "The cluster": {
            "scheduler": Entry(
                "kubernetes.servers:scheduler",
                "Schedule pods with schedulerName gpuyard: whole GPUs, shares by memory, gangs; until Ctrl-C.",
            ),
            "explain": Entry(
                "kubernetes.explain:explain",
                "Tell why a pod waits and what keeps it from each node; or by what it was let in where it is.",
            ),
            "top": Entry(
                "kubernetes.top:top",
                "Watch a cluster live: nodes with their GPUs, what is charged and used, who waits and why.",
            ),
            "dashboard": Entry(
                "kubernetes.servers:dashboard",
                "Show the cluster in a browser: nodes with their GPUs, the queue, pods; nothing can be changed there.",
            ),
            "webhook": Entry(
                "kubernetes.servers:webhook",
                "Answer an API server's admission reviews: pods that share a GPU get NVIDIA_VISIBLE_DEVICES, until "
                "Ctrl-C.",
            ),
        },
        "Measuring": {
            "experiment": Entry(
                "kubernetes.measurements:experiment",
                "Compare ways to share the GPUs of a cluster, on pods as they come: times, restarts, energy, plots.",
            ),
            "monitor": Entry(
                "kubernetes.measurements:monitor",
                "Run the workload of a manifest to its end, and write a CSV and a plot of each metric of its GPUs.",
            ),
        },
    }


app = command_group(
    "Schedule the GPUs of a Kubernetes cluster: shares by memory, gangs, fair shares; and look at it.", Commands
)
