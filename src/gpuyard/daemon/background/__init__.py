"""Threads beside the loop: recording, retention, interference, files for dcgm-exporter."""
