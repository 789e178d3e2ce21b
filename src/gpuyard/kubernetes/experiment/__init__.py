"""Experiments on a cluster: the back end that creates pods, follows and deletes them."""
