"""What the scheduler grants a job that adapts, as the job sees it."""
