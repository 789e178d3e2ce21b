"""What an admin does to an installation: doctor, service, backup and restore."""
