"""Batches: many jobs out of one file, what stands in it, in which order they start, and what they achieved."""
