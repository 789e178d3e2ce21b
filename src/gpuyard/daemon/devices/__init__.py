"""The machine's GPUs as the daemon sees them: looks, measurements, sharing, admission."""
