"""Commands on the simulator: simulate, compare, sweep, policies, trace, workload, demo."""
