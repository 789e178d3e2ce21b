"""What must hold whatever happens to the daemon: nothing lost, nothing twice, every exit code right."""
