"""Placement of tasks on shared GPUs: the environment's rules, baselines and a learned placer."""
