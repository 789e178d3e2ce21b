"""Scheduling policies that are trained on the simulator and evaluated before they may run."""
