"""What a run trains: a model's own weights, or a low-rank adapter of them."""
