"""Following the pods and jobs with a label, from a thread of its own, through whatever becomes of the connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gpuyard.kubernetes.api import Api, ApiError, Listed, Object, Unreachable, Watch, core, group
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, JOB
from gpuyard.kubernetes.experiment.story import PodStory

JOBS = "batch/v1"
_PAUSE, _LONGEST = 0.2, 5.0
"""Seconds from one try to the next, while the API server does not answer."""


class Over(NamedTuple):
    """How a job of the cluster ended."""

    failed: bool
    why: str = ""


class Follower:
    """Knows how the pods of one run are, and its jobs, where it has any; others may wait for news."""

    def __init__(self, api: Api, namespace: str, run: str, *, jobs: bool, warn: Callable[[str], None]) -> None:
        self._api, self._namespace, self._warn = api, namespace, warn
        self._selector = f"{EXPERIMENT}={run}"
        self._by_jobs = jobs
        self.news = threading.Condition()
        self.pods: dict[str, PodStory] = {}
        """By their UIDs."""
        self._by_job: dict[str, list[PodStory]] = {}
        self.over: dict[str, Over] = {}
        """By what `JOB` says of jobs, those of the cluster's jobs that are over."""
        self._ended = threading.Event()
        self._watches: dict[str, Watch] = {}
        kinds = {"pods": core("pods", namespace), **({"jobs": group(JOBS, "jobs", namespace)} if jobs else {})}
        self._threads = [
            threading.Thread(target=self._follow, args=(kind, path), name=f"follow-{kind}", daemon=True)
            for kind, path in kinds.items()
        ]

    def __enter__(self) -> Follower:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for watch in list(self._watches.values()):
            watch.close()
        for thread in self._threads:
            thread.join(_LONGEST)

    def of(self, job: str) -> list[PodStory]:
        """The pods of a job."""
        return self._by_job.get(job, [])

    def is_over(self, job: str, *, by_job: bool | None = None) -> bool:
        """Whether nothing more will become of a job that was submitted; `by_job`: it is one of the cluster's."""
        if self._by_jobs if by_job is None else by_job:
            return job in self.over
        pods = self.of(job)
        return bool(pods) and all(pod.over for pod in pods)

    def _follow(self, kind: str, path: str) -> None:
        pause, live, complaint = _PAUSE, True, ""
        while not self._ended.is_set():
            try:
                listed = self._api.list(path, labelSelector=self._selector)
                self._take_all(kind, listed, live)
                if complaint:
                    self._warn(f"the API server answers again, and {kind} are followed on")
                pause, live, complaint = _PAUSE, False, ""  # what the next list tells happened while nobody watched
                self._watch(kind, path, listed.version)
            except (ApiError, Unreachable) as error:
                if self._ended.is_set() or (isinstance(error, ApiError) and error.gone):
                    continue
                if str(error) != complaint:
                    complaint = str(error)
                    self._warn(f"{kind} cannot be followed: {complaint}; it is tried again")
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST)

    def _watch(self, kind: str, path: str, version: str) -> None:
        """Hear of changes until the server ends that, and then go on from there."""
        while not self._ended.is_set():
            watch = self._watches[kind] = self._api.watch(path, version, labelSelector=self._selector)
            for change in watch:
                version = change.object["metadata"]["resourceVersion"]
                if change.kind != "BOOKMARK":
                    self._take(kind, change.object, time.time(), live=True, gone=change.kind == "DELETED")

    def _take_all(self, kind: str, listed: Listed, live: bool) -> None:
        now = time.time()
        for found in listed.items:
            self._take(kind, found, now, live=live)
        if kind == "pods":
            there = {found["metadata"]["uid"] for found in listed.items}
            with self.news:
                for uid, story in self.pods.items():
                    if uid not in there and not story.gone:
                        story.leave(now)
                self.news.notify_all()

    def _take(self, kind: str, found: Object, at: float, *, live: bool, gone: bool = False) -> None:
        meta = found["metadata"]
        job = meta.get("labels", {}).get(JOB, meta["name"])
        with self.news:
            if kind == "pods":
                story = self.pods.get(meta["uid"])
                if story is None:
                    story = self.pods[meta["uid"]] = PodStory(meta["name"], meta["uid"])
                    self._by_job.setdefault(job, []).append(story)
                story.see(found, at, live=live)
                if gone:
                    story.leave(at)
            elif gone:
                self.over.setdefault(job, Over(True, "it was deleted"))
            else:
                self._take_job(job, found)
            self.news.notify_all()

    def _take_job(self, job: str, found: Object) -> None:
        for condition in found.get("status", {}).get("conditions") or ():
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                self.over[job] = Over(condition["type"] == "Failed", condition.get("message", ""))
