"""``slm exam``: a model answers questions with known answers, and its replies are counted."""
