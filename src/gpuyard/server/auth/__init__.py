"""Who asks and what they may do: credentials, permissions, the middleware before the routes, the audit log."""
