"""Loops over arrays in numba's subset: free GPUs, placement, backfill and victims.

The daemon interprets them, the simulator's kernel compiles them.
"""
