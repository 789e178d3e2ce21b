"""What a job will use and take, by what similar jobs did. Standard library and numpy only."""
