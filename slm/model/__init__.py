"""The model, its parts, and its checkpoints."""
