"""What keeps jobs from GPUs besides capacity: gates, dependencies, quotas, reservations, loans and withdrawn GPUs."""
