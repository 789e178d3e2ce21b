"""The live driver: a real clock, real processes, and a store that loses nothing."""
