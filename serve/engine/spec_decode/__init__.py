"""Speculative decoding: draft tokens from the text itself or from a smaller model, verified several in a step."""
