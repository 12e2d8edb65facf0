"""Commands that take long: each its own process, in a queue, kept on disk."""
