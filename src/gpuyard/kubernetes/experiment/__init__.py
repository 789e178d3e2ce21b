"""Experiments on a cluster: pods that ask for GPUs in several ways, as they come, and what becomes of them."""
