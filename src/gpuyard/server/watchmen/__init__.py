"""The API of watchmen, on top of leases."""
