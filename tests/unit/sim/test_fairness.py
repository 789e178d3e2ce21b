"""Who floods the queue does not crowd out who comes later."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.replay import replay
from gpuyard.sim.trace import Trace

RUN = 10.0
LATER = 100.0


def waits(flood: int, policy: str, gpus: int) -> float:
    """The mean wait of twenty jobs of one user, submitted a while after so many of another."""
    users = ["ann"] * flood + ["bob"] * 20
    submit = np.where(np.array(users) == "ann", 0.0, LATER)
    trace = Trace.of(submit=submit, run=np.full(len(users), RUN), gpus=np.ones(len(users)), users=users)
    result = replay(trace, Cluster((gpus,)), make_planner(policy), estimates=trace.run)
    return float((result.start - trace.submit)[flood:].mean())


@pytest.mark.parametrize("policy", ["multifactor@easy", "fair@easy", "multifactor@strict", "fair@skip"])
def test_a_flood_costs_others_no_more_than_half_the_machine(policy: str) -> None:
    alone = waits(0, policy, 2)
    assert alone == 45.0
    assert waits(1000, policy, 4) <= 1.5 * alone
    assert waits(1000, "fcfs@easy", 4) > 10 * alone  # which is why
