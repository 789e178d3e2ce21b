"""The engine of leases: GPUs for processes that the daemon did not start."""
