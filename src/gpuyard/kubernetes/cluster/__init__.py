"""The cluster as the core sees it: nodes, pods, requests and state."""
