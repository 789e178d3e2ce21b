"""Who is known to the yard by an id, an array's id or a name, and what a job that is to follow them has to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuyard.arrays import some_of, task_id
from gpuyard.core.events import Submitted
from gpuyard.core.model import Phase
from gpuyard.daemon.following import ENDED
from gpuyard.daemon.yard import Yard
from gpuyard.dependencies import AFTER, parse_dependency
from gpuyard.errors import UserError, suggest


class Register:
    """Looks jobs up: in the state, among what is recorded but not yet written, and on disk."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard

    def follow(self, text: str, user: str, name: str, batch: Sequence[Sequence[str]] = ()) -> tuple[str, ...]:
        """What `Request.after` is to hold. `@2` is the third job of a batch."""
        found: list[str] = []
        for how, who in parse_dependency(text):
            if how == "singleton":
                found += [f"any:{job}" for job, phase in self._all_named(name, user) if not phase.over]
                continue
            for job, phase in self._who(who, user, batch):
                if not phase.over:
                    found.append(f"{how}:{job}")
                elif how in ("ok", "notok") and (how == "ok") != (phase is Phase.SUCCEEDED):
                    raise UserError(
                        f"job {job} {ENDED.get(phase, phase)}, so a job that is to follow it "
                        f"({AFTER[how]}:{who}) could never start"
                    )
        return tuple(dict.fromkeys(found))

    def _who(self, who: str, user: str, batch: Sequence[Sequence[str]]) -> list[tuple[str, Phase]]:
        """The jobs that are meant, and where each stands."""
        if who.startswith("@") and who[1:].isdecimal() and len(who) < 12 and int(who[1:]) < len(batch):
            return [(job, Phase.QUEUED) for job in batch[int(who[1:])]]
        found = self._with_id(who) or self._of_array(who) or self._named(who, user)
        if not found:
            known = [name for _, name, of in self._unwritten() if of == user] + self._yard.store.names(user)
            raise UserError(
                f"there is no job {who} to follow, neither by its id nor, of {user or 'yours'}, by its name"
                f"{suggest(who, known)}"
            )
        return found

    def _with_id(self, job: str) -> list[tuple[str, Phase]]:
        if job in self._yard.state.row_of:
            return [(job, self._phase(job, "queued"))]
        return [(s.id, Phase(s.state)) for s in self._yard.store.standing(id=job)]

    def _of_array(self, array: str) -> list[tuple[str, Phase]]:
        """The tasks of an array, in order."""
        state = self._yard.state
        if (some := some_of(array)) is not None:
            wanted = {task_id(some[0], task) for task in some[1]}
            return [(job, phase) for job, phase in self._of_array(some[0]) if job in wanted]
        if not array.isdecimal():
            return []
        written = [(s.id, self._phase(s.id, s.state)) for s in self._yard.store.standing(array=array)]
        written.sort(key=lambda task: int(task[0].partition("_")[2]))
        fresh = [(job, self._phase(job, "queued")) for job, _, _ in self._unwritten() if job.startswith(f"{array}_")]
        return written + [(job, phase) for job, phase in fresh if job in state.row_of]

    def _named(self, name: str, user: str) -> list[tuple[str, Phase]]:
        """The newest job of a name that is open, or else over; if it is a task, all of its array."""
        fresh = [job for job, called, of in self._unwritten() if (called, of) == (name, user)]
        if fresh:
            newest = fresh[-1]
        elif written := self._yard.store.standing(1, name=name, user=user):
            newest = written[0].id
        else:
            return []
        array, task, _ = newest.partition("_")
        return self._of_array(array) if task else self._with_id(newest)

    def _all_named(self, name: str, user: str) -> list[tuple[str, Phase]]:
        fresh = [job for job, called, of in self._unwritten() if (called, of) == (name, user)]
        written = [view.id for view in self._yard.store.open.values() if (view.name, view.user) == (name, user)]
        return [(job, self._phase(job, "queued")) for job in (*written, *fresh)]

    def _unwritten(self) -> Iterator[tuple[str, str, str]]:
        """Id, name and user of jobs that were submitted in this very turn."""
        for record in self._yard.unwritten:
            if isinstance(record.event, Submitted):
                yield record.event.job, record.details.get("work", {}).get("name", ""), record.event.request.user

    def _phase(self, job: str, otherwise: str) -> Phase:
        state = self._yard.state
        row = state.row_of.get(job)
        return state.phase[row] if row is not None else Phase(otherwise)
