"""Scheduler for the GPUs of a Kubernetes cluster, and experiments on one. The core decides."""
