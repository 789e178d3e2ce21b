"""Comparisons of policies that viewers ask for: what they choose, the processes that simulate, what comes of it."""
