"""Channels: who takes what a layer gives, and so must change with it when it becomes wider."""

from __future__ import annotations

from torch import fx

from gpuyard.adapt.ops.growths import Entry, Refused
from gpuyard.adapt.ops.tracing import Piece, Survey


def widen_entry(survey: Survey, piece: Piece, node: fx.Node) -> Entry:
    """PLACEHOLDER"""
    raise Refused("widening comes later")
