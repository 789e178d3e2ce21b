"""The dashboard of a Kubernetes cluster: what the scheduler reports at `/cluster`, read only.

It is a process of its own, started by `gpuyard kubernetes dashboard`. All viewers see the same, so there is no login;
`cluster_app.RequestGuard` keeps pages of other origins out.
"""
