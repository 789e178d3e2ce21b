"""A job's way through the daemon: intake, launch, stops, outcomes, retries."""
