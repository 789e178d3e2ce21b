"""Experiments: workloads with an arrival process, run under several schedulers and compared.

One runner, several back ends.
"""
