"""Commands on the daemon and its machine: start and stop, status, policy, sharing rules, access, settings, backups."""
