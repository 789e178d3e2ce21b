"""Kubernetes: a scheduler for the GPUs of a cluster, and experiments on one. The core decides, as everywhere."""
