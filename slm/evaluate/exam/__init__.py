"""``slm exam``: a model answers questions whose answers are known, and its replies are counted."""
