"""``make bench-recipe``: the best model for a time, ours against others, scored alike."""
