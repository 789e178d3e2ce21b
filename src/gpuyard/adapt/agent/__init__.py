"""Agents that learn from recorded runs when and where to grow; numpy, no torch."""
