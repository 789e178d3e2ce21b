"""Growing a network without changing what it computes: in place, in the user's own class."""

from gpuyard.adapt.ops.deepening import deepen
from gpuyard.adapt.ops.growthlog import growth_log
from gpuyard.adapt.ops.growths import Growth, NotPreserved, Refused, Site
from gpuyard.adapt.ops.rebuilding import rebuild
from gpuyard.adapt.ops.shrinking import accuracy, compare_down, distil, distillation, shrink
from gpuyard.adapt.ops.sites import sites
from gpuyard.adapt.ops.undoing import rollback
from gpuyard.adapt.ops.widening import widen

__all__ = [
    "Growth", "NotPreserved", "Refused", "Site", "accuracy", "compare_down", "deepen", "distil", "distillation",
    "growth_log", "rebuild", "rollback", "shrink", "sites", "widen",
]  # fmt: skip
