"""The web page: a process of its own and a client of the daemon's API, with the rights of the viewer."""
