"""The pure part: what a job is, what may happen to it, and which job runs next."""

from gpuyard.core.check import check_policy
from gpuyard.core.engine import Engine
from gpuyard.core.model import Cluster, Phase, Request
from gpuyard.core.plan import Plan, Planner, Snapshot, Start
from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policy import Policy, PolicyError, policy
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold

__all__ = [
    "Cluster",
    "Engine",
    "OrderedPlanner",
    "Phase",
    "Plan",
    "Planner",
    "Policy",
    "PolicyError",
    "Request",
    "Snapshot",
    "Start",
    "State",
    "apply",
    "check_policy",
    "fold",
    "ordered",
    "policy",
]
