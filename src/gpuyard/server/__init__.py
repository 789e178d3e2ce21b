"""The daemon's HTTP API: authentication, routes, streams, and the proxy of the web page."""
