"""One request that changes many jobs: all of them or none, and others come between.

What is asked for is written down before the first job changes, with the first slice. From then on it happens, whatever
becomes of the daemon: a restart goes on where it was. Until then nothing has changed, so that it can still be refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpuyard.daemon.commands import Commands, Edit, NotNow
from gpuyard.daemon.context import Context, Steps, in_slices
from gpuyard.daemon.jobs.intake import MANY, SUBMIT, check_waits
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.spec.notation import folded, some_of, task_id

log = logging.getLogger("gpuyard")
_MOST_BYTES = 2**26  # what an edit may say of all jobs together: each keeps it for itself
CANCEL, HOLD, RELEASE, REQUEUE, EDIT = "cancel", "hold", "release", "requeue", "edit"
ReadEdit = Callable[[Mapping[str, Any]], Edit]


class Chosen(NamedTuple):
    """Jobs in the order in which they are changed; and the same in few words, for the disk."""

    ids: Sequence[str]
    words: Sequence[str]

    @classmethod
    def of(cls, ids: Iterable[str], open: Mapping[str, JobView]) -> Chosen:
        """Jobs by their ids; tasks of an array together. Not for the loop's thread: there may be many.

        Those that run come last: else their end would start others, which are to be cancelled with them."""
        found: dict[tuple[bool, str], list[int]] = {}
        for id in ids:
            array, _, task = id.partition("_")
            runs = (view := open.get(id)) is not None and view.state == "running"
            found.setdefault((runs, array), []).extend([int(task)] if task else [])
        order = sorted(found.items(), key=lambda one: one[0][0])
        words = [folded(id, tasks) if tasks else id for (_, id), tasks in order]
        return cls(list(_ids(words)), words)


def _ids(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if (some := some_of(word)) is None:
            yield word
        else:
            yield from (task_id(some[0], task) for task in some[1])


class BulkChanges:
    """Cancels, holds, releases, requeues and edits many jobs. For the loop's thread."""

    def __init__(self, context: Context, commands: Commands) -> None:
        self._context, self._commands = context, commands
        self.read_edit: ReadEdit | None = None
        """Makes an edit of what was written down; the server knows how."""

    def change(
        self, kind: str, jobs: Chosen, answer: dict[str, Any] | None = None, **how: Any
    ) -> Steps[dict[str, Any]]:
        """Change jobs; `how` is kept for a restart. The answer tells how many were changed."""
        counts = {"changed": 0} if answer is None else answer
        refusals: list[NotNow] = []
        if kind == EDIT:
            yield from self._check(jobs.ids, how)
        if len(jobs.ids) <= MANY:
            act = self._act(kind, how, counts, refusals)
            for job in jobs.ids:
                act(job)
        else:
            intent = self._context.intend({"kind": kind, "jobs": jobs.words, "how": how})
            for _ in in_slices(self._context, intent, jobs.ids, self._act(kind, how, counts, refusals)):
                yield {**counts, "changed": len(jobs.ids)}  # what whoever asks again is told until it is done
        if refusals and not counts["changed"]:
            raise refusals[0]
        return counts

    def _check(self, jobs: Sequence[str], how: Mapping[str, Any]) -> Steps[None]:
        """Refuse an edit that one of the jobs could never run with, or that is too much for all of them."""
        edit, before = self._edit(how), None
        if (size := len(json.dumps(how["changes"]))) * len(jobs) > _MOST_BYTES:
            raise UserError(
                f"a change of {size:,} bytes to {len(jobs):,} jobs is too large: together they may have "
                f"{_MOST_BYTES // 2**20} MiB; put what is long into a file"
            )
        for place, job in enumerate(jobs):
            if place and len(jobs) > MANY and self._context.slice_is_over:
                yield
            view = self._context.store.open.get(job)
            like = view and (view.state, view.priority, {**view.work, "task": None})
            if like is not None and like == before and edit.dependency is None:
                continue  # a task like the one before, which can run with it
            before = like
            try:
                _, request = self._commands.edited(job, edit)
            except (NotNow, NoSuchJob):
                continue  # it is left as it is
            if edit.dependency is not None:
                check_waits(len(jobs), len(jobs) * len(request.after))

    def _edit(self, how: Mapping[str, Any]) -> Edit:
        assert self.read_edit is not None, "the server says how to read edits before the loop begins"
        return self.read_edit(how["changes"])

    def _act(
        self, kind: str, how: Mapping[str, Any], counts: dict[str, Any], refusals: list[NotNow]
    ) -> Callable[[str], None]:
        commands = self._commands
        edit = self._edit(how) if kind == EDIT else None
        acts: dict[str, Callable[[str], None]] = {
            CANCEL: lambda job: commands.cancel(job, how.get("grace"), how.get("by", "")),
            HOLD: commands.hold,
            RELEASE: commands.release,
            REQUEUE: commands.requeue,
            EDIT: lambda job: commands.edit(job, edit) if edit else None,
        }
        act = acts[kind]

        def change(job: str) -> None:
            try:
                act(job)
                counts["changed"] += 1
            except NoSuchJob:
                pass
            except NotNow as refusal:  # it has begun, or ended, since it was chosen
                refusals.append(refusal)

        return change

    def resume(self) -> None:
        """Go on with what was written down before a restart."""
        for intent, done, what in self._context.store.unfinished():
            if what["kind"] == SUBMIT:
                steps = self._commands.resume_submits(what["entries"], intent, done)
            else:
                steps = self._resumed(intent, done, what)
            log.info("going on with a request of before the restart (%s)", what["kind"])
            self._context.inbox.resume(steps)

    def _resumed(self, intent: int, done: int, what: Mapping[str, Any]) -> Steps[None]:
        yield  # until the server is there
        act = self._act(what["kind"], what["how"], {"changed": 0}, [])
        yield from in_slices(self._context, intent, _ids(what["jobs"]), act, done)
