"""The engine of this machine: jobs as processes that outlive the daemon."""
