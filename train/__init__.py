"""Training on a CPU: text in, checkpoints out."""
