"""Learning to schedule: environments, what is trained on them, and how it is judged."""
