"""Experiments: workloads that arrive by some process, run under several schedulers, and compared."""
