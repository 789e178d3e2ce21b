"""`gpuyard demo`: the queue at work on simulated GPUs, and what other policies would have made of it."""
