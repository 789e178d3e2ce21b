"""Where jobs run: one small protocol, and what speaks it."""
