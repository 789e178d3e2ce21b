"""Policies: how they are defined, written as text, loaded from a user's file, checked, and what they compute."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.core.check import check_policy
from gpuyard.core.columns import COLUMNS
from gpuyard.core.model import Cluster
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import Policy, PolicyError, parse_spec, policy
from gpuyard.errors import UserError
from gpuyard.policyfile import find_policy, make_planner, split_list
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

A = Any
BUILT_IN = [
    "fcfs", "sjf", "ljf", "srtf", "srsf", "rr", "priority", "lottery", "wfq", "fair", "las", "edf", "saf", "f1", "f2",
    "f3", "f4", "wfp3", "unicep", "largest-memory", "random",
]  # fmt: skip


def order(policy: str, trace: Trace, options: Options | None = None) -> list[str]:
    """Jobs by start, one at a time on one GPU."""
    result, _ = simulate(trace, Cluster((1,)), policy, options)
    return [result.trace.ids[i] for i in np.argsort(result.start, kind="stable")]


def jobs(run: list[float], **columns: Any) -> Trace:
    """Jobs `a`, `b`, ... behind one that keeps the GPU until all are there."""
    n = len(run)
    first: dict[str, float | bool] = {
        "deadline": -1.0,
        "weight": 1.0,
        "tickets": 1.0,
        "priority": 99.0,
        "compute": 100.0,
    }
    columns = {name: [first.get(name, 0.0), *values] for name, values in columns.items() if name != "users"} | {
        "users": ["nobody", *columns["users"]] if "users" in columns else None
    }
    return Trace.of([0, *range(1, n + 1)], [100, *run], [1] * (n + 1), ids=["first", *"abcdefgh"[:n]], **columns)


# -- the decorator ---------------------------------------------------------------------------------


def test_parameters_are_columns_and_keywords_are_settings() -> None:
    @policy
    def mine(estimate: A, gpus: A, *, power: float = 2.0) -> A:
        """Narrow ones
        first."""
        return estimate * gpus**power

    assert isinstance(mine, Policy)
    assert (mine.name, mine.columns, dict(mine.defaults)) == ("mine", ("estimate", "gpus"), {"power": 2.0})
    assert mine.doc == "Narrow ones first."
    assert mine(3.0, 2.0) == 12.0
    assert mine.with_settings({"power": "3"})(3.0, 2.0) == 24.0
    assert mine(3.0, 2.0) == 12.0  # as it was


def test_underscores_are_dashes() -> None:
    @policy
    def short_and_narrow(estimate: A) -> A:
        return estimate

    assert short_and_narrow.name == "short-and-narrow"


def test_decorator_with_options() -> None:
    @policy(name="mine", preemptive=True, quantum=5.0)
    def whatever(remaining: A) -> A:
        return remaining

    assert (whatever.name, whatever.preemptive, whatever.quantum) == ("mine", True, 5.0)
    assert ordered(whatever).discipline == "skip"


def test_unknown_column_is_refused_with_a_suggestion() -> None:
    with pytest.raises(PolicyError, match=r"policy bad: there is no column 'estimat'; did you mean 'estimate'\?"):

        @policy
        def bad(estimat: A) -> A:
            return estimat


def test_settings_need_defaults() -> None:
    with pytest.raises(PolicyError, match="setting 'power' needs a default value"):

        @policy
        def bad(estimate: A, *, power: float) -> A:
            return estimate


def test_starred_parameters_are_refused() -> None:
    with pytest.raises(PolicyError, match="name the columns it needs"):

        @policy
        def bad(*columns: A) -> A:
            return columns

    with pytest.raises(PolicyError, match="name the columns it needs"):

        @policy
        def worse(estimate: A, **columns: A) -> A:
            return columns


def test_signature_tells_when_to_rank_again() -> None:
    assert POLICIES["sjf"].static
    assert POLICIES["wfq"].static
    assert not POLICIES["wfp3"].static
    assert POLICIES["fcfs"].changes == "never"
    assert POLICIES["srtf"].changes == "while running"
    assert POLICIES["fair"].changes == "at any time"


# -- as text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "settings", "discipline", "placement"),
    [
        ("sjf", "sjf", {}, None, None),
        (" sjf ", "sjf", {}, None, None),
        ("wfp3:power=2", "wfp3", {"power": "2"}, None, None),
        ("rr:quantum=5,arrivals=first", "rr", {"quantum": "5", "arrivals": "first"}, None, None),
        ("sjf@easy", "sjf", {}, "easy", None),
        ("sjf@easy@pack", "sjf", {}, "easy", "pack"),
        ("wfp3:power=2@conservative@spread", "wfp3", {"power": "2"}, "conservative", "spread"),
        ("sjf@@pack", "sjf", {}, None, "pack"),
        ("./a/mine.py:f", "./a/mine.py:f", {}, None, None),
        ("mine.py:f:k=1,l=2@skip", "mine.py:f", {"k": "1", "l": "2"}, "skip", None),
    ],
)
def test_text(text: str, name: str, settings: dict[str, str], discipline: str | None, placement: str | None) -> None:
    spec = parse_spec(text)
    assert (spec.name, spec.settings, spec.discipline, spec.placement) == (name, settings, discipline, placement)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a policy"),
        ("@easy", "is not a policy"),
        ("a@easy@pack@more", "is not a policy"),
        ("wfp3:power", "write key=value"),
        ("wfp3:=2", "write key=value"),
        ("wfp3:power=", "write key=value"),
        ("sjf@eazy", r"unknown discipline 'eazy'; did you mean 'easy'\?"),
        ("sjf@easy@packed", r"unknown placement 'packed'; did you mean 'pack'\?"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_spec(text)


@pytest.mark.parametrize("text", ["sjf", "wfp3:power=2.5", "las:queues=1/2.5", "rr:arrivals=first", "rr:quantum=5"])
def test_text_is_written_as_it_is_read(text: str) -> None:
    assert make_planner(text).policy.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wfp3:powr=2", r"policy wfp3 has no setting 'powr'; did you mean 'power'\? \(it has power\)"),
        ("sjf:power=2", r"policy sjf has no setting 'power' \(it has none\)"),
        ("sjf:quantum=2", "policy sjf has no setting 'quantum'"),
        ("wfp3:power=two", "setting 'power' takes a number, not 'two'"),
        ("wfp3:power=nan", "setting 'power' takes a number, not 'nan'"),
        ("las:queues=1/x", "setting 'queues' takes numbers with / between them, not '1/x'"),
        ("las:queues=9/5", "ascending"),
        ("srtf:quantum=-1", "a quantum is a number of seconds, 0 or more"),
        ("srtf:quantum=inf", "a quantum is a number of seconds, 0 or more"),
        ("rr:quantum=0", "needs a time slice above 0"),
        ("srtf@easy", "its discipline is skip or strict, not easy"),
        ("sjff", r"unknown policy 'sjff'; did you mean 'sjf'\?"),
        ("least-loadd", r"did you mean 'least-loaded'\?"),
        ("mine.py", "names a file; add the function, as in mine.py:my_policy"),
    ],
)
def test_bad_policies(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(Trace.of([0, 1], [5, 5], [1, 1]), Cluster((1,)), text)


def test_bad_round_robin_setting_is_refused() -> None:
    with pytest.raises(UserError, match="'arrivals' takes first or last, not 'never'"):
        simulate(Trace.of([0, 1], [5, 5], [1, 1]), Cluster((1,)), "rr:arrivals=never")


@pytest.mark.parametrize(
    ("options", "word"), [(Options(discipline="eazy"), "easy"), (Options(placement="pck"), "pack")]
)
def test_bad_options(options: Options, word: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{word}'"):
        simulate(Trace.of([0], [5], [1]), Cluster((1,)), "sjf", options)


def test_settings_are_read_by_the_type_of_their_default() -> None:
    @policy
    def mine(
        estimate: A, *, power: float = 1.5, on: bool = False, edges: tuple[float, ...] = (1.0,), word: str = "x"
    ) -> A:
        return estimate

    given = mine.with_settings({"power": "2", "on": "yes", "edges": "3/4.5", "word": "7"}).settings
    assert given == {"power": 2.0, "on": True, "edges": (3.0, 4.5), "word": "7"}
    assert mine.with_settings({"on": "0"}).settings == {"on": False}
    with pytest.raises(UserError, match="'on' takes yes or no, not 'maybe'"):
        mine.with_settings({"on": "maybe"})


def test_whole_numbers_stay_whole() -> None:
    @policy
    def mine(estimate: A, *, digits: int = 2) -> A:
        return np.round(estimate, digits)

    changed = mine.with_settings({"digits": "1"})
    assert changed(np.array([1.26])).tolist() == [1.3]


@pytest.mark.parametrize(
    ("alias", "full"),
    [
        ("fifo", "fcfs@strict@first"),
        ("least-loaded", "fcfs@skip@spread"),
        ("best-fit", "fcfs@skip@pack"),
        ("best-fit@easy", "fcfs@easy@pack"),
        ("fifo@@random", "fcfs@strict@random"),
    ],
)
def test_aliases(alias: str, full: str) -> None:
    assert make_planner(alias).text == full


def test_what_the_text_leaves_open_comes_from_the_options() -> None:
    assert make_planner("sjf", discipline="easy", placement="pack").text == "sjf@easy@pack"
    assert make_planner("sjf@skip@spread", discipline="easy", placement="pack").text == "sjf@skip@spread"
    assert make_planner("srtf", discipline="easy", lenient=True).text == "srtf@skip@first"
    with pytest.raises(UserError, match="its discipline is skip or strict, not easy"):
        make_planner("srtf", discipline="easy")
    assert make_planner("srtf", discipline="strict").text == "srtf@strict@first"
    assert make_planner("rr", quantum=3.0).policy.quantum == 3.0
    assert make_planner("rr:quantum=4", quantum=3.0).policy.quantum == 4.0
    assert make_planner("sjf", quantum=3.0).policy.quantum == 0.0


@pytest.mark.parametrize(
    ("texts", "policies"),
    [
        (["sjf"], ["sjf"]),
        (["sjf,fcfs"], ["sjf", "fcfs"]),
        (["sjf fcfs"], ["sjf", "fcfs"]),
        (["sjf, fcfs"], ["sjf", "fcfs"]),
        (["sjf,ljf fcfs"], ["sjf", "ljf", "fcfs"]),
        (["sjf,", ",fcfs", "", " "], ["sjf", "fcfs"]),
        (["sjf", "fcfs"], ["sjf", "fcfs"]),
        (["rr:quantum=5,arrivals=first,sjf"], ["rr:quantum=5,arrivals=first", "sjf"]),
        (["rr:quantum=5,arrivals=first@skip,sjf@easy"], ["rr:quantum=5,arrivals=first@skip", "sjf@easy"]),
        (["wfp3:power=2,wfp3:power=3"], ["wfp3:power=2", "wfp3:power=3"]),
        (["./mine.py:f,fcfs"], ["./mine.py:f", "fcfs"]),
        (["mine.py:f:k=1,l=2,fcfs"], ["mine.py:f:k=1,l=2", "fcfs"]),
    ],
)
def test_split_list(texts: list[str], policies: list[str]) -> None:
    assert split_list(texts) == policies


# -- a user's own file -----------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


def test_plain_function_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "def shortest_wide(estimate, gpus, *, power=1.0):\n    return estimate / gpus**power\n")
    found = find_policy(f"{path}:shortest_wide")
    assert (found.name, found.columns) == ("shortest-wide", ("estimate", "gpus"))
    assert order(f"{path}:shortest_wide", jobs([5, 1, 3])) == ["first", "b", "c", "a"]
    assert make_planner(f"{path}:shortest-wide:power=2@easy").policy.settings == {"power": 2.0}


def test_decorated_function_in_a_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "from gpuyard import policy\n\n@policy(preemptive=True)\ndef mine(remaining):\n    return -remaining\n",
    )
    found = find_policy(f"{path}:mine")
    assert found.preemptive
    assert make_planner(f"{path}:mine").discipline == "skip"


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for folder, sign in (("a", ""), ("b", "-")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, f"def f(estimate):\n    return {sign}estimate\n")
    first, second = (find_policy(f"{tmp_path / folder}/mine.py:f") for folder in "ab")
    assert (first(3.0), second(3.0)) == (3.0, -3.0)


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("def f(estimate)\n    return 1\n", "f", r"mine\.py, line 1: SyntaxError"),
        ("x = 1\n\ny = 1 / 0\n", "f", r"mine\.py, line 3: ZeroDivisionError"),
        ("import no_such_module_at_all\n", "f", r"mine\.py, line 1: ModuleNotFoundError"),
        (
            "def shortest(estimate):\n    return estimate\n",
            "shortst",
            r"has no policy 'shortst'; did you mean 'shortest'",
        ),
        ("f = 3\n", "f", "is not a function"),
        ("def f(estimat):\n    return estimat\n", "f", "did you mean 'estimate'"),
        (
            "from gpuyard import policy\n@policy\ndef f(wat):\n    return 1\n",
            "f",
            r"mine\.py: policy f: there is no column",
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, function: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=message):
        find_policy(f"{path}:{function}")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*none\.py to load the policy 'f' from"):
        find_policy(f"{tmp_path}/none.py:f")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return estimate[:1]", "returned 1 numbers for 2 jobs"),
        ("return estimate * float('nan')", "'not a number' for job 0"),
        ("return estimate.no_such_thing", "policy f failed: AttributeError"),
    ],
)
def test_policy_that_breaks_while_it_runs(tmp_path: Path, body: str, message: str) -> None:
    path = write(tmp_path, f"def f(estimate):\n    {body}\n")
    with pytest.raises(PolicyError, match=message):
        simulate(Trace.of([0, 0], [5, 5], [1, 1]), Cluster((1,)), f"{path}:f")


# -- check_policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies_pass_their_own_check(name: str) -> None:
    assert check_policy(POLICIES[name]) == []


def test_built_in_policies_are_all_there() -> None:
    assert list(POLICIES) == BUILT_IN
    assert all(p.doc for p in POLICIES.values())
    assert [name for name in BUILT_IN if POLICIES[name].preemptive] == ["srtf", "srsf", "rr", "las"]


def _same_every_time(estimate: A) -> A:
    return estimate * 0


def _scalar(estimate: A) -> A:
    return 1.0


def _nan_at_zero_wait(wait: A, estimate: A) -> A:
    return wait / wait


def _too_short(estimate: A) -> A:
    return estimate[:-1]


def _in_place(estimate: A) -> A:
    estimate *= 2
    return estimate


def _in_place_once(estimate: A) -> A:
    np.minimum(estimate, 100.0, out=estimate)
    return estimate


def _random(estimate: A) -> A:
    return estimate * np.random.random(np.shape(estimate))


def _by_place(estimate: A) -> A:
    return np.arange(len(estimate))


def _fails(estimate: A) -> A:
    raise KeyError("oops")


def _fails_when_empty(estimate: A) -> A:
    return estimate / estimate.max()


def _words(estimate: A) -> A:
    return np.full(np.shape(estimate), "soon")


def _no_columns(*, power: float = 1.0) -> A:
    return power


@pytest.mark.parametrize(
    ("function", "finding"),
    [
        (_same_every_time, "gives every job the same number"),
        (_scalar, "gives every job the same number"),
        (_nan_at_zero_wait, "'not a number' where wait is 0"),
        (_too_short, r"shape \(49,\) for 50 jobs"),
        (_in_place, "changes the column 'estimate' in place"),
        (_in_place_once, "changes the column 'estimate' in place"),
        (_random, "different numbers for the same queue"),
        (_by_place, "depends on its place in the array"),
        (_fails, "fails on an ordinary queue: KeyError"),
        (_fails_when_empty, "fails on an empty queue"),
        (_words, "must return numbers"),
        (_no_columns, "names no columns"),
    ],
)
def test_findings(function: Any, finding: str) -> None:
    found = check_policy(function)
    assert any(re.search(finding, problem) for problem in found), found


def test_findings_are_sentences_told_once() -> None:
    found = check_policy(_nan_at_zero_wait)
    assert len(found) == len(set(found))


def test_unusable_signature_is_told() -> None:
    def bad(estimat: A) -> A:
        return estimat

    with pytest.raises(PolicyError, match="no column 'estimat'"):
        check_policy(bad)


# -- known values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_policies_work_on_numbers_as_on_arrays(name: str) -> None:
    made = POLICIES[name]
    values = [0.25 if column == "draw" else 7.0 for column in made.columns]
    one = float(made(*values))
    many = made(*(np.full(3, value) for value in values))
    assert np.asarray(many).tolist() == pytest.approx([one] * 3)
    assert math.isfinite(one)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("f1", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 2 * 4 + 870 * 3),
        ("f1", {"estimate": 100.0, "gpus": 4.0, "submit": 0.0}, 2 * 4 - 870),
        ("f2", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 10 * 4 + 25600 * 3),
        ("f3", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 400 + 6860000 * 3),
        ("f4", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 200 + 530000 * 3),
        ("wfp3", {"wait": 20.0, "estimate": 10.0, "gpus": 4.0}, -32.0),
        ("unicep", {"wait": 20.0, "estimate": 10.0, "gpus": 4.0}, -1.0),
        ("saf", {"estimate": 10.0, "gpus": 4.0}, 40.0),
        ("srsf", {"remaining": 10.0, "gpus": 4.0}, 40.0),
        ("ljf", {"estimate": 10.0}, -10.0),
        ("priority", {"priority": 2.0, "submit": 7200.0}, 0.0),
        ("fair", {"user_usage": 30.0, "weight": 2.0}, 15.0),
        ("largest-memory", {"memory": 5.0}, -5.0),
        ("lottery", {"draw": math.exp(-6.0), "tickets": 3.0}, 2.0),
        ("las", {"service": 0.0}, 0.0),
        ("las", {"service": 3249.0}, 0.0),
        ("las", {"service": 3250.0}, 1.0),
        ("las", {"service": 7200.0}, 2.0),
        ("las", {"service": 1e9}, 3.0),
    ],
)
def test_known_values(name: str, values: dict[str, float], expected: float) -> None:
    made = POLICIES[name]
    assert set(made.columns) == set(values)
    assert float(made(*(values[column] for column in made.columns))) == pytest.approx(expected)


def test_settings_change_the_values() -> None:
    assert float(POLICIES["wfp3"].with_settings({"power": "2"})(20.0, 10.0, 4.0)) == -16.0
    assert float(POLICIES["priority"].with_settings({"ageing": "0"})(2.0, 7200.0)) == -2.0
    assert float(POLICIES["las"].with_settings({"queues": "1/2"})(1.5)) == 1.0


def test_unicep_lets_one_gpu_jobs_go_first() -> None:
    wait, estimate = np.array([1.0, 1e6]), np.array([1e5, 1.0])
    assert np.argmin(POLICIES["unicep"](wait, estimate, np.array([1.0, 2.0]))) == 0


def test_each_column_has_a_sentence() -> None:
    assert all(column.doc for column in COLUMNS.values())


@pytest.mark.parametrize(
    ("policy", "columns", "expected"),
    [
        ("fcfs", {}, "abc"),
        ("sjf", {}, "bca"),
        ("ljf", {}, "acb"),
        ("saf", {}, "bca"),
        ("edf", {"deadline": [math.inf, 900.0, 800.0]}, "cba"),
        ("priority", {"priority": [0.0, 2.0, 1.0]}, "bca"),
        ("priority:ageing=0", {"priority": [0.0, 2.0, 1.0]}, "bca"),
        ("largest-memory", {"memory": [1.0, 3.0, 2.0], "compute": [100.0] * 3}, "bca"),
        ("wfq", {"weight": [10.0, 1.0, 1.0]}, "abc"),
    ],
)
def test_orders(policy: str, columns: dict[str, list[float]], expected: str) -> None:
    # a: 9 s, b: 1 s, c: 5 s, all waiting when the GPU becomes free
    assert "".join(order(f"{policy}@strict", jobs([9, 1, 5], **columns))[1:]) == expected


def test_ageing_lets_an_old_job_overtake() -> None:
    """Ten hours of waiting count as ten: priority 0 at 0 h goes before priority 9 at 10 h."""
    trace = Trace.of([0, 1, 36_000], [36_010, 5, 5], [1] * 3, ids=["first", "old", "new"], priority=[0, 0, 9])
    assert order("priority", trace) == ["first", "old", "new"]
    assert order("priority:ageing=0.5", trace) == ["first", "new", "old"]
    assert order("priority:ageing=0", trace) == ["first", "new", "old"]


def test_fair_serves_the_user_who_had_least() -> None:
    trace = jobs([50, 10, 10, 10], users=["ann", "ann", "bob", "bob"])
    assert order("fair", trace) == ["first", "a", "c", "d", "b"]


def test_fair_counts_weights() -> None:
    trace = jobs([10, 20, 10, 10], users=["ann", "bob", "ann", "bob"], weight=[1.0, 4.0, 1.0, 4.0])
    assert order("fair", trace) == ["first", "a", "b", "d", "c"]


def test_las_drops_a_job_when_it_has_had_its_share() -> None:
    trace = Trace.of([0, 1], [100, 5], [1, 1])
    result, _ = simulate(trace, Cluster((1,)), "las:queues=10/50")
    assert (result.start.tolist(), result.end.tolist(), result.preemptions.tolist()) == ([0, 10], [105, 15], [1, 0])


def test_las_drops_jobs_by_its_default_queues_too() -> None:
    """3,250 GPU-seconds on two GPUs are 1,625 seconds."""
    result, _ = simulate(Trace.of([0, 1], [2000, 5], [2, 1]), Cluster((2,)), "las")
    assert (result.start.tolist(), result.end.tolist()) == ([0, 1625], [2005, 1630])


def test_las_waits_for_a_restart_to_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that restarts just before its drop must not be looked at again and again while it restores.

    `0` is stopped by `2` when it has had 20 - 0.001 s of its second queue, and `1` waits for it to drop.
    """
    plans: list[float] = []

    def count(self: OrderedPlanner, snapshot: Snapshot) -> Plan:
        plans.append(snapshot.now)
        return plan(self, snapshot)

    plan = OrderedPlanner.plan
    monkeypatch.setattr(OrderedPlanner, "plan", count)
    trace = Trace.of([0, 0, 31 - 0.001], [100, 100, 1], [1] * 3)
    result, _ = simulate(trace, Cluster((1,)), "las:queues=10/20/1000", Options(restart_cost=1.0))
    assert result.start.tolist() == [0, 10, 31 - 0.001]
    assert result.preemptions.tolist() == [3, 2, 0]
    assert len(plans) < 20


def test_random_is_seeded() -> None:
    trace = jobs([1.0] * 8)
    orders = [tuple(order("random", trace, Options(seed=seed))) for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_rank_does_not_see_the_true_run_time() -> None:
    """Two traces that differ in run times only start their jobs in the same order."""
    first = Trace.of([0, 1, 2], [100, 5, 9], [1] * 3, requested=[100, 20, 10])
    second = Trace.of([0, 1, 2], [100, 9, 5], [1] * 3, requested=[100, 20, 10])
    for name in BUILT_IN:
        if not POLICIES[name].preemptive:
            assert order(name, first) == order(name, second), name
