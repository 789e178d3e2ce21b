"""What a GPU is: found through NVML or simulated, read now and then, and whose it is."""
