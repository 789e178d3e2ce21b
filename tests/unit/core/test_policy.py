"""Policies: how they are defined, written as text, and loaded from a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.one_gpu import jobs, order

from gpuyard.core.model import Cluster
from gpuyard.core.planner import ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import Policy, PolicyError, parse_spec, policy
from gpuyard.errors import UserError
from gpuyard.policies.resolver import find_policy, make_planner, split_list
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

A = Any


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
def delivery_test_text(
    text: str, name: str, settings: dict[str, str], discipline: str | None, placement: str | None
) -> None:
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
        ("srtf:quantum=inf", "not a duration"),
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


MIXED = """\
from gpuyard import policy

@policy
def good(submit):
    return submit

@policy
def bad(sumbit):
    return sumbit

@policy(quantum=-1.0)
def worse(submit):
    return submit
"""


def test_a_bad_policy_does_not_hide_the_good_ones_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MIXED)
    assert find_policy(f"{path}:good").columns == ("submit",)
    for name, told in (("bad", "no column 'sumbit'; did you mean 'submit'"), ("worse", "a quantum is a number")):
        with pytest.raises(UserError, match=told) as error:
            find_policy(f"{path}:{name}")
        assert str(error.value).startswith(f"{path}: policy {name}: ")
    with pytest.raises(UserError, match="no policy 'wors'; did you mean 'worse'"):
        find_policy(f"{path}:wors")
    with pytest.raises(PolicyError, match="no column"):
        policy(lambda sumbit: sumbit)  # outside such a file a mistake is told at once
