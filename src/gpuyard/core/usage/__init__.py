"""Admission by use: what GPUs and jobs are measured to use, what jobs are charged, and memory that is overcommitted."""
