"""Commands on GPU metrics: monitor, plot, report, forecast, experiment."""
