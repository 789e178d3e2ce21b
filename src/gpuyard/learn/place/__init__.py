"""Which GPU for the task at the head: seed 000's problem with nothing lost, its baselines, and one that learns."""
