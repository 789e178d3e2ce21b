"""The daemon's HTTP API: authentication, routes, streams, and the proxy of the web page.

`serve` builds and runs everything. `app` makes the application, and gives each route the parts that it needs: the
`context` (daemon, commands, settings, permissions, readers), the `intake` of jobs, and services of its own.
"""
