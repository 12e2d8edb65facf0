"""Documents to batches: tokenize, cache, pack, and hand over in worker processes."""
