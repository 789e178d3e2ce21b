"""Learning to schedule: policies that are trained on the simulator, and judged before they may run."""
