"""The HTTP API of a yard: who may ask for what, in which form, and what the answers look like."""
