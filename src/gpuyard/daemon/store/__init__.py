"""The event log and what follows from it, in one SQLite file."""
