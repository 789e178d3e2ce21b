"""Comparisons of policies that viewers start: their choices, the traces, and the processes that simulate."""
