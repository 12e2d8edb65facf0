"""Commands that take long: each a process of its own, in a queue, kept on disk."""
