"""Figures and HTML reports: the look, axes, lines and pages that all packages share."""
