"""One pod: where it is or why it waits, and what is written of it, in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nicegui import ui

from gpuyard.page.cluster.look import Look
from gpuyard.page.cluster.model import WAITING, Cluster, Facts, key_of
from gpuyard.page.cluster.shaping import node_path, pod_path
from gpuyard.page.cluster.words import COLUMNS, Said, chip_of, facts, gpus_of, row, sentence_of
from gpuyard.page.parts import command, heading, link, span
from gpuyard.page.sections import Section, Since
from gpuyard.page.table import Table


class Screen:
    """What one viewer sees."""

    def __init__(self, look: Look, namespace: str, name: str) -> None:
        self._look, self._key, self._name = look, f"{namespace}/{name}", name
        with ui.element("div").classes("gy-cl-title"):
            heading(name, 1)
            self._chip = Section()
        self._gone = Section("gy-empty", props="role=status")
        self._line = Section()
        self._why = Section("gy-card gy-cl-why", "section")
        self._facts = Section("gy-card", "section")
        self._gang = heading("The rest of its gang")
        self._members = Table(f"The gang of {name}", COLUMNS)
        heading("More of it")
        where = ("-n", namespace)
        for line in (
            ("gpuyard", "kubernetes", "explain", *where, f"pod/{name}"),
            ("kubectl", "describe", "pod", *where, name),
            ("kubectl", "logs", *where, name),
        ):
            command(shlex.join(line))
        self._hide()

    def show(self, cluster: Cluster) -> None:
        """Show how it stands."""
        pod, zone = cluster.pods.get(self._key), self._look.zone
        gone = "" if pod else f"{self._key} has ended or was deleted, or it holds no GPU."
        self._gone.show(gone, lambda: ui.label(gone), visible=bool(gone))
        if pod is None:
            self._hide()
            return
        self._chip.show(pod["phase"], lambda: _chip(pod))
        times = [pod[name] for name in ("phase", "node", "gpus", "created_at", "started_at", "position")]
        self._line.show((zone, times), lambda: _line(pod, self._look))
        why = sentence_of(pod)
        self._why.show(why, lambda: _why(pod, why), visible=bool(why))
        said = list(facts(pod, cluster))
        self._facts.show(said, lambda: _drawn(said))
        others = [one for one in cluster.gang_of(pod) if key_of(one) != self._key]
        self._gang.set_visibility(bool(others))
        self._members.set_visibility(bool(others))
        self._members.show([row(one, cluster, pod_path(one), node_path(one["node"])) for one in others], cluster.at)

    def _hide(self) -> None:
        """Leave out what is known only of a pod that is there."""
        for section in (self._chip, self._line, self._why, self._facts):
            section.show(None, lambda: None, visible=False)
        self._gang.set_visibility(False)
        self._members.set_visibility(False)


def _chip(pod: Facts) -> None:
    told = chip_of(pod)
    with ui.element("span").classes(f"gy-chip gy-{told['state']}"):
        ui.label(told["text"])


def _line(pod: Facts, look: Look) -> None:
    """Whose it is, where it is, and for how long."""
    began = pod["started_at"]
    with ui.element("p").classes("gy-job-line"):
        with ui.element("span"):
            ui.label("in namespace ")
            link(f"/pods?namespace={pod['namespace']}", pod["namespace"])
        if pod["node"]:
            with ui.element("span"):
                ui.label(f"on {gpus_of(pod)} of ")
                link(node_path(pod["node"]), pod["node"])
        with ui.element("span"):
            since = pod["created_at"] if pod["phase"] in WAITING or began is None else began
            ui.label("waiting for " if pod["phase"] in WAITING else "running for " if began else "made ")
            Since(since)
            ui.label(f", since {look.when(since)}" if pod["phase"] in WAITING or began else " ago")
        if began is not None:
            ui.label(f"waited {span(max(0.0, began - pod['created_at']))}")
        if pod["position"]:
            ui.label(f"number {pod['position']:,} in the queue")


def _why(pod: Facts, why: str) -> None:
    if pod["phase"] in WAITING:
        heading("Why is it waiting?")
    with ui.element("p").classes("gy-job-why"):
        ui.label(why)


def _drawn(said: Sequence[Said]) -> None:
    with ui.element("dl").classes("gy-job-facts"):
        for term, text in said:
            with ui.element("dt"):
                ui.label(term)
            with ui.element("dd"):
                ui.label(text)


def build(look: Look, namespace: str, name: str) -> int | None:
    """Make the page; says if there is no such pod."""
    screen = Screen(look, namespace, name)
    look.follow(screen.show)
    cluster = look.feed.cluster
    return 404 if cluster is not None and f"{namespace}/{name}" not in cluster.pods else None
