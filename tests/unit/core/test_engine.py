"""The engine: no plan can corrupt the state, every waiting job has a reason, and what cannot run is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpuyard.core.engine import BadPlan, Engine, validate
from gpuyard.core.events import Chosen, Event, Exited, Held, Placed, Rejected, Started, Submitted
from gpuyard.core.model import GIB, Cluster, Phase, Request
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.reasons import Priority, Reason, Reserved, Resources
from gpuyard.core.state import State
from gpuyard.core.transitions import fold
from gpuyard.errors import Bug, UserError
from gpuyard.policies.resolver import make_planner


def running(job: str, gpus: tuple[int, ...], request: Request, at: float = 0.0) -> list[Event]:
    return [Submitted(at, job, request), Placed(at, job, 1, gpus), Started(at, job, 1)]


def yard(cluster: Cluster, *parts: Iterable[Event]) -> State:
    return fold(cluster, [event for part in parts for event in part])


def busy() -> State:
    """Four GPUs: `runs` on 0 and 1, `fixed` on 2, and `waits` wants one."""
    return yard(
        Cluster((4,)),
        running("runs", (0, 1), Request(gpus=2, estimate=10.0)),
        running("fixed", (2,), Request(estimate=10.0, preemptible=False)),
        [Submitted(0.0, "waits", Request(estimate=5.0)), Submitted(0.0, "wide", Request(gpus=2, estimate=5.0))],
        [Submitted(0.0, "held", Request(estimate=5.0)), Held(0.0, "held")],
    )


# -- bad plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(starts=[Start("waits", (0,))]), "GPUs that are taken"),
        (Plan(starts=[Start("waits", (3,)), Start("wide", (3, 0))], stops=["runs"]), "GPUs that are taken"),
        (Plan(starts=[Start("wide", (3,))]), "needs 2 GPUs"),
        (Plan(starts=[Start("wide", (3, 3))]), "needs 2 GPUs"),
        (Plan(starts=[Start("waits", (3, 0))]), "needs 1 GPU"),
        (Plan(starts=[Start("waits", ())]), "needs 1 GPU"),
        (Plan(starts=[Start("waits", (3,)), Start("waits", (3,))]), "twice"),
        (Plan(stops=["runs", "runs"]), "twice"),
        (Plan(starts=[Start("runs", (3, 0))]), "not waiting"),
        (Plan(starts=[Start("held", (3,))]), "not waiting"),
        (Plan(stops=["fixed"]), "may be preempted"),
        (Plan(stops=["waits"]), "may be preempted"),
        (Plan(starts=[Start("nobody", (3,))]), "does not exist: nobody"),
        (Plan(stops=["nobody"]), "does not exist: nobody"),
        (Plan(renewals=["nobody"]), "does not exist: nobody"),
        (Plan(renewals=["waits"]), "does not go on running"),
        (Plan(stops=["runs"], renewals=["runs"]), "does not go on running"),
        (Plan(starts=[Start("waits", (4,))]), "do not exist"),
        (Plan(starts=[Start("waits", (-1,))]), "do not exist"),
    ],
)
def test_bad_plans_are_refused(plan: Plan, message: str) -> None:
    state = busy()
    before = state.version
    with pytest.raises(BadPlan, match=message):
        validate(state, plan)
    assert state.version == before


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(starts=[Start("waits", (3,))]),
        Plan(starts=[Start("waits", (0,)), Start("wide", (3, 1))], stops=["runs"]),
        Plan(starts=[Start("runs", (3, 0))], stops=["runs"]),
        Plan(renewals=["runs", "fixed"]),
    ],
)
def test_good_plans_pass(plan: Plan) -> None:
    validate(busy(), plan)


@pytest.mark.parametrize(
    ("request_", "gpus"),
    [
        (Request(compute=50.1), (0,)),
        (Request(memory=8.1 * GIB, compute=0), (0,)),
        (Request(compute=100), (0,)),
        (Request(gpus=2, compute=60), (1, 0)),
        (Request(compute=10, scope=(0,)), (1,)),
    ],
)
def test_shares_over_capacity_are_refused(request_: Request, gpus: tuple[int, ...]) -> None:
    half = Request(compute=50, memory=8 * GIB, estimate=10.0)
    state = yard(Cluster((2,)), running("half", (0,), half), [Submitted(0.0, "more", request_)])
    with pytest.raises(BadPlan, match="without room"):
        validate(state, Plan(starts=[Start("more", gpus)]))


def test_shares_of_one_plan_are_added_up() -> None:
    share = Request(compute=40)
    state = yard(Cluster((1,)), [Submitted(0.0, job, share) for job in "abc"])
    validate(state, Plan(starts=[Start("a", (0,)), Start("b", (0,))]))
    with pytest.raises(BadPlan, match="without room"):
        validate(state, Plan(starts=[Start(job, (0,)) for job in "abc"]))


# -- a planner of one's own ------------------------------------------------------------------------------


class LastFirst:
    """The youngest job first, on the highest GPU; jobs of more than one GPU are not its kind."""

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def plan(self, snapshot: Snapshot) -> Plan:
        free = [] if self.wrong else [int(g) for g in range(len(snapshot.free.tenants)) if not snapshot.free.tenants[g]]
        rows = snapshot.waiting.tolist()[::-1]
        gpus = [0] * len(rows) if self.wrong else free[::-1]
        return Plan(starts=[Start(snapshot.job(row), (gpu,)) for row, gpu in zip(rows, gpus, strict=False)])

    def refuses(self, state: State, request: Request) -> str | None:
        return "one GPU at a time" if request.gpus > 1 else None


def test_custom_planner() -> None:
    engine = Engine(Cluster((2,)), LastFirst())
    assert engine.submit(0.0, "wide", Request(gpus=2)) == "one GPU at a time"
    for job in "abc":
        assert engine.submit(0.0, job, Request()) is None
    plan = engine.plan(0.0)
    assert plan.starts == [Start("c", (1,)), Start("b", (0,))]
    assert plan.held == {}
    assert engine.state.phase[engine.state.row_of["wide"]] is Phase.REJECTED


def test_custom_planner_cannot_overbook() -> None:
    engine = Engine(Cluster((2,)), LastFirst(wrong=True))
    for job in "ab":
        engine.submit(0.0, job, Request())
    with pytest.raises(BadPlan, match="job a on GPUs that are taken"):
        engine.plan(0.0)
    assert engine.state.phase == [Phase.QUEUED, Phase.QUEUED]


# -- submitting ---------------------------------------------------------------------------------------


def test_rejected_with_a_reason_in_the_log() -> None:
    log: list[Event] = []
    engine = Engine(Cluster((2, 2)), make_planner("fcfs"), log=log)
    reason = engine.submit(3.0, "huge", Request(gpus=5))
    assert reason == "wants 5 GPUs, the cluster has 4"
    assert log[-1] == Rejected(3.0, "huge", reason)
    assert engine.state.phase == [Phase.REJECTED]
    assert not len(engine.state.waiting)


def test_a_job_is_submitted_once() -> None:
    log: list[Event] = []
    engine = Engine(Cluster((1,)), make_planner("fcfs"), log=log)
    engine.submit(0.0, "a", Request())
    with pytest.raises(UserError, match="there is a job a already"):
        engine.submit(1.0, "a", Request())
    assert len(log) == 1


def test_what_could_not_happen_is_not_in_the_log() -> None:
    log: list[Event] = []
    engine = Engine(Cluster((1,)), make_planner("fcfs"), log=log)
    engine.submit(0.0, "a", Request())
    with pytest.raises(Bug, match="job a: Exited cannot happen to a job that is queued"):
        engine.record(Exited(1.0, "a", 1))
    assert fold(Cluster((1,)), log).facts() == engine.state.facts()


# -- why a job waits -----------------------------------------------------------------------------------


def reasons(policy: str, *events: Event, cluster: Cluster | None = None, now: float = 2.0) -> dict[str, Reason]:
    """Four GPUs, of which `old` holds three until 10; then a head that wants four; then whatever else."""
    cluster = cluster or Cluster((4,))
    old = running("old", (0, 1, 2), Request(gpus=3, estimate=10.0))
    state = yard(cluster, old, [Submitted(1.0, "head", Request(gpus=4, estimate=7.0)), *events])
    return make_planner(policy).plan(Snapshot(state, now)).held


LONG = Submitted(2.0, "long", Request(estimate=9.0))
SHORT = Submitted(2.0, "short", Request(estimate=8.0))
WIDE = Submitted(2.0, "wide", Request(gpus=2, estimate=1.0))


@pytest.mark.parametrize("discipline", ["strict", "commit"])
def test_held_behind_the_head(discipline: str) -> None:
    assert reasons(f"fcfs@{discipline}", LONG, WIDE) == {
        "head": Resources(4, 1),
        "long": Priority("head", 1),
        "wide": Priority("head", 2),
    }


def test_held_for_lack_of_gpus() -> None:
    assert reasons("fcfs@skip", WIDE, LONG) == {"head": Resources(4, 0), "wide": Resources(2, 0)}


def test_held_for_a_reservation() -> None:
    # `short` is over by 10 and starts; `long` would not be; `wide` does not even fit.
    assert reasons("fcfs@easy", LONG, WIDE) == {
        "head": Resources(4, 1, 10.0),
        "long": Reserved("head", 10.0),
        "wide": Resources(2, 1),
    }
    assert reasons("fcfs@easy", LONG, SHORT, WIDE) == {
        "head": Resources(4, 0, 10.0),
        "long": Resources(1, 0),
        "wide": Resources(2, 0),
    }


def test_held_for_a_shadow_time() -> None:
    chosen = Chosen(1.0, "head", 10.0)
    equal = Submitted(2.0, "equal", Request(estimate=8.0))  # ends at the shadow time, which is too late here
    assert reasons("fcfs@easy-shadow", chosen, equal) == {
        "head": Resources(4, 1, 10.0),
        "equal": Reserved("head", 10.0),
    }


def test_held_with_a_reservation_for_everybody() -> None:
    after = Submitted(2.0, "after", Request(gpus=2, estimate=3.0))
    assert reasons("fcfs@conservative", LONG, after) == {
        "head": Resources(4, 1, 10.0),
        "long": Reserved("head", 10.0),
        "after": Resources(2, 1, 17.0),
    }


def test_held_with_reservations_and_jobs_that_start() -> None:
    assert reasons("fcfs@conservative", SHORT, WIDE) == {
        "head": Resources(4, 0, 10.0),
        "wide": Resources(2, 0, 17.0),
    }


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_held_on_nodes_beside_a_job_that_starts(discipline: str) -> None:
    """Two nodes of two: `short` starts on the second in this very plan, and ends before `old` does."""
    state = yard(
        Cluster((2, 2)),
        running("old", (0, 1), Request(gpus=2, estimate=10.0)),
        [
            Submitted(1.0, "short", Request(gpus=2, estimate=4.0)),
            Submitted(1.0, "head", Request(gpus=2, estimate=5.0)),
            Submitted(1.0, "last", Request(gpus=2, estimate=5.0)),
        ],
    )
    plan = make_planner(f"fcfs@{discipline}", placement="consolidate").plan(Snapshot(state, 1.0))
    assert plan.starts == [Start("short", (2, 3))]
    last = Resources(2, 0, 10.0) if discipline == "conservative" else Resources(2, 0)
    assert plan.held == {"head": Resources(2, 0, 5.0), "last": last}


def test_held_under_preemption() -> None:
    # `old` has 8 seconds left, `head` 7: it takes all there is, and nothing is left for the others.
    held = reasons("srtf", LONG)
    assert "head" not in held
    assert held["long"] == Resources(1, 0)


def test_held_on_nodes_that_have_no_room_together() -> None:
    cluster = Cluster((2, 2))
    state = yard(
        cluster,
        running("a", (0,), Request(estimate=5.0)),
        running("b", (2,), Request(estimate=9.0)),
        [Submitted(1.0, "pair", Request(gpus=2, estimate=1.0))],
    )
    held = make_planner("fcfs@easy", placement="consolidate").plan(Snapshot(state, 1.0)).held
    assert held == {"pair": Resources(2, 2, 5.0)}
    assert str(held["pair"]) == "needs 2 GPUs, 2 idle, but not where it could use them; expected to fit at 5"


def test_held_without_an_end_in_sight() -> None:
    state = yard(Cluster((1,)), running("a", (0,), Request()), [Submitted(1.0, "b", Request())])
    assert make_planner("fcfs@easy").plan(Snapshot(state, 1.0)).held == {"b": Resources(1, 0)}
    assert make_planner("fcfs@conservative").plan(Snapshot(state, 1.0)).held == {"b": Resources(1, 0)}


def test_reasons_are_sentences() -> None:
    assert str(Resources(1, 0)) == "needs 1 GPU, 0 idle"
    assert str(Priority("7", 1)) == "waits behind job 7 (1 job ahead)"
    assert str(Priority("7", 3)) == "waits behind job 7 (3 jobs ahead)"
    assert str(Reserved("7", 12.5)) == "would fit, but could delay job 7, due at 12.5"


def test_held_is_in_the_policys_order() -> None:
    state = yard(
        Cluster((1,)),
        running("r", (0,), Request(estimate=99.0)),
        [Submitted(0.0, job, Request(estimate=est)) for job, est in (("a", 3.0), ("b", 1.0), ("c", 2.0))],
    )
    plan = make_planner("sjf@strict").plan(Snapshot(state, 1.0))
    assert list(plan.held) == ["b", "c", "a"]


def test_reasons_expire_with_the_state() -> None:
    engine = Engine(Cluster((1,)), make_planner("fcfs"))
    engine.submit(0.0, "a", Request())
    plan = engine.plan(0.0)
    engine.submit(0.0, "b", Request())
    with pytest.raises(Bug, match="moved on"):
        _ = plan.held
