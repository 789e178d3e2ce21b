"""Telling people what became of their jobs: who wants to know what, what is still to be sent, and sending it."""
