"""Which nodes will do for a pod."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.kubernetes.cluster.cluster_nodes import ANYWHERE, Taint, node_constraints_of, unsupported

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LABELS = {"zone": "a", "generation": "7", "empty": ""}
RED, RUN = Taint("team", "red", "NoSchedule"), Taint("team", "red", "NoExecute")
SOFT = Taint("team", "red", "PreferNoSchedule")


def affinity(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def term(*expressions: tuple[Any, ...], fields: tuple[tuple[Any, ...], ...] = ()) -> dict[str, Any]:
    def one(key: str, operator: str, *values: str) -> dict[str, Any]:
        return {"key": key, "operator": operator, "values": list(values)}

    return {"matchExpressions": [one(*row) for row in expressions], "matchFields": [one(*row) for row in fields]}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        ({"nodeSelector": {"zone": "a"}}, ""),
        ({"nodeSelector": {"zone": "b"}}, "node selector"),
        ({"nodeSelector": {"zone": "a", "other": "x"}}, "node selector"),
        (affinity(term(("zone", "In", "a", "b"))), ""),
        (affinity(term(("zone", "In", "b"))), "node affinity"),
        (affinity(term(("nothing", "In", "b"))), "node affinity"),
        (affinity(term(("zone", "NotIn", "b"))), ""),
        (affinity(term(("nothing", "NotIn", "b"))), ""),
        (affinity(term(("zone", "NotIn", "a"))), "node affinity"),
        (affinity(term(("empty", "Exists"))), ""),
        (affinity(term(("nothing", "Exists"))), "node affinity"),
        (affinity(term(("nothing", "DoesNotExist"))), ""),
        (affinity(term(("zone", "DoesNotExist"))), "node affinity"),
        (affinity(term(("generation", "Gt", "6"))), ""),
        (affinity(term(("generation", "Gt", "7"))), "node affinity"),
        (affinity(term(("generation", "Lt", "8"))), ""),
        (affinity(term(("zone", "Gt", "6"))), "node affinity"),
        (affinity(term(("generation", "Gt", "x"))), "node affinity"),
        (affinity(term(("generation", "Gt"))), "node affinity"),
        (affinity(term(("generation", "Sounds", "7"))), "node affinity"),
        # all of a term, any of several
        (affinity(term(("zone", "In", "a"), ("generation", "In", "8"))), "node affinity"),
        (affinity(term(("zone", "In", "b")), term(("generation", "In", "7"))), ""),
        (affinity(term()), "node affinity"),
        (affinity(), "node affinity"),
        (affinity(term(fields=(("metadata.name", "In", "n1"),))), ""),
        (affinity(term(fields=(("metadata.name", "In", "n2"),))), "node affinity"),
        ({"nodeSelector": {"zone": "b"}, **affinity(term(("zone", "In", "a")))}, "node selector"),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, ""),
    ],
)
def test_labels(spec: dict[str, Any], why: str) -> None:
    found = node_constraints_of(spec).refusal("n1", LABELS, ())
    assert found == (f"did not match the {why}" if why else "")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "value": "red"}, True),
        ({"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Equal", "value": "red", "effect": "NoExecute"}, False),
        ({"key": "team", "value": "blue"}, False),
        ({"key": "team"}, False),
        ({}, False),
    ],
)
def test_taints(toleration: dict[str, Any], tolerated: bool) -> None:
    wish = node_constraints_of({"tolerations": [toleration]})
    assert wish.refusal("n1", {}, (RED,)) == ("" if tolerated else "had the taint team=red")


def test_all_taints_must_be_tolerated_but_soft_ones() -> None:
    wish = node_constraints_of({"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]})
    assert wish.refusal("n1", {}, (RED, SOFT)) == ""
    assert wish.refusal("n1", {}, (RED, RUN)) == "had the taint team=red"
    assert ANYWHERE.refusal("n1", {}, (SOFT,)) == ""
    assert ANYWHERE.refusal("n1", {}, (Taint("bare", "", "NoSchedule"),)) == "had the taint bare"


def test_pods_that_ask_for_the_same_share_a_wish() -> None:
    usual = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
             for key in ("not-ready", "unreachable")]  # fmt: skip
    assert node_constraints_of({"tolerations": usual}) == node_constraints_of({"tolerations": usual[::-1]})
    assert node_constraints_of({}) is ANYWHERE
    away = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
    assert node_constraints_of({"tolerations": usual}).refusal("n1", {}, (away,)) == ""
    one, other = ({"nodeSelector": {"a": "b", "c": "d"}}, {"nodeSelector": {"c": "d", "a": "b"}})
    assert node_constraints_of(one) == node_constraints_of(other)


def test_one_toleration_of_a_node_that_is_away_is_no_more_than_that() -> None:
    only = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    gone = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
    assert node_constraints_of({"tolerations": only}).refusal("n1", {}, (gone,)) == f"had the taint {gone}"
    pressed = [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]
    pressure = Taint("node.kubernetes.io/memory-pressure", "", "NoSchedule")
    assert node_constraints_of({"tolerations": pressed}).refusal("n1", {}, (pressure,)) == ""


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "required pod affinity",
        ),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "required pod anti-affinity",
        ),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, ""),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, ""),
        ({"topologySpreadConstraints": [{}]}, "a topology spread constraint that must hold"),
    ],
)
def test_what_is_not_looked_at(spec: dict[str, Any], why: str) -> None:
    assert unsupported(spec) == why
