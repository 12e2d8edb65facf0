"""``python -m slm.evaluate``: perplexity of a checkpoint and of the GGUF files made from it."""
