"""Growing a network without changing what it computes: in place, in the user's own class."""

from gpuyard.adapt.ops.depth import deepen
from gpuyard.adapt.ops.growth_sites import sites
from gpuyard.adapt.ops.growths import Growth, NotPreserved, Refused, Site, growth_log
from gpuyard.adapt.ops.restoration import accuracy, compare_down, distil, distillation, rebuild, rollback, shrink
from gpuyard.adapt.ops.width import widen

__all__ = [
    "Growth", "NotPreserved", "Refused", "Site", "accuracy", "compare_down", "deepen", "distil", "distillation",
    "growth_log", "rebuild", "rollback", "shrink", "sites", "widen",
]  # fmt: skip
