"""A run's directory and what is written to it: checkpoints, metrics, event log."""
