"""The placements by name: those of `pool`, and one of them that looks further."""

from __future__ import annotations

from gpuyard.core import pool

CONSIDERATE = "considerate"
PLACEMENTS = {**pool.PLACEMENTS, CONSIDERATE: pool.PACK}
"""Which loop chooses GPUs, by name."""
PLACEMENT_DOCS = {
    **pool.PLACEMENT_DOCS,
    CONSIDERATE: "pack, but not beside jobs that are known to hurt each other on one GPU",
}
