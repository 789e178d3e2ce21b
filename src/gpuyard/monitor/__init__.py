"""GPU monitoring: sources of series, live recording, summaries, plots and reports."""
