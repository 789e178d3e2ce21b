"""How the jobs that others follow may have ended, in words."""

from __future__ import annotations

from gpuyard.core.model import Phase

ENDED = {
    Phase.SUCCEEDED: "succeeded",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "was cancelled",
    Phase.TIMEOUT: "ran out of time",
    Phase.OOM: "ran out of GPU memory",
    Phase.INTERRUPTED: "was interrupted",
}
