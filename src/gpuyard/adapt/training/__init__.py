"""Training within a budget with torch: trainer, data, checkpoints, growth, recordings."""
