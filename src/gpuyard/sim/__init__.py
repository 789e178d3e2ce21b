"""The simulator: traces and workloads, the replay on a virtual clock, the compiled kernel, metrics and comparisons."""
