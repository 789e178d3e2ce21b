"""The dashboard: a process of its own, which asks the daemon's API like any client, with the rights of who looks."""
