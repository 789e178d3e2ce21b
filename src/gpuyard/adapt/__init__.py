"""Growing a network within the time that the scheduler grants."""
