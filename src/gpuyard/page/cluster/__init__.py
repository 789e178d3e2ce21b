"""A cluster as a page: what the scheduler there tells at `/cluster`, to look at, and nothing to change.

It is a process of its own, started by `gpuyard kubernetes dashboard`. Whoever looks sees the same, so nobody need log
in; `door` keeps pages of others out.
"""
