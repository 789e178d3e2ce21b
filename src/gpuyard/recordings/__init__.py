"""What GPUs did, second by second: metrics, series, and the file that keeps them."""
