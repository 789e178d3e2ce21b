"""Policies by name, from text, from a user's Python file, or from a trained file with its guard."""
