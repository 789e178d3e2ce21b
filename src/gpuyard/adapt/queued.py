"""Trees that are grown by the queue: each node is a job, queued once what it goes on from is there.

Jobs are known by keys, so that a recording which is started again queues nothing twice, and takes up what has ended
meanwhile.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.adapt.recording import Recording, Watch
from gpuyard.adapt.trees import Actions, Tree, word_of
from gpuyard.client import OVER, Client
from gpuyard.errors import UserError
from gpuyard.shapes import Wishes

_LOOK = 1.0  # seconds between looks at the jobs
_MOST = 200  # jobs at a time: the queue is everybody's


@dataclass
class _Growing:
    """A tree, and what of it is queued or still to be."""

    tree: Tree
    ready: list[Actions] = field(default_factory=lambda: [()])
    queued: dict[str, Actions] = field(default_factory=dict)
    """Nodes by the ids of their jobs."""

    @property
    def grown(self) -> bool:
        """Whether nothing is left to be done."""
        return not self.ready and not self.queued

    def look(self) -> None:
        """Go past all nodes that were visited before."""
        waiting, self.ready = self.ready, []
        while waiting:
            actions = waiting.pop()
            if self.tree.row_file(actions).exists():
                continue
            if self.tree.state_file(actions).exists():
                waiting += self.tree.below(actions)
            else:
                self.ready.append(actions)


def grow_queued(recording: Recording, client: Client, wishes: Wishes, watch: Watch) -> None:
    """Grow all trees by jobs of the queue; returns when all are complete."""
    growing = [_Growing(tree) for tree in recording.trees]
    total, open_ = len(growing), list(growing)
    for one in growing:
        one.look()
    while open_:
        room = _MOST - sum(len(one.queued) for one in open_)
        for one in open_:
            room -= _queue(one, client, wishes, room)
        for one in [one for one in open_ if one.grown]:
            recording.complete(one.tree)
            open_.remove(one)
        watch(total - len(open_), total)
        if open_:
            time.sleep(_LOOK)
            states = {job["id"]: job["state"] for job in client.jobs()}
            for one in open_:
                _hear(one, client, states)


def _queue(one: _Growing, client: Client, wishes: Wishes, room: int) -> int:
    """Queue what can begin; how many jobs that were."""
    now, one.ready = one.ready[: max(room, 0)], one.ready[max(room, 0) :]
    for actions in now:
        one.queued[_submitted(one.tree, actions, client, wishes)] = actions
    return len(now)


def _submitted(tree: Tree, actions: Actions, client: Client, wishes: Wishes) -> str:
    """The job of a node: the one that was queued before if it may still come to something, or else a new one."""
    folder, node = str(tree.folder.resolve()), word_of(actions)
    command = [sys.executable, "-m", "gpuyard", "adapt", "visit", folder, node]
    wishes = {**wishes, "name": f"{tree.folder.name}/{node}"[-200:]}
    key = hashlib.sha256(f"{folder} {tree.job.hash} {node}".encode()).hexdigest()[:32]
    id = client.submit(command, directory=Path.cwd(), key=key, **wishes)
    if client.job(id)["state"] in OVER and not _visited(tree, actions):
        return client.submit(command, directory=Path.cwd(), **wishes)
    return id


def _visited(tree: Tree, actions: Actions) -> bool:
    return tree.row_file(actions).exists() or tree.state_file(actions).exists()


def _hear(one: _Growing, client: Client, states: dict[str, str]) -> None:
    """See which jobs have ended, and what follows from that."""
    for id, actions in list(one.queued.items()):
        if id in states and states[id] not in OVER:
            continue
        tree = one.tree
        if not _visited(tree, actions):
            state = client.job(id)["state"]
            if state not in OVER:
                continue
            raise UserError(
                f"job {id}, which records {tree.folder.name} at {word_of(actions)}, ended {state}: see gpuyard logs "
                f"{id}, then run the same command again"
            )
        del one.queued[id]
        one.ready.append(actions)
        one.look()
